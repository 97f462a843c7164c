"""What a run measures, stores and shows: evaluations, checkpoints, pool, monitors, the parity check."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stepwell.config.base import Settings


class EvalConfig(Settings):
    """Evaluation on held-out tasks, the same tasks and decoding every time."""

    every: int = Field(20, ge=0, description="updates between evaluations; 0: only before and after")
    num_tasks: int = Field(128, ge=0, description="distinct held-out tasks; 0: no evaluation")
    samples_per_task: int = Field(1, ge=1, description="attempts per task; pass@k is reported up to it")
    temperature: float = Field(0.0, ge=0, description="temperature of sampling; 0 is greedy")
    stop_at: float | None = Field(None, gt=0, le=1, description="stop early at this held-out success")
    patience: int | None = Field(None, ge=1, description="evaluations without a new best before stopping")


class CheckpointConfig(Settings):
    """Checkpoints and disk space."""

    every: int = Field(50, ge=0, description="updates between checkpoints; 0: only the last one")
    every_minutes: float = Field(
        10.0, ge=0, description="a checkpoint is also written after this many minutes without one; 0: never"
    )
    keep: int = Field(2, ge=1, description="most recent checkpoints kept, besides the best one")
    trajectories_mb: float = Field(
        200.0, ge=0, description="disk space for trajectories; the oldest are removed first"
    )
    credit_mb: float = Field(
        50.0,
        ge=0,
        description="disk space for values, advantages and ratios by token (`credit.db`); the oldest updates "
        "are removed first; 0: none are stored",
    )


class RunPoolConfig(Settings):
    """Where a run stores its trajectories."""

    url: str | None = Field(
        None, description="path or URL of a pool shared with others; None: `pool/` in the run's folder"
    )
    durable: Literal["process", "power"] = Field(
        "process", description="what a commit survives: the kill of any process, or also a power cut"
    )
    blobs: str | None = Field(
        None, description="folder for images of the pool at `url`; None: beside it, if it is a file"
    )


class MonitorConfig(Settings):
    """Outputs of figures besides `metrics.jsonl`."""

    console: bool = Field(True, description="progress on the terminal, or plain lines without one")
    tensorboard: bool = Field(True, description="curves for TensorBoard in the run's folder")
    wandb: bool = Field(False, description="curves for Weights & Biases; needs the package wandb")
    trackio: bool = Field(False, description="figures in Trackio's local database; needs the extra trackio")
    mlflow: bool = Field(
        False,
        description="figures in MLflow: in `mlflow.db` beside the run's folder, or where MLFLOW_TRACKING_URI "
        "points; "
        "needs the extra mlflow",
    )
    report: bool = Field(True, description="write report.html at the end")


class ParityConfig(Settings):
    """The check, in every update, that engine and trainer agree on fresh samples."""

    tolerance: float | None = Field(
        None,
        gt=0,
        description="difference of a logprob that at most one token in a thousand may exceed; the mean may "
        "reach a tenth of it. None: 0.001 in float32, 1 in bfloat16",
    )
    on_mismatch: Literal["stop", "warn"] = Field(
        "stop",
        description="what to do about a difference that is not rounding; a single outlier is only reported",
    )
