"""Compares engine and trainer on fresh samples in every update; what is not rounding stops the run.

Four questions are asked before any weight changes. Three have exact answers:

    weights      does the engine still hold what was published?        fingerprints (`engines/weights.py`)
    positions    did it read every token where the trainer reads it?   marks (`training/position_check.py`)
    rotation     does it rotate by the same angles there?              tables (`engines/rotation_check.py`)

Does it then compute as the trainer does? The logprobs of the samples tell, as far as rounding allows
(`engines/parity.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from stepwell.config.outputs import ParityConfig
from stepwell.core import LogprobGaps, ParityError
from stepwell.core.errors import WeightsError
from stepwell.core.logprob_gaps import MeasureErrors
from stepwell.engines.parity import ParityMonitor

if TYPE_CHECKING:
    from stepwell.runs.build.runner import EpisodeRunner


@dataclass(frozen=True, slots=True)
class UpdateChecks:
    """The checks of one update, as the trainer calls them. They raise, or report, what they find."""

    judge_weights: Callable[[], None]
    judge_positions: Callable[[str], None]
    judge_gaps: Callable[[LogprobGaps, MeasureErrors], None]
    read_figures: Callable[[], dict[str, float]]


class ParityCheck:
    """The check of one run. `read_runner` gives what plays episodes; `note` reports outliers."""

    def __init__(
        self, config: ParityConfig, read_runner: Callable[[], EpisodeRunner], note: Callable[[str], None]
    ) -> None:
        self._config, self._read_runner, self._note = config, read_runner, note
        self._monitor: ParityMonitor | None = None

    def start_update(self, update: int) -> UpdateChecks:
        """The checks of an update."""
        place = f"update {update}"
        return UpdateChecks(
            partial(self.judge_weights, place),
            partial(self.judge_positions, place),
            partial(self.judge_gaps, place),
            self.read_figures,
        )

    def judge_weights(self, place: str) -> None:
        """Compare what samples with what was published; a difference is an error, or a note."""
        try:
            self._read_runner().check_weights()
        except WeightsError as error:
            text = f"engine and trainer disagree about weights or rotary tables: {error}"
            if self._config.on_mismatch == "stop":
                raise ParityError(f"{place}: {text}. The weights were not changed") from error
            self._note(f"{place}: {text}")

    def judge_positions(self, place: str, fault: str) -> None:
        """Steps that engine and trainer read at different positions: an error, or a note."""
        text = f"engine and trainer disagree about positions: {fault}"
        if self._config.on_mismatch == "stop":
            raise ParityError(
                f"{place}: {text}. The ratio of the loss would be wrong: set engine.forward to "
                '"transformers" or engine.attention_kernel to "torch" to see which part counts wrongly. '
                "The weights were not changed"
            )
        self._note(f"{place}: {text}")

    def judge_gaps(self, place: str, gaps: LogprobGaps, measure_errors: MeasureErrors) -> None:
        """Judge the gaps of the update at `place`; a fault is an error, or a note if settings say so."""
        fault = self._find_logprob_fault(place, gaps, measure_errors)
        if fault is None:
            return
        text = f"engine and trainer disagree about fresh samples: {gaps}; {fault}"
        if self._config.on_mismatch == "stop":
            raise ParityError(
                f"{place}: {text}. The ratio of the loss would be wrong: "
                "compare dtypes and kernels of policy and engine, or set parity.tolerance if you know why. "
                "The weights were not changed"
            )
        self._note(f"{place}: {text}")

    def read_figures(self) -> dict[str, float]:
        """How far engine and trainer were from the truth in the last update; only in 16 bits."""
        errors = None if self._monitor is None else self._monitor.errors
        if errors is None:
            return {}
        return {
            "parity/engine_farther": errors.engine_farther,
            "parity/engine_error": errors.mean_engine,
            "parity/trainer_error": errors.mean_trainer,
        }

    def _find_logprob_fault(self, place: str, gaps: LogprobGaps, measure_errors: MeasureErrors) -> str | None:
        if self._monitor is None:
            dtype = str(self._read_runner().dtype).removeprefix("torch.")
            self._monitor = ParityMonitor(dtype, self._config.tolerance)
        verdict = self._monitor.judge_gaps(gaps, measure_errors)
        if verdict.outlier is not None:
            self._note(f"{place}: outlier between engine and trainer: {verdict.outlier}")
        return verdict.fault
