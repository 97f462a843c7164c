"""Compares engine and trainer on fresh samples in every update; what is not rounding stops the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepwell.config.outputs import ParityConfig
from stepwell.core import LogprobGaps, ParityError
from stepwell.core.logprob_gaps import MeasureErrors
from stepwell.engines.parity import ParityMonitor


class ParityCheck:
    """The check of one run. `read_dtype` gives the engine's, once it has one; `note` reports outliers."""

    def __init__(
        self, config: ParityConfig, read_dtype: Callable[[], Any], note: Callable[[str], None]
    ) -> None:
        self._config, self._read_dtype, self._note = config, read_dtype, note
        self._monitor: ParityMonitor | None = None

    def judge_gaps(self, place: str, gaps: LogprobGaps, measure_errors: MeasureErrors) -> None:
        """Judge the gaps of the update at `place`; a fault is an error, or a note if settings say so."""
        if self._monitor is None:
            dtype = str(self._read_dtype()).removeprefix("torch.")
            self._monitor = ParityMonitor(dtype, self._config.tolerance)
        verdict = self._monitor.judge_gaps(gaps, measure_errors)
        if verdict.outlier is not None:
            self._note(f"{place}: outlier between engine and trainer: {verdict.outlier}")
        if verdict.fault is None:
            return
        text = f"engine and trainer disagree about fresh samples: {gaps}; {verdict.fault}"
        if self._config.on_mismatch == "stop":
            raise ParityError(
                f"{place}: {text}. The ratio of the loss would be wrong: "
                "compare dtypes and kernels of policy and engine, or set parity.tolerance if you know why. "
                "The weights were not changed"
            )
        self._note(f"{place}: {text}")
