"""From placement to workers: each simulator and generator is started where its device is.

    workers.processes = false    threads of this process
    cpu, cuda:0                  processes of this machine
    HOST/cpu, HOST/cuda:0        processes of a machine that serves workers (`workers/http_link.py`)
    workers.backend = "ray"      actors of a Ray cluster (`workers/ray_cluster.py`)

Processes and actors are clients of one kind: only their launcher differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.config.run import RunConfig
from stepwell.core import ConfigError
from stepwell.core.child_process import limit_threads
from stepwell.policies.numerics import set_numerics
from stepwell.runs.build.components import Components
from stepwell.workers.contracts import Generator, Launcher, Simulator
from stepwell.workers.engine_builders import RUN
from stepwell.workers.in_process import LocalGenerator, LocalSimulator
from stepwell.workers.placement import DevicePlacement

if TYPE_CHECKING:
    from stepwell.runs.build.ray_ranks import RayRankLauncher
    from stepwell.workers.ray_cluster import BundlePlan, RayCluster, WorkerBundle


def build_engine(settings: Mapping[str, Any]) -> Any:
    """The engine of a run with these settings: what a generator process builds."""
    set_numerics()  # the number of threads is set in the environment of the process
    folder = settings.get("folder")  # of the run: its pool holds the images that prompts name
    return Components(RunConfig.model_validate(settings["config"]), folder and Path(folder)).engine


def make_generator_config(config: RunConfig, device: str) -> RunConfig:
    """Settings from which a generator builds its engine: its own device, and few environments."""
    engine, sims = config.engine, config.workers.simulators
    size = max(engine.max_batch_size, config.workers.generators.max_batch)
    if config.workers.tune:  # batches may grow to all environments
        size = max(size, sims.num_workers * sims.env_batches * sims.batch_size)
    changes: dict[str, Any] = {
        "policy": config.policy.model_copy(update={"device": device, "reference": False}),
        "engine": engine.model_copy(
            update={
                "max_batch_size": size,
                "max_queue": max(engine.max_queue, size),
                "num_slots": engine.num_slots and max(engine.num_slots, size),
            }
        ),
        "train": config.train.model_copy(update={"tasks_per_update": 1, "group_size": 1, "minibatches": 1}),
        "eval": config.eval.model_copy(update={"num_tasks": 1, "samples_per_task": 1}),
    }
    return config.model_copy(update=changes)


def share_servers(config: RunConfig, i: int, count: int) -> RunConfig:
    """The settings of generator `i` with its share of the servers."""
    if config.engine.backend == "embedded":
        return config
    engine = config.engine.model_copy(update={"urls": config.engine.urls[i::count]})
    return config.model_copy(update={"engine": engine})


class WorkerBuilder:
    """Makes the workers of a run. None of them is started yet."""

    def __init__(self, config: RunConfig, components: Components, placement: DevicePlacement) -> None:
        self._config, self._components, self._placement = config, components, placement
        self._cluster: RayCluster | None = None
        self._plan: BundlePlan | None = None
        self._ranks: RayRankLauncher | None = None

    def open_cluster(self) -> None:
        """Connect to the Ray cluster and reserve room, if the run has one. May wait."""
        if self._config.workers.backend == "ray":
            from stepwell.workers.ray_cluster import RayCluster

            folder = self._components.folder
            self._cluster = RayCluster(self._config.workers, folder.name if folder else "run")
            self._plan = self._cluster.open_group(self._placement)

    def make_rank_launcher(self) -> RayRankLauncher | None:
        """What starts the trainer's ranks as actors; None if they are not actors."""
        if self._cluster is None or self._plan is None or not self._plan.trainers:
            return None
        from stepwell.runs.build.ray_ranks import RayRankLauncher

        self._ranks = RayRankLauncher(self._cluster, self._plan.trainers)
        return self._ranks

    def close(self) -> None:
        """Give back what `open_cluster` reserved."""
        if self._ranks is not None:
            self._ranks.close()
        if self._cluster is not None:
            self._cluster.close()

    def make_simulators(self) -> list[Simulator]:
        """One simulator per device of the placement; a user's own agent has none."""
        if not self._placement.simulators:
            return []
        settings, env = self._config.workers.simulators, self._config.env
        shape = (env.name, env.options, settings.env_batches, settings.batch_size)
        with_state = self._components.backend.player.needs_state
        names = [f"simulator {i}" for i in range(settings.num_workers)]
        if not self._config.workers.processes:
            return [LocalSimulator(name, *shape, with_state=with_state) for name in names]
        from stepwell.workers import ProcessSimulator

        return [
            ProcessSimulator(
                name,
                *shape,
                with_state=with_state,
                environment=_choose_rendering(device),
                launcher=self._make_launcher("simulators", i),
                **self._watch_limits,
            )
            for i, (name, device) in enumerate(zip(names, self._placement.simulators, strict=True))
        ]

    def make_generators(self) -> list[Generator]:
        """One generator per device of the placement."""
        folder, threads = self._components.folder, self._config.workers.generators.num_threads
        devices = [device.rpartition("/")[2] for device in self._placement.generators]
        if self._plan is not None:
            devices = [bundle.device for bundle in self._plan.generators]
        configs = [
            share_servers(make_generator_config(self._config, device), i, len(devices))
            for i, device in enumerate(devices)
        ]
        if not self._config.workers.processes:
            return [
                LocalGenerator(f"generator {i}", Components(config, folder).engine)
                for i, config in enumerate(configs)
            ]
        from stepwell.workers import ProcessGenerator

        return [
            ProcessGenerator(
                f"generator {i}",
                RUN,
                {"config": config.model_dump(mode="json"), "folder": folder and str(folder.absolute())},
                num_threads=threads,
                launcher=self._make_launcher("generators", i),
                **self._watch_limits,
            )
            for i, config in enumerate(configs)
        ]

    def _make_launcher(self, kind: str, i: int) -> Launcher | None:
        """Who starts worker `i` of a kind; None: a process of this machine."""
        device = getattr(self._placement, kind)[i]
        if self._cluster is None:
            host, _, name = device.rpartition("/")
            return self._make_http_launcher(kind, host, name) if host else None
        bundle: WorkerBundle = getattr(self._plan, kind)[i]
        threads = 1 if kind == "simulators" else self._config.workers.generators.num_threads
        variables = (limit_threads(threads) if threads else {}) | _choose_rendering(bundle.device)
        return self._cluster.make_launcher(bundle, variables)

    def _make_http_launcher(self, kind: str, host: str, device: str) -> Launcher:
        from stepwell.workers.http_link import HttpLauncher, find_host_url

        workers = self._config.workers
        if kind == "generators" and self._components.backend.image_store is not None:
            raise ConfigError(
                f"workers.generators.devices: a generator at {host} cannot read the images of this run; "
                "place generators on this machine"
            )
        return HttpLauncher(find_host_url(host, workers.hosts), device, workers.heartbeat_s)

    @property
    def _watch_limits(self) -> dict[str, Any]:
        workers = self._config.workers
        return {
            "heartbeat_s": workers.heartbeat_s,
            "hang_s": workers.hang_s,
            "max_restarts": workers.max_restarts,
        }


def _choose_rendering(device: str) -> dict[str, str]:
    """Environment variables that choose the device for off-screen rendering."""
    kind, _, index = device.rpartition("/")[2].partition(":")
    return {"MUJOCO_EGL_DEVICE_ID": index, "EGL_DEVICE_ID": index} if kind == "cuda" and index else {}
