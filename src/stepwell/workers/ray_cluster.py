"""A Ray cluster as a place for workers: devices become bundles of one placement group.

    workers.*.devices    bundle                                   the worker sees
    cpu                  num_cpus, on any node                    the cores
    HOST/cpu             num_cpus, on that node                   the cores
    cuda:1               one GPU of the cluster, for all workers  cuda:0 (Ray shows it only that GPU)
                         that name cuda:1
    HOST/cuda:1          one GPU of that node, likewise           cuda:0
    cuda:1, if a trainer has it too: the controller's own GPU 1, shared with the trainer and not reserved

HOST is the address or the name of a node. The controller, and a trainer of one device, stay in the process
that called `stepwell train`. Several ranks of a trainer are actors, each in the bundle of its device.

Invariants
* A run that the cluster has no room for ends with what it asks for and what there is.
* When a node dies, Ray gives its bundles to other nodes; workers wait for that, and for new nodes.
* `close` frees the placement group. A cluster that this run has started ends with it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepwell.config.workers import WorkersConfig
from stepwell.core import ConfigError, WorkerError
from stepwell.workers.contracts import Launcher
from stepwell.workers.placement import CORES, DevicePlacement, are_ranks_actors

NAMESPACE = "stepwell"
_PIN = 0.001  # of a node's own resource: pins a bundle to it


@dataclass(frozen=True, slots=True)
class WorkerBundle:
    """Where a worker goes: a bundle, its share of it, and the device that it sees."""

    index: int
    num_cpus: float
    num_gpus: float
    device: str
    variables: dict[str, str]


@dataclass(slots=True)
class BundlePlan:
    """The bundles of a placement group, and the place of every worker in them."""

    bundles: list[dict[str, float]] = field(default_factory=list)
    simulators: list[WorkerBundle] = field(default_factory=list)
    generators: list[WorkerBundle] = field(default_factory=list)
    trainers: list[WorkerBundle] = field(default_factory=list)  # ranks that are actors

    def sum_resources(self) -> dict[str, float]:
        """All bundles together."""
        total: Counter[str] = Counter()
        for bundle in self.bundles:
            total.update({name: n for name, n in bundle.items() if not name.startswith("node:")})
        return dict(total)


def plan_bundles(
    config: WorkersConfig, placement: DevicePlacement, nodes: dict[str, str], here: str
) -> BundlePlan:
    """Bundles for a placement. `nodes` maps names of nodes to the resources that pin to them."""
    plan, shared = BundlePlan(), dict[str, int]()
    cpus = {
        "simulators": config.simulators.num_cpus,
        "generators": config.generators.num_cpus or float(config.generators.num_threads or 1),
        "trainers": config.trainers.num_cpus,
    }
    has_ranks = are_ranks_actors(config, placement.trainers)
    kinds = ("simulators", "generators", *(["trainers"] if has_ranks else []))
    counts = Counter(device for kind in kinds for device in getattr(placement, kind))
    for kind in kinds:
        for device in getattr(placement, kind):
            host, _, name = device.rpartition("/")
            pin = {_find_node(host, nodes, f"workers.{kind}.devices"): _PIN} if host else {}
            is_own = device in placement.trainers and name != CORES and not has_ranks
            variables = dict[str, str]()
            if name == CORES or is_own:
                index, gpus = len(plan.bundles), 0.0
                plan.bundles.append({"CPU": cpus[kind], **({here: _PIN} if is_own else pin)})
                if is_own:
                    variables["CUDA_VISIBLE_DEVICES"] = name.partition(":")[2]
            else:
                if device not in shared:
                    shared[device] = len(plan.bundles)
                    plan.bundles.append({"GPU": 1.0, "CPU": 0.0, **pin})
                index, gpus = shared[device], 1.0 / counts[device]
                plan.bundles[index]["CPU"] += cpus[kind]
            seen = CORES if name == CORES else "cuda:0"
            getattr(plan, kind).append(WorkerBundle(index, cpus[kind], gpus, seen, variables))
    return plan


def _find_node(host: str, nodes: dict[str, str], key: str) -> str:
    if host not in nodes:
        raise ConfigError(
            f"{key}: the Ray cluster has no node {host}; it has {', '.join(sorted(nodes)) or 'none'}"
        )
    return nodes[host]


class RayCluster:
    """A connection to a cluster, and the placement group of one run."""

    def __init__(self, config: WorkersConfig, run: str) -> None:
        self._config = config
        self.run = f"{run}-{uuid.uuid4().hex[:6]}"
        self._group: Any = None
        self._is_ours = False

    def open_group(self, placement: DevicePlacement) -> BundlePlan:
        """Connect, reserve the bundles of a placement and wait for them."""
        ray = import_ray()
        settings = self._config.ray
        cpus = plan_bundles(self._config, placement, _AnyNode(), "node:here").sum_resources().get("CPU", 0.0)
        self._is_ours = connect_ray(settings.address, min_cpus=cpus)
        from ray.util.placement_group import placement_group

        plan = plan_bundles(self._config, placement, list_node_names(), _find_own_node())
        self._group = placement_group(plan.bundles, strategy=settings.strategy.upper(), name=self.run)
        try:
            ray.get(self._group.ready(), timeout=settings.wait_s)
        except ray.exceptions.GetTimeoutError:
            raise WorkerError(self._explain_no_room(plan)) from None
        return plan

    def make_launcher(self, bundle: WorkerBundle, variables: Mapping[str, str]) -> Launcher:
        """Starts one worker, with these environment variables."""
        from stepwell.workers.ray_link import RayLauncher

        return RayLauncher(
            self._group,
            bundle.index,
            self.run,
            bundle.num_cpus,
            bundle.num_gpus,
            {**variables, **bundle.variables},
            self._config.heartbeat_s,
        )

    def place_actor(self, bundle: WorkerBundle) -> dict[str, Any]:
        """Options of an actor that belongs into a bundle."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=bundle.index, placement_group_capture_child_tasks=False
        )
        return {
            "num_cpus": bundle.num_cpus,
            "num_gpus": bundle.num_gpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": strategy,
        }

    def close(self) -> None:
        """Give back what was reserved."""
        ray = import_ray()
        if self._group is not None and ray.is_initialized():
            from ray.util.placement_group import remove_placement_group

            remove_placement_group(self._group)
        self._group = None
        if self._is_ours:
            ray.shutdown()
            self._is_ours = False

    def _explain_no_room(self, plan: BundlePlan) -> str:
        ray = import_ray()
        have, free = ray.cluster_resources(), ray.available_resources()
        asked = ", ".join(
            f"{count:g} {name} (free: {free.get(name, 0.0):g} of {have.get(name, 0.0):g})"
            for name, count in plan.sum_resources().items()
        )
        return (
            f"the Ray cluster had no room for the workers within {self._config.ray.wait_s:g} s "
            f"(workers.ray.wait_s): they ask for {asked} in {len(plan.bundles)} bundles. Add nodes, ask for "
            "fewer workers, or for less with workers.simulators.num_cpus and workers.generators.num_cpus"
        )


class _AnyNode(dict[str, str]):
    """Knows every node: for sums before there is a cluster."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return f"node:{name}"


def import_ray() -> Any:
    """The package, or a `ConfigError` that says what to install.

    Where there is a token, `ray start` makes a cluster that asks for it; a program must be told to give it.
    """
    if "ray" not in sys.modules and (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray
    except ImportError as error:
        raise ConfigError("workers.backend=ray needs the extra 'ray': pip install 'stepwell[ray]'") from error
    return ray


def connect_ray(address: str, *, min_cpus: float = 0.0) -> bool:
    """Connect this process to a cluster; whether it was started here and now (`local`).

    A process that is connected already stays so: an address of another cluster is refused.
    """
    ray = import_ray()
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "warning"}
    if address == "local":
        options |= {"num_cpus": max(os.cpu_count() or 1, -(-min_cpus // 1)), "include_dashboard": False}
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        ray.init(address=address, **options)
        if threading.current_thread() is threading.main_thread():  # a run saves and stops in its own way
            for number, handler in before.items():
                signal.signal(number, handler)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        hint = "start one with `ray start --head`, name its address, or use --address local"
        raise ConfigError(f"there is no Ray cluster at {address!r} ({error}); {hint}") from error
    return address == "local"


def list_node_names() -> dict[str, str]:
    """Addresses and names of the nodes that are alive, each with the resource that pins to it."""
    found: dict[str, str] = {}
    for node in import_ray().nodes():
        if node["Alive"]:
            pin = f"node:{node['NodeManagerAddress']}"
            found |= dict.fromkeys((node["NodeManagerAddress"], node["NodeManagerHostname"]), pin)
            found[node.get("NodeName") or node["NodeManagerAddress"]] = pin
    return found


def _find_own_node() -> str:
    ray = import_ray()
    return f"node:{ray.util.get_node_ip_address()}"


# --- what `stepwell cluster status` shows ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The nodes of a cluster and the workers of all runs on it."""

    nodes: Sequence[dict[str, Any]]
    workers: Sequence[dict[str, Any]]


def read_cluster(timeout_s: float = 5.0) -> ClusterStatus:
    """Ask Ray for its nodes, and every worker of Stepwell for its state."""
    ray = import_ray()
    nodes = [
        {
            "name": node.get("NodeName") or node["NodeManagerAddress"],
            "id": node["NodeID"],
            "address": node["NodeManagerAddress"],
            "is_alive": node["Alive"],
            "cpus": node["Resources"].get("CPU", 0.0),
            "gpus": node["Resources"].get("GPU", 0.0),
        }
        for node in ray.nodes()
    ]
    workers = []
    for entry in ray.util.list_named_actors(all_namespaces=True):
        if entry["namespace"] == NAMESPACE:
            workers.append(_read_worker(entry["name"], timeout_s))
    return ClusterStatus(nodes, sorted(workers, key=lambda worker: (worker.get("run", ""), worker["name"])))


def _read_worker(name: str, timeout_s: float) -> dict[str, Any]:
    ray, began = import_ray(), time.monotonic()
    try:
        found: dict[str, Any] = ray.get(
            ray.get_actor(name, namespace=NAMESPACE).show_state.remote(), timeout=timeout_s
        )
    except (ray.exceptions.RayError, ValueError) as error:
        return {"name": name, "problem": f"{type(error).__name__} after {time.monotonic() - began:.1f} s"}
    return found
