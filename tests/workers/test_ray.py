"""Workers as actors of a Ray cluster: bit for bit what processes give, and their deaths cost no more."""

from __future__ import annotations

import asyncio
import copy
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.doc_runner import Machines
from tests.envs.test_codecs import values_of
from tests.policies.vla.made import policy as robot
from tests.processes import await_end, start_module
from tests.runs.small import small_config
from tests.training.test_array_training import episodes
from tests.training.test_ranks import assert_same_update, assert_same_weights, trainer
from tests.workers.engines import SMALL, SmallEngine
from tests.workers.odd_envs import ODD, POINT, Point, PointOptions
from tests.workers.test_generators import asked, assert_same, chunks
from tests.workers.test_simulators import GO, begin, texts

from stepwell.algos.recipes import RECIPES
from stepwell.cli.main import main
from stepwell.config.training import TrainConfig
from stepwell.config.workers import WorkersConfig
from stepwell.core import ConfigError, Status, WeightsError, WorkerError
from stepwell.pool import Filter, open_pool
from stepwell.runs.build.ray_ranks import RayRankLauncher
from stepwell.runs.run import train
from stepwell.studies.ray_runs import RayRuns
from stepwell.training import Trainer
from stepwell.workers import ProcessGenerator, ProcessSimulator
from stepwell.workers.placement import DevicePlacement, resolve_placement
from stepwell.workers.ray_cluster import RayCluster, list_node_names, plan_bundles, read_cluster
from stepwell.workers.weight_bytes import PackedWeights

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'stepwell[ray]'")
cluster_utils = pytest.importorskip("ray.cluster_utils")
NODE = {"num_cpus": 3, "object_store_memory": 80 * 2**20, "include_log_monitor": False}
QUICK_DEATHS = {  # a node that is gone is noticed within two seconds instead of fifteen
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 400,
    "health_check_timeout_ms": 800,
    "health_check_failure_threshold": 3,
    "prestart_worker_first_driver": False,
    # What follows is not looked at here, or lets actors wait for all other tests (Ray's own is 15).
    "worker_niceness": 0,
    "enable_metrics_collection": False,
    "task_events_report_interval_ms": 0,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes on this machine."""
    head = {**NODE, "include_dashboard": False, "no_monitor": True, "_system_config": QUICK_DEATHS}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    made.add_node(**NODE)
    ray.init(address=made.address, namespace="stepwell", log_to_driver=False, logging_level="error")
    yield made
    ray.shutdown()
    made.shutdown()


def open_places(num_simulators: int, num_generators: int) -> tuple[RayCluster, list[Any]]:
    """A placement group and one launcher per worker."""
    config = WorkersConfig(
        backend="ray",
        heartbeat_s=0.2,
        simulators={"num_workers": num_simulators},  # type: ignore[arg-type]
        generators={"num_workers": num_generators},  # type: ignore[arg-type]
    )
    cluster = RayCluster(config, "test")
    plan = cluster.open_group(resolve_placement(config, "cpu", ["cpu"]))
    return cluster, [cluster.make_launcher(bundle, {}) for bundle in (*plan.simulators, *plan.generators)]


@pytest.mark.slow
async def test_actors_answer_as_processes_do_and_are_replaced_when_they_die(
    cluster: Any, request: pytest.FixtureRequest
) -> None:
    places, launchers = open_places(1, 2)
    request.addfinalizer(places.close)  # whatever fails here, later tests have room
    options, rng = {"observation": "both", "image_size": 160}, np.random.default_rng(0)
    near = ProcessSimulator("near", POINT, options, 2, 3, with_state=True)
    far = ProcessSimulator("far", POINT, options, 2, 3, with_state=True, launcher=launchers[0])
    tasks = [Point.make_task(PointOptions(), seed) for seed in range(3)]
    chunked = rng.uniform(-1, 1, (3, 4, 2)).astype(np.float32)
    for call in (
        lambda sim: sim.reset(1, [0, 1, 2], tasks, [0, 1, 2]),
        lambda sim: sim.step(1, [2, 0, 1], list(chunked)),
    ):
        one, other = await call(near), await call(far)
        assert list(map(values_of, one)) == list(map(values_of, other))
        with pytest.raises(ValueError):  # it lies in the object store
            other[0].observation.arrays["top"][:] = 0
    with pytest.raises(ConfigError, match="nonsense is not an option"):
        await ProcessSimulator("odd", ODD, {"nonsense": 1}, launcher=launchers[1]).start()
    await near.close()
    await far.close()
    await check_generators(launchers[1:])
    await check_deaths(launchers[0])


async def check_generators(launchers: list[Any]) -> None:
    """Two generators get one object with the weights, and have them again after a death."""
    far = [
        ProcessGenerator(f"far {i}", SMALL, {"scale": 2.0}, launcher=one) for i, one in enumerate(launchers)
    ]
    here, requests = SmallEngine(2.0), asked(1.0, 1 / 3)
    assert_same(await far[0].generate(requests), await here.generate(requests))
    here.weights = {"scale": np.array([5.0], np.float32)}
    weights = PackedWeights(here.weights)
    found = await asyncio.gather(*(one.load_weights(2, weights) for one in far))
    assert found == [here.fingerprint()] * 2
    assert isinstance(weights.pack_once()[1].handle.result(), ray.ObjectRef)
    with pytest.raises(WeightsError, match="another model"):
        await far[0].load_weights(3, {"other": here.weights["scale"]})
    states = read_cluster().workers
    assert {state["kind"] for state in states} == {"generator"} and len(states) == 2
    with pytest.raises(WorkerError, match=r"far 0 .* was lost"):
        await far[0].generate(asked(1.0, order="die"))
    assert chunks(await far[0].generate(asked(1.0))) == [[5.0, -5.0]]
    assert far[0].read_health().num_restarts == 1
    for one in far:
        await one.close()


async def check_deaths(launcher: Any) -> None:
    """An actor that dies or hangs is replaced, and its episodes are lost."""
    far = ProcessSimulator("far", ODD, {}, 2, 3, launcher=launcher, hang_s=4.0, heartbeat_s=0.2)
    await begin(far)
    with pytest.raises(WorkerError, match=r"was lost: .*died"):
        await far.step(0, [0], [("vanish",)])
    (lost,) = await far.step(0, [1], [GO])
    assert isinstance(lost.error, WorkerError) and "restarted" in str(lost.error)
    assert texts(await begin(far)) == ["count 0", "count 1", "count 2"]
    with pytest.raises(WorkerError, match=r"made no progress with a call|gave no sign of life"):
        await far.step(0, [0], [("hang",)])
    assert texts(await begin(far)) == ["count 0", "count 1", "count 2"]
    pid, restarts = far.read_health().pid, far.read_health().num_restarts
    assert pid is not None and restarts == 2
    await far.close()
    until = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        await asyncio.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_a_run_survives_the_loss_of_a_node_and_every_episode_counts_once(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    update, step, states, doomed = Trainer.update, ProcessSimulator.step, [], {}
    (second,) = cluster.worker_nodes

    def note_states(self: Trainer, *args: Any, **kwargs: Any) -> dict[str, float]:
        """After the third update a third node comes, and the second is doomed with its simulators."""
        found = update(self, *args, **kwargs)
        states.append(read_cluster().workers)
        if len(states) == 1:
            main(["cluster", "status"])
        if len(states) == 3:
            doomed.update({one["name"]: one["pid"] for one in states[-1] if one["node"] == second.node_id})
            assert doomed
            cluster.add_node(**NODE)
        return found

    async def lose_node_under_way(self: ProcessSimulator, *args: Any) -> Any:
        """Its first step after that meets a node that is gone, with all its processes."""
        if self.name in doomed:
            pids = list(doomed.values())
            doomed.clear()
            await asyncio.to_thread(cluster.remove_node, second, allow_graceful=False)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return await step(self, *args)

    monkeypatch.setattr(Trainer, "update", note_states)
    monkeypatch.setattr(ProcessSimulator, "step", lose_node_under_way)
    settings = (
        "recipe.name=rloo",
        "workers.mode=stream",
        "workers.backend=ray",
        "workers.heartbeat_s=0.5",
        "workers.simulators.num_workers=3",
        "workers.simulators.env_batches=1",
        "workers.simulators.batch_size=2",
        "workers.simulators.num_cpus=1.5",
        "train.num_updates=10",
        "train.max_env_retries=0",
        "eval.num_tasks=0",
    )
    folder = train(small_config(*settings, folder=tmp_path, name="run"))
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        played = list(pool.find(Filter(channel="train")))
    failed = [entry for entry in played if entry.status is Status.INFRA_ERROR]
    assert failed and all(not entry.is_served for entry in failed)
    good = [entry for entry in played if entry not in failed]
    assert len(good) == 10 * 8 and {entry.state for entry in good} == {"consumed"}
    assert len({entry.id for entry in good}) == len(good)
    printed = capsys.readouterr().out
    assert "Ray: 2 nodes alive" in printed and "simulator 2  simulator  pid" in printed
    assert len(states[0]) == 4 and not read_cluster().workers


@pytest.mark.slow
def test_a_run_of_a_study_ends_with_its_exit_code_or_is_lost_with_its_node(
    cluster: Any, tmp_path: Path
) -> None:
    runs = RayRuns("auto", num_threads=1)
    assert runs.num_places == 6
    failed, lost = runs.start_run(tmp_path / "a.log", "no JSON"), runs.start_run(tmp_path / "b.log", "")
    ray.kill(lost._actor)
    until = time.monotonic() + 60
    while not (failed.has_died() and lost.has_died()) and time.monotonic() < until:
        time.sleep(0.05)
    assert (failed.kill(), failed.was_lost) == (1, False) and lost.was_lost
    assert "JSONDecodeError" in (tmp_path / "a.log").read_text()
    with pytest.raises(ConfigError, match=r"does not see .* folder that all nodes share"):
        runs.start_run(tmp_path / "missing" / "c.log", "")


@pytest.mark.slow
def test_ranks_that_are_actors_train_as_one_process_does_and_are_replaced_or_left_out(cluster: Any) -> None:
    config = WorkersConfig(
        mode="stream",
        backend="ray",
        simulators={"num_cpus": 0.1},  # type: ignore[arg-type]
        generators={"num_cpus": 0.1},  # type: ignore[arg-type]
        trainers={"devices": ("cpu", "cpu")},  # type: ignore[arg-type]
    )
    places = RayCluster(config, "test")
    plan = places.open_group(resolve_placement(config, "cpu", ["cpu"]))
    launcher = RayRankLauncher(places, plan.trainers)
    made = robot("token", dtype="float64")
    batch, train_config = episodes(made), TrainConfig.model_validate({"optimizer": {"learning_rate": 1e-3}})
    actors = Trainer(
        copy.deepcopy(made), RECIPES["grpo"], train_config, horizon=2, launcher=launcher, on_dead_rank="wait"
    )
    actors.freeze_reference()
    try:
        with trainer(copy.deepcopy(made), "grpo", 1) as alone:
            assert_same_update(alone, actors, batch, 1e-6)
            ranks = [one for one in read_cluster().workers if one.get("kind") == "trainer rank"]
            assert [one["name"] for one in ranks] == ["trainer 0", "trainer 1"]
            assert actors.ranks is not None and actors.ranks.size == 2
            os.kill(ranks[1]["pid"], signal.SIGKILL)  # the actor, and its rank with it
            assert_same_update(alone, actors, batch, 1e-6)
            assert actors.ranks.size == 2
            actors.ranks.on_dead_rank = "shrink"
            os.kill(actors.rank_pids[0], signal.SIGKILL)
            assert_same_update(alone, actors, batch, 1e-6)
            assert actors.ranks.size == 1
            assert_same_weights(alone, actors, 1e-6)
    finally:
        actors.close()
        launcher.close()
        places.close()


def test_devices_become_bundles() -> None:
    config = WorkersConfig(
        simulators={"num_workers": 2, "num_cpus": 0.5},  # type: ignore[arg-type]
        generators={"num_workers": 3, "num_threads": 2},  # type: ignore[arg-type]
    )
    nodes = {"gpu1": "node:10.0.0.1"}
    placement = DevicePlacement(
        "disaggregated", ("cpu", "gpu1/cpu"), ("cuda:1", "cuda:1", "gpu1/cuda:0"), ("cuda:0",)
    )
    plan = plan_bundles(config, placement, nodes, "node:here")
    assert plan.bundles == [
        {"CPU": 0.5},
        {"CPU": 0.5, "node:10.0.0.1": 0.001},
        {"CPU": 4.0, "GPU": 1.0},
        {"CPU": 2.0, "GPU": 1.0, "node:10.0.0.1": 0.001},
    ]
    assert [(one.index, one.num_gpus, one.device) for one in plan.generators] == [
        (2, 0.5, "cuda:0"),
        (2, 0.5, "cuda:0"),
        (3, 1.0, "cuda:0"),
    ]
    own = plan_bundles(config, DevicePlacement("colocated", (), ("cuda:1",), ("cuda:1",)), {}, "node:here")
    assert own.bundles == [{"CPU": 2.0, "node:here": 0.001}]
    assert own.generators[0].variables == {"CUDA_VISIBLE_DEVICES": "1"}
    ranks = WorkersConfig(mode="stream", backend="ray", trainers={"num_cpus": 3})  # type: ignore[arg-type]
    both = DevicePlacement("colocated", ("cpu",), ("cuda:0",), ("cuda:0", "gpu1/cuda:1"))
    plan = plan_bundles(ranks, both, nodes, "node:here")
    assert plan.bundles[1:] == [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 3.0, "GPU": 1.0, "node:10.0.0.1": 0.001}]
    assert [(one.index, one.num_gpus, one.device) for one in (*plan.generators, *plan.trainers)] == [
        (1, 0.5, "cuda:0"),
        (1, 0.5, "cuda:0"),
        (2, 1.0, "cuda:0"),
    ]
    with pytest.raises(ConfigError, match=r"workers.generators.devices: the Ray cluster has no node far"):
        plan_bundles(config, DevicePlacement("", (), ("far/cuda:0",), ("cpu",)), nodes, "")


@pytest.mark.slow
def test_a_cluster_without_room_is_said_with_what_is_asked_and_free(cluster: Any) -> None:
    config = WorkersConfig(
        backend="ray",
        ray={"wait_s": 0.5},  # type: ignore[arg-type]
        simulators={"num_workers": 9},  # type: ignore[arg-type]
    )
    places = RayCluster(config, "test")
    with pytest.raises(WorkerError, match=r"they ask for 10 CPU \(free: \S+ of 6\) in 10 bundles"):
        places.open_group(resolve_placement(config, "cpu", ["cpu"]))
    places.close()
    assert os.uname().nodename in list_node_names()


def test_a_cluster_that_asks_for_a_token_is_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("8" * 64)
    monkeypatch.setenv("HOME", str(tmp_path))
    with closing(Machines(tmp_path)) as machines:
        words = ["cluster", "status", "--address", machines.ray]
        code, printed = await_end(start_module("stepwell", *words, log=tmp_path / "log"))
    assert code == 0 and "Ray: 1 nodes alive" in printed
