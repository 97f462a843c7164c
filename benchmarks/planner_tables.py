"""RL-VLA³'s tables 1 to 5 as data, and the modelled cluster that stands for its machines.

Left out: table 1 (b), whose name names two models and no environment, and the two hybrid columns of table 3
whose flags look swapped (349.32 is marked as fully asynchronous, 454.63 as asynchronous in rollout only).
Table 1 (c) and (d) repeat columns of tables 3 and 5.

One modelled environment stands for a whole environment batch of the paper: its environments are vectorised
and step together. Where they do so on the GPU, a call has a fixed time besides (`call`), whatever the size of
the batch. Throughput counts environment turns (inferred action chunks) per second.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell.config.profile import (
    GeneratorTimes,
    NetworkTimes,
    PipelineProfile,
    SimulatorTimes,
    TrainerTimes,
    WeightTimes,
)
from stepwell.workers.modelled import run_modelled
from stepwell.workers.pipeline import ModelledRun
from stepwell.workers.placement import DevicePlacement
from stepwell.workers.planned_hardware import PlannedHardware

PER_MACHINE = 8
MODE_NAMES = {
    "sync": "baseline",
    "rollout_async": "+ rollout async",
    "train_async": "+ train async",
    "stream": "+ rollout & train async",
}


@dataclass(frozen=True)
class Column:
    """One column of a table: its settings, and the throughput that the paper reports."""

    mode: str
    placement: str
    num_envs: int
    env_batches: int
    reported: float
    num_devices: int = 8
    is_calibrated: bool = False

    @property
    def label(self) -> str:
        return f"{self.placement}, {self.env_batches} batches, {MODE_NAMES[self.mode]}" + (
            f", {self.num_devices} GPUs" if self.num_devices != PER_MACHINE else ""
        )


@dataclass(frozen=True)
class PaperTable:
    """A table: what was run, and its columns. `free` are the parameters that its calibration may change.

    `start` is the end of an earlier calibration, so that the next one takes seconds; from parameters that are
    wrong by a factor of two it takes minutes.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    start: dict[str, float]
    free: tuple[str, ...]
    on_device: bool  # physics on the GPU, or on the cores
    assumed: dict[str, float] = field(default_factory=dict)


def _columns(calibrated: tuple[int, ...], *rows: tuple[str, str, int, int, float]) -> tuple[Column, ...]:
    return tuple(Column(*row, is_calibrated=i in calibrated) for i, row in enumerate(rows))


CO, HY = "colocated", "hybrid"
S, R, F = "sync", "rollout_async", "stream"
TABLES = (
    PaperTable(
        "table2",
        "ManiSkill + π0.5, GRPO",
        _columns(
            (0, 2, 5, 7),
            (S, CO, 2048, 1, 191.51),
            (S, CO, 2048, 2, 187.76),
            (R, CO, 2048, 2, 170.61),
            (S, CO, 2048, 4, 178.76),
            (R, CO, 2048, 4, 155.82),
            (S, HY, 3264, 2, 143.10),
            (R, HY, 3264, 2, 154.40),
            (F, HY, 3264, 2, 255.58),
        ),
        {"step": 0.00901, "sample": 0.00496, "learn": 0.01846, "switch": 0.6256, "call": 0.5463},
        ("step", "sample", "learn", "switch", "call"),
        on_device=True,
    ),
    PaperTable(
        "table3",
        "RoboCasa + π0, PPO",
        _columns(
            (0, 2, 3, 4),
            (S, CO, 160, 1, 409.6),
            (S, CO, 160, 2, 379.25),
            (R, CO, 160, 2, 437.60),
            (F, CO, 160, 2, 505.68),
            (S, HY, 168, 2, 332.92),
            (R, HY, 168, 2, 355.64),
            (F, HY, 168, 2, 455.01),
        ),
        {"step": 0.01099, "sample": 0.0004, "learn": 0.00435, "call": 0.01531},
        ("step", "sample", "learn", "call"),
        on_device=True,
    ),
    PaperTable(
        "table4",
        "LIBERO + GR00T N1.5, PPO",
        _columns(
            (0, 2, 6),
            (S, CO, 256, 1, 217.27),
            (S, CO, 256, 2, 242.30),
            (R, CO, 256, 2, 297.38),
            (F, CO, 256, 2, 349.01),
            (S, CO, 256, 4, 240.13),
            (R, CO, 256, 4, 344.47),
            (F, CO, 256, 4, 423.39),
        ),
        {"step": 0.0111, "sample": 0.00855, "learn": 0.0147, "switch": 0.0},
        ("step", "sample", "learn"),
        on_device=False,
    ),
    PaperTable(
        "table5",
        "Meta-World + π0, PPO",
        _columns(
            (0, 2, 6, 7, 9),
            (S, CO, 512, 1, 130.01),
            (S, CO, 512, 2, 143.97),
            (R, CO, 512, 2, 165.54),
            (F, CO, 512, 2, 209.81),
            (S, CO, 512, 4, 144.70),
            (R, CO, 512, 4, 197.27),
            (F, CO, 512, 4, 268.00),
            (S, HY, 768, 2, 92.29),
            (R, HY, 768, 2, 113.62),
            (F, HY, 768, 2, 166.94),
        ),
        {"step": 0.0211, "sample": 0.0085, "learn": 0.0246, "switch": 0.0},
        ("step", "sample", "learn"),
        on_device=False,
    ),
    PaperTable(
        "table1a",
        "LIBERO + π0.5, 8 to 32 GPUs",
        tuple(
            Column(mode, HY, 32 * gpus, 2, value, gpus, is_calibrated=gpus != 16)
            for gpus, row in (
                (8, (162.75, 229.68, 383.40)),
                (16, (307.84, 441.49, 713.38)),
                (32, (457.23, 737.46, 1120.91)),
            )
            for mode, value in zip((S, R, F), row, strict=True)
        ),
        {"step": 0.01541, "sample": 0.0036, "learn": 0.01226, "switch": 0.0, "bandwidth": 71.96},
        ("step", "sample", "learn", "bandwidth"),
        on_device=False,
    ),
)
ASSUMED = {
    "simulator_on_device": 0.7,  # share of the GPU that GPU physics keeps busy
    "generator_on_device": 1.0,
    "trainer_on_device": 0.5,  # the rest is communication and data
    "weight_gigabytes": 6.6,  # 3.3 billion parameters in 16 bits
    "samples_per_optimizer_step": 1024,
    "passes": 2,
}


def list_devices(count: int) -> list[str]:
    """GPUs of machines with eight each."""
    return [f"node{i // PER_MACHINE}/cuda:{i % PER_MACHINE}" for i in range(count)]


def place_workers(placement: str, count: int, rollout_share: float = 0.75) -> DevicePlacement:
    """Hybrid: three quarters of the GPUs have simulators, one has generators, all have a trainer.

    Disaggregated: `rollout_share` of the GPUs have a simulator and a generator, the others a trainer. GPUs of
    one role are spread over all machines.
    """
    devices = list_devices(count)
    if placement == "hybrid":
        simulators = tuple(d for i, d in enumerate(devices) if i % 4 != 3)
        return DevicePlacement(
            placement, simulators, tuple(d for d in devices if d not in simulators), tuple(devices)
        )
    if placement == "disaggregated":
        num_rollout = round(count * rollout_share)
        rollout = tuple(devices[i * count // num_rollout] for i in range(num_rollout))
        return DevicePlacement(
            placement, rollout, rollout, tuple(device for device in devices if device not in rollout)
        )
    return DevicePlacement(placement, tuple(devices), tuple(devices), tuple(devices))


def build_hardware(
    column: Column,
    parameters: dict[str, float],
    spread: float,
    *,
    on_device: bool,
    turns: int,
    epochs: int,
    rollout_share: float = 0.75,
    controller_s: float = 0.0,
    seed: int = 0,
) -> tuple[PlannedHardware, float]:
    """The modelled cluster of a column, and how many environments one modelled environment stands for."""
    placement = place_workers(column.placement, column.num_devices, rollout_share)
    num_places = len(placement.simulators) * column.env_batches
    each = column.num_envs / num_places
    steps = column.num_envs * epochs * turns
    optimizer_steps = max(1, round(steps * ASSUMED["passes"] / ASSUMED["samples_per_optimizer_step"]))
    one_s = parameters["sample"] * each
    profile = PipelineProfile(
        simulator=SimulatorTimes(
            times=((1, parameters["step"] * each + parameters.get("call", 0.0)),),
            spread=spread,
            cores=0,
            device=ASSUMED["simulator_on_device"] if on_device else 0,
        ),
        generator=GeneratorTimes(times=((1, one_s),), cores=0, device=ASSUMED["generator_on_device"]),
        trainer=TrainerTimes(
            times=((1, parameters["learn"] * each),),
            cores=0,
            device=ASSUMED["trainer_on_device"],
            optimizer_steps=optimizer_steps,
        ),
        weights=WeightTimes(num_bytes=1e9 * ASSUMED["weight_gigabytes"], bandwidth=1e14),
        network=NetworkTimes(latency_s=2e-5, bandwidth=1e9 * parameters.get("bandwidth", 1e5)),
        switch_s=parameters["switch"],
        controller_s=controller_s * each,
        turns=(turns,),
    )
    hardware = PlannedHardware(
        num_envs=num_places,
        num_simulators=len(placement.simulators),
        env_batches=column.env_batches,
        num_generators=len(placement.generators),
        global_batch=num_places * epochs,
        max_staleness=1,
        max_batch=1,
        max_wait=0.0,
        weight_sync="blocking",
        seed=seed,
        profile=profile,
        placement=placement,
        cores=1e9,
    )
    return hardware, each


def predict_run(
    column: Column, parameters: dict[str, float], spread: float, *, num_updates: int = 4, **shape: object
) -> tuple[float, ModelledRun]:
    """Environment turns per second in the middle of a modelled run, and the run."""
    hardware, each = build_hardware(column, parameters, spread, **shape)  # type: ignore[arg-type]
    run = run_modelled(hardware, column.mode, num_updates)  # type: ignore[arg-type]
    return each * run.measure_middle(1, 1), run
