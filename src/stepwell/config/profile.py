"""The profile of a pipeline: how long its parts take, as a small TOML file.

`stepwell plan CONFIG --measure --save-profile FILE` writes one, `--profile FILE` reads it. Edit the numbers
to plan for hardware that you do not have yet.

    [generator]
    times = [[1, 0.012], [8, 0.014], [64, 0.035]]    # samples in one call, seconds
    device = 0.9                                      # share of its device that a call keeps busy

Times between two counts are interpolated; beyond the last they grow with the slope of the last piece.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError, field_validator

from stepwell.config.base import Settings
from stepwell.config.writing import dump_config
from stepwell.core.errors import ConfigError

Point = tuple[float, float]


class CallTimes(Settings):
    """How long a call takes by its size, and what it occupies meanwhile."""

    times: tuple[Point, ...] = Field(((1.0, 0.0),), description="(count, seconds), rising counts")
    spread: float = Field(0.0, ge=0, description="sigma of log-normal times, of one environment or one call")
    cores: float = Field(1.0, ge=0, description="CPU cores that a call keeps busy; 0: it only waits")
    device: float = Field(1.0, ge=0, le=1, description="share of its accelerator that a call keeps busy")

    @field_validator("times")
    @classmethod
    def check_times(cls, times: tuple[Point, ...]) -> tuple[Point, ...]:
        """Refuse what cannot be interpolated."""
        counts = [count for count, _ in times]
        if not times or counts != sorted(set(counts)) or any(seconds < 0 for _, seconds in times):
            raise ValueError("give at least one (count, seconds), with rising counts and no negative time")
        return times

    def compute_seconds(self, count: float) -> float:
        """The mean time of a call of this size."""
        if count <= 0:
            return 0.0
        if len(self.times) == 1:
            return self.times[0][1] * count / self.times[0][0]
        for (low, low_s), (high, high_s) in zip(self.times, self.times[1:], strict=False):
            if count <= high or (high, high_s) == self.times[-1]:
                return max(0.0, low_s + (high_s - low_s) * (count - low) / (high - low))
        raise AssertionError


class SimulatorTimes(CallTimes):
    """A step of this many environments of one batch."""

    device: float = Field(0.0, ge=0, le=1, description="share of its accelerator; 0: physics on the cores")
    reset_s: float = Field(0.0, ge=0, description="of one environment")
    at_once: bool = Field(False, description="environments of a batch wait together: the slowest counts")


class GeneratorTimes(CallTimes):
    """An inference call of this many samples."""


class TrainerTimes(CallTimes):
    """An update from this many steps on one device, all its passes included."""

    stale_share: float = Field(
        0.0, ge=0, description="what is added for data that are versions behind: logprobs of present weights"
    )
    optimizer_steps: int = Field(1, ge=1, description="of an update; ranks exchange gradients after each")


class WeightTimes(Settings):
    """The way of new weights from the trainer to the generators, in its order.

    With `workers.weight_sync = "blocking"` the trainer waits for all of it, otherwise for `copy_s` alone.
    """

    num_bytes: float = Field(0.0, ge=0, description="of what is trained, as it travels")
    copy_s: float = Field(0.0, ge=0, description="the trainer copies its weights, and waits for that")
    mark_s: float = Field(0.0, ge=0, description="the copy is marked, on a core of the trainer's machine")
    bandwidth: float = Field(1e10, gt=0, description="bytes per second between devices of one machine")
    load_s: float = Field(
        0.0, ge=0, description="a generator takes and checks them, on a core of its machine, while it samples"
    )
    swap_s: float = Field(0.0, ge=0, description="a generator puts them into its engine and cannot sample")


class NetworkTimes(Settings):
    """Between machines."""

    latency_s: float = Field(5e-5, ge=0, description="one way")
    bandwidth: float = Field(1.25e9, gt=0, description="bytes per second of one machine")
    request_bytes: float = Field(0.0, ge=0, description="of one environment's observation or action")


class PipelineProfile(Settings):
    """All times that a forecast needs."""

    name: str = Field("", description="what was measured")
    machine: str = Field("", description="where")
    simulator: SimulatorTimes = Field(default_factory=SimulatorTimes)
    generator: GeneratorTimes = Field(default_factory=GeneratorTimes)
    trainer: TrainerTimes = Field(default_factory=TrainerTimes)
    weights: WeightTimes = Field(default_factory=WeightTimes)
    network: NetworkTimes = Field(default_factory=NetworkTimes)
    switch_s: float = Field(0.0, ge=0, description="of a device that turns from one kind of work to another")
    controller_s: float = Field(0.0, ge=0, description="of the process that drives all, per environment turn")
    update_s: float = Field(0.0, ge=0, description="of the same process per update, besides learning")
    turns: tuple[int, ...] = Field((10,), description="turns of observed episodes, drawn from")
    actions_per_turn: float = Field(1.0, gt=0, description="environment steps of a turn: a chunk of a robot")

    @classmethod
    def read_file(cls, path: Path) -> Self:
        """The profile in a TOML file."""
        if not path.is_file():
            raise ConfigError(f"{path}: there is no such profile; `stepwell plan CONFIG --measure` makes one")
        try:
            return cls.model_validate(tomllib.loads(path.read_text()))
        except (tomllib.TOMLDecodeError, ValidationError) as error:
            raise ConfigError(f"{path}: not a profile: {error}") from error

    def write_file(self, path: Path) -> None:
        """The same as TOML."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump_config(self))
