"""Forecasts: modelled runs of one profile on many placements, and the settings that suit the best of them.

    profile + settings ─► list_cases ─► run_case (modelled, virtual time) ─► Forecast ─► recommend_settings

A case is a number of devices, a placement and a mode. Environments and trajectories per update grow with the
number of devices, so that each device has as much to do as with one. Driver, request queue, shard rules and
staleness are the code that runs; only the devices are models (`workers/planned_hardware.py`).

To find the bottleneck, the case is modelled again without each part: the part that costs most throughput
is the bottleneck.

The work of a forecast is in the calls to simulators. Where they are many, one modelled environment stands for
several of a batch, and then episodes and updates are shortened (`PlannedHardware.shortened`): by little for
the figures of the table, by more for comparisons of one case with and without a change. Settings for several
machines are looked for on one, and checked on all. What will be asked for is modelled on all cores at once,
where a `CasePool` is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any, Literal

from stepwell.config.profile import PipelineProfile, WeightTimes
from stepwell.config.run import RunConfig
from stepwell.runs.planner.case_pool import CasePool
from stepwell.workers.modelled import run_modelled
from stepwell.workers.pipeline import ModelledRun
from stepwell.workers.placement import CORES, DevicePlacement
from stepwell.workers.planned_hardware import PlannedHardware
from stepwell.workers.staleness import Mode, compute_min_staleness

Placement = Literal["colocated", "hybrid", "disaggregated"]
MODES: tuple[Mode, ...] = ("sync", "rollout_async", "train_async", "stream")
MAX_TURNS = 3000
"""A case is modelled with about this many turns; then one modelled environment stands for several."""
MAX_CALLS, MAX_SHORTENED = 2000, 4.0
"""Beyond this many turns of environment batches a case is shortened, by at most this factor."""
COMPARED_CALLS, COMPARED_SHORTENED = 1000, 6.0
"""The same where two cases are compared."""
MIN_CALLS = 4000
"""Fewer of these are modelled sooner than processes start that could share them."""
NUM_UPDATES = 5
FEWER_UPDATES: dict[Mode, int] = {"sync": 3, "rollout_async": 3, "train_async": 4, "stream": 4}
"""Of a shortened case. The first and the last one are not counted; in two modes each is like the next."""
WEIGHT_SYNCS = ("overlapped", "blocking")


@dataclass(frozen=True, slots=True)
class ForecastCase:
    """One number of devices, placement and mode."""

    num_devices: int
    placement: Placement
    mode: Mode


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a case should give. Throughput counts environment turns (requests that are answered)."""

    case: ForecastCase
    hardware: PlannedHardware
    turns_per_s: float
    busy: dict[str, float]
    mean_staleness: float
    max_staleness: int
    mean_batch: float
    sync_share: float  # of the time, in which the trainer waits for its weights to be copied or to arrive
    sync_wait_s: float  # the same in seconds, of one sync
    gains: dict[str, float] = field(default_factory=dict)  # throughput without a part, over throughput

    @property
    def bottleneck(self) -> str:
        """The part that limits it, or the busiest one if that was not asked."""
        if self.gains:
            return max(self.gains, key=lambda part: self.gains[part])
        return max(self.busy, key=lambda kind: self.busy[kind])


@dataclass(frozen=True, slots=True)
class Cluster:
    """What there is: accelerators by machine (`num_devices` 0: cores only), and cores of each machine."""

    sizes: tuple[int, ...] = (0,)
    per_machine: int = 8
    cores: float = 2.0
    background: float = 0.0  # cores that other programs ask for


def list_cases(cluster: Cluster, *, has_device_physics: bool = False) -> Iterator[ForecastCase]:
    """Every placement that the number of devices allows, in every mode."""
    for size in cluster.sizes:
        placements: list[Placement] = ["colocated"]
        if size >= 2:
            placements += ["hybrid", "disaggregated"] if has_device_physics else ["disaggregated"]
        for placement in placements:
            for mode in MODES:
                yield ForecastCase(size, placement, mode)


def place_case(
    case: ForecastCase, cluster: Cluster, num_simulators: int, *, has_device_physics: bool = False
) -> DevicePlacement:
    """Which worker is where. A quarter of the devices, at least one, is for the smaller role."""
    if case.num_devices == 0:
        return DevicePlacement(case.placement, (CORES,) * num_simulators, (CORES,), (CORES,))
    devices = [
        f"node{i // cluster.per_machine}/cuda:{i % cluster.per_machine}" for i in range(case.num_devices)
    ]
    machines = list(dict.fromkeys(device.rpartition("/")[0] for device in devices))
    hosts = [f"{machine}/{CORES}" for machine in machines]
    if has_device_physics:
        hosts = devices if case.placement == "colocated" else devices[max(1, case.num_devices // 4) :]
    rolling = tuple(hosts[i % len(hosts)] for i in range(num_simulators))
    few = max(1, case.num_devices // 4)
    if case.placement == "hybrid":  # physics on devices
        generators, others = devices[-few:], devices[:-few]
        simulators = tuple(others[i % len(others)] for i in range(num_simulators))
        return DevicePlacement("hybrid", simulators, tuple(generators), tuple(devices))
    if case.placement == "disaggregated":
        return DevicePlacement("disaggregated", rolling, tuple(devices[few:]), tuple(devices[:few]))
    return DevicePlacement("colocated", rolling, tuple(devices), tuple(devices))


def build_case(
    config: RunConfig, profile: PipelineProfile, cluster: Cluster, case: ForecastCase, max_inflight: int = 1
) -> PlannedHardware:
    """The modelled devices and settings of a case."""
    workers, train = config.workers, config.train
    sims, scale = workers.simulators, max(1, case.num_devices)
    num_simulators, batch_size = sims.num_workers * scale, sims.batch_size
    physics = profile.simulator.device > 0
    placement = place_case(case, cluster, num_simulators, has_device_physics=physics)
    needed = compute_min_staleness(workers.model_copy(update={"mode": case.mode}))
    global_batch = (workers.global_batch or train.tasks_per_update * train.group_size) * scale
    turns = mean(profile.turns) * NUM_UPDATES * global_batch
    stands_for = _choose_divisor(batch_size, turns / MAX_TURNS)
    hardware = PlannedHardware(
        num_envs=num_simulators * sims.env_batches * batch_size // stands_for,
        num_simulators=num_simulators,
        env_batches=sims.env_batches,
        num_generators=len(placement.generators),
        global_batch=max(1, global_batch // stands_for),
        rollout_epochs=workers.rollout_epochs,
        max_staleness=max(workers.max_staleness, needed),
        sync_interval=workers.sync_interval,
        max_batch=max(1, workers.generators.max_batch // stands_for),
        max_wait=workers.generators.max_wait_ms / 1000.0,
        shard=workers.generators.shard,
        max_inflight=workers.generators.max_inflight or max_inflight,
        weight_sync=workers.weight_sync,
        profile=profile,
        placement=placement,
        cores=cluster.cores,
        background=cluster.background,
        stands_for=stands_for,
        in_step=case.mode == "sync",
    )
    return shorten(hardware, MAX_CALLS, MAX_SHORTENED)


def count_calls(hardware: PlannedHardware) -> float:
    """Turns of environment batches in the whole run that a case models."""
    turns = mean(hardware.profile.turns) * NUM_UPDATES * hardware.global_batch
    return turns / max(1, hardware.batch_size)


def shorten(hardware: PlannedHardware, max_calls: int, at_most: float) -> PlannedHardware:
    """The same with shorter episodes and updates, if it has more calls. Episodes keep two turns at least."""
    at_most = max(1.0, min(at_most, min(hardware.profile.turns) / 2))
    factor = min(at_most, max(1.0, count_calls(hardware) / max_calls))
    return replace(hardware, shortened=max(factor, hardware.shortened))


def _choose_divisor(size: int, wanted: float) -> int:
    """The smallest divisor of `size` that is at least `wanted`, or `size`."""
    return next(k for k in range(1, size + 1) if size % k == 0 and (k >= wanted or k == size))


Pair = tuple[ForecastCase, PlannedHardware]
_KNOWN: dict[Pair, Forecast] = {}


def run_case(case: ForecastCase, hardware: PlannedHardware) -> Forecast:
    """Model a case. It repeats exactly, so the same one is modelled once."""
    if (case, hardware) not in _KNOWN:
        _KNOWN[case, hardware] = forecast_case(case, hardware)
    return _KNOWN[case, hardware]


def forecast_ahead(pool: CasePool | None, wanted: Iterable[Pair]) -> None:
    """Model cases that `run_case` will be asked for, all at once, if that pays for starting processes."""
    new = [pair for pair in dict.fromkeys(wanted) if pair not in _KNOWN]
    calls = {pair: count_calls(pair[1]) / pair[1].shortened for pair in new}
    if pool is not None and pool.size > 1 and len(new) > 1 and (pool.pids or sum(calls.values()) > MIN_CALLS):
        new.sort(key=lambda pair: -calls[pair])  # no long one at the end
        _KNOWN.update(zip(new, pool.run_all(new), strict=True))


def forecast_case(case: ForecastCase, hardware: PlannedHardware) -> Forecast:
    """The same, whether it is known or not."""
    num_updates = FEWER_UPDATES[case.mode] if hardware.shortened > 1 else NUM_UPDATES
    run = run_modelled(hardware, case.mode, num_updates, stale_data="weight")
    return Forecast(
        case,
        hardware,
        measure_throughput(run, hardware),
        run.busy,
        mean(run.staleness) if run.staleness else 0.0,
        max(run.staleness, default=0),
        run.mean_batch * hardware.stands_for,
        run.sync_s / run.elapsed,
        run.sync_s / max(run.num_syncs, 1) * hardware.shortened,
    )


def measure_throughput(run: ModelledRun, hardware: PlannedHardware) -> float:
    """Environment turns per second, after the first update and before the last."""
    return hardware.stands_for * run.measure_middle(1, 1)


def find_limits(forecast: Forecast) -> Forecast:
    """The same with `gains`: throughput without each part, over what it is."""
    whole = run_case(forecast.case, shorten(forecast.hardware, COMPARED_CALLS, COMPARED_SHORTENED))
    gains = {
        part: run_case(forecast.case, hardware).turns_per_s / whole.turns_per_s
        for part, hardware in _leave_out_parts(whole.hardware).items()
    }
    return replace(forecast, gains=gains)


def _list_comparisons(forecast: Forecast) -> list[Pair]:
    """What `find_limits` and `compare_weight_syncs` ask for."""
    hardware = shorten(forecast.hardware, COMPARED_CALLS, COMPARED_SHORTENED)
    pairs = [(forecast.case, one) for one in (hardware, *_leave_out_parts(hardware).values())]
    return [*pairs, _sync_otherwise(forecast)]


def _leave_out_parts(hardware: PlannedHardware) -> dict[str, PlannedHardware]:
    """The same devices, on which one part takes no time."""
    profile = hardware.profile
    free = ((1.0, 0.0),)
    without: dict[str, dict[str, object]] = {
        "simulators": {"simulator": profile.simulator.model_copy(update={"times": free, "reset_s": 0.0})},
        "generators": {"generator": profile.generator.model_copy(update={"times": free})},
        "trainers": {"trainer": profile.trainer.model_copy(update={"times": free}), "update_s": 0.0},
        "weights and gradients": {"weights": WeightTimes(num_bytes=0.0, bandwidth=profile.weights.bandwidth)},
        "driver": {"controller_s": 0.0},
        "switches": {"switch_s": 0.0},
    }
    return {
        part: replace(hardware, profile=profile.model_copy(update=change)) for part, change in without.items()
    }


def compare_weight_syncs(forecast: Forecast) -> dict[str, Forecast]:
    """The same case with either way of `workers.weight_sync`."""
    own = forecast.hardware.weight_sync
    found = {way: forecast if way == own else run_case(*_sync_otherwise(forecast)) for way in WEIGHT_SYNCS}
    return found


def _sync_otherwise(forecast: Forecast) -> Pair:
    other = next(way for way in WEIGHT_SYNCS if way != forecast.hardware.weight_sync)
    return forecast.case, replace(forecast.hardware, weight_sync=other)


def recommend_settings(
    forecast: Forecast,
    smaller: Forecast | None = None,
    num_rounds: int = 2,
    pool: CasePool | None = None,
) -> tuple[Forecast, dict[str, object]]:
    """Settings with a higher forecast (batches, waits, shards, environment batches), and that forecast.

    They are looked for on `smaller`, the same case on fewer devices, if it is given.
    """
    start = smaller or forecast
    best = run_case(start.case, shorten(start.hardware, COMPARED_CALLS, COMPARED_SHORTENED))
    chosen: dict[str, object] = {}
    for _ in range(num_rounds):
        before = best
        changes = list(_list_changes(before))
        for number, (name, value) in enumerate(changes):
            hardware = change_setting(best.hardware, name, value)
            if pool is not None and (start.case, hardware) not in _KNOWN:  # as many as there are processes
                near = changes[number : number + max(1, pool.size)]
                forecast_ahead(pool, [(start.case, change_setting(best.hardware, *one)) for one in near])
            other = run_case(start.case, hardware)
            if other.turns_per_s > 1.02 * best.turns_per_s:
                best, chosen[name] = other, value
        if best is before:
            break
    hardware = forecast.hardware
    for name, value in chosen.items():
        hardware = change_setting(hardware, name, value)
    better = run_case(forecast.case, hardware)
    return (better, chosen) if better.turns_per_s > 1.02 * forecast.turns_per_s else (forecast, {})


def choose_smaller(
    config: RunConfig, profile: PipelineProfile, cluster: Cluster, best: Forecast, max_inflight: int = 1
) -> Forecast | None:
    """The same case on one machine, if it is on several."""
    if best.case.num_devices <= cluster.per_machine:
        return None
    case = replace(best.case, num_devices=cluster.per_machine)
    return run_case(case, build_case(config, profile, cluster, case, max_inflight))


def change_setting(hardware: PlannedHardware, name: str, value: Any) -> PlannedHardware:
    """The same devices with another value of a setting."""
    match name:
        case "workers.generators.max_batch":
            return replace(hardware, max_batch=max(1, value // hardware.stands_for))
        case "workers.generators.max_wait_ms":
            return replace(hardware, max_wait=value / 1000)
        case "workers.generators.shard":
            return replace(hardware, shard=value)
        case "workers.weight_sync":
            return replace(hardware, weight_sync=value)
        case "workers.simulators.env_batches":
            return replace(hardware, env_batches=value)
    raise AssertionError(name)


def _list_changes(forecast: Forecast) -> Iterator[tuple[str, object]]:
    """One change each: the name of the setting, and its value. In step there is no queue to change."""
    hardware = forecast.hardware
    k, sims = hardware.stands_for, hardware.num_simulators
    if forecast.case.mode != "sync":
        for size in sorted({hardware.batch_size, hardware.num_envs // 2, hardware.num_envs}):
            if size:
                yield "workers.generators.max_batch", size * k
        call_s = hardware.profile.generator.compute_seconds(hardware.batch_size * k)
        for wait_s in (0.0, call_s / 4, call_s):
            yield "workers.generators.max_wait_ms", float(f"{1000 * wait_s:.2g}")
        if hardware.num_generators > 1:
            for shard in ("even", "by_latency"):
                yield "workers.generators.shard", shard
        for way in WEIGHT_SYNCS:
            yield "workers.weight_sync", way
    for batches in (1, 2, 4):
        if hardware.num_envs % (sims * batches) == 0:
            yield "workers.simulators.env_batches", batches


def forecast_run(
    config: RunConfig,
    profile: PipelineProfile,
    cluster: Cluster,
    *,
    max_inflight: int = 1,
    pool: CasePool | None = None,
) -> list[Forecast]:
    """Every case, the fastest of each size with its limits."""
    cases = list(list_cases(cluster, has_device_physics=profile.simulator.device > 0))
    pairs = [(case, build_case(config, profile, cluster, case, max_inflight)) for case in cases]
    forecast_ahead(pool, pairs)
    rows = [run_case(*pair) for pair in pairs]
    fastest = [choose_best(rows, size) for size in cluster.sizes]
    forecast_ahead(
        pool, [pair for best in fastest for pair in (*_list_comparisons(best), _sync_otherwise(best))]
    )
    for best in fastest:
        rows[rows.index(best)] = find_limits(best)
    return rows


def choose_best(rows: Sequence[Forecast], size: int) -> Forecast:
    """The fastest case with this many devices; of nearly equal ones the one with less staleness."""
    mine = [row for row in rows if row.case.num_devices == size]
    most = max(row.turns_per_s for row in mine)
    near = [row for row in mine if row.turns_per_s >= 0.98 * most]
    return min(near, key=lambda row: (row.mean_staleness, -row.turns_per_s))
