"""A run as an object: the contents of its folder as attributes.

A `Run` holds only the path of its folder. It can be opened again from the folder (`load_run`) in another
process, and it shows the present state of a run that is still under way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.core.errors import ConfigError
from stepwell.monitors import jsonl
from stepwell.monitors.base import LogEntry
from stepwell.monitors.curves import draw_learning_curve
from stepwell.monitors.summary import Summary, describe_success, read_summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stepwell.policies import CausalLMPolicy
    from stepwell.policies.vla import VLAPolicy

CONFIG_FILE = "config.toml"


@dataclass(frozen=True)
class Run:
    """A training run, finished or not, by its folder."""

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))  # a notebook may give a string

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def config(self) -> RunConfig:
        """Every setting of the run."""
        return load_config(self.folder / CONFIG_FILE)

    @property
    def summary(self) -> Summary | None:
        """The figures of `summary.json`; None before the run has ended for the first time."""
        return read_summary(self.folder)

    @property
    def status(self) -> str:
        """`finished`, `stopped_early`, `interrupted`, `failed`, or `unfinished`."""
        summary = self.summary
        return "unfinished" if summary is None else summary.status

    @property
    def success(self) -> float | None:
        """Held-out success of the last evaluation; None before the first."""
        return next((entry.values["success"] for entry in reversed(self.evaluations)), None)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of `success`."""
        return next(((e.values["low"], e.values["high"]) for e in reversed(self.evaluations)), None)

    @property
    def success_before(self) -> float | None:
        """Held-out success before the first update."""
        return next((entry.values["success"] for entry in self.evaluations if entry.update == 0), None)

    @property
    def evaluations(self) -> list[LogEntry]:
        """The evaluations on held-out tasks, in order."""
        return [entry for entry in self.entries if entry.kind == "eval"]

    @property
    def entries(self) -> list[LogEntry]:
        """All records of the run, as in `metrics.jsonl`."""
        return jsonl.read_entries(self.folder / jsonl.FILE_NAME)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Figures as one row per update and evaluation: `pandas.DataFrame(run.metrics)`."""
        keys = ("kind", "update", "time_s", "env_steps")
        entries = [entry for entry in self.entries if entry.kind != "event"]
        return [{**{key: getattr(entry, key) for key in keys}, **entry.values} for entry in entries]

    @property
    def notes(self) -> list[str]:
        """Notes of the run: warnings, changed settings, the reason of an early end."""
        return [entry.text for entry in self.entries if entry.kind == "event"]

    @property
    def checkpoint(self) -> Path:
        """The checkpoint to use: the best evaluated one, else the last."""
        from stepwell.runs.evaluation.evaluate import choose_checkpoint

        return choose_checkpoint(self.folder)[0]

    @cached_property
    def policy(self) -> CausalLMPolicy | VLAPolicy:
        """The trained policy, opened from `checkpoint`; `run.policy.model` is the torch module."""
        return open_checkpoint(self.checkpoint, self.config)

    @property
    def report(self) -> Path:
        """The page with curves and replays; open it in a browser."""
        return self.folder / "report.html"

    def plot(
        self,
        *others: Run,
        metrics: tuple[str, ...] = ("success", "reward"),
        over: str = "update",
        labels: tuple[str, ...] | None = None,
    ) -> Figure:
        """Curves of this run, and of others beside it: held-out success, then `metrics` while training.

        `over` is `update`, `env_steps` or `time_s`. Needs matplotlib (`pip install 'stepwell[plot]'`).
        """
        from stepwell.api.plot import plot_runs

        return plot_runs((self, *others), metrics=metrics, over=over, labels=labels)

    def export(
        self, to: str | Path, *, checkpoint: str | None = None, licence: str = "other", private: bool = False
    ) -> str:
        """Write the policy as a Hugging Face directory with a model card, or upload it to `hub:org/name`.

        Returns where it went. `checkpoint` names another one than `self.checkpoint`, such as `update-000050`.
        """
        from stepwell.runs.export.policy import export_run

        return export_run(self.folder, str(to), checkpoint=checkpoint, licence=licence, private=private)

    def __repr__(self) -> str:
        summary = self.summary
        ending = self.status if summary is None else f"{self.status}, {describe_success(summary)}"
        return f"Run({str(self.folder)!r}): {ending}"

    def _repr_html_(self) -> str:
        """In a notebook: the state, and the curve of held-out success as far as it is known."""
        measured = self.evaluations
        curve = draw_learning_curve(measured, "env_steps", [], 480) if measured else ""
        return f"<code>{escape(repr(self))}</code>{curve}"


def load_run(folder: str | Path | Run) -> Run:
    """The run in a folder, finished or not."""
    if isinstance(folder, Run):
        return folder
    path = Path(folder).expanduser()
    if not (path / CONFIG_FILE).is_file():
        raise ConfigError(f"{folder} is not a run folder: it has no {CONFIG_FILE}")
    return Run(path)


def find_run(path: str | Path) -> Run | None:
    """The run that a run folder or one of its checkpoints belongs to; None for any other path or model."""
    folder = Path(path).expanduser()
    candidates = (folder, *folder.absolute().parents[:2])
    return next((Run(each) for each in candidates if (each / CONFIG_FILE).is_file()), None)


def open_checkpoint(path: Path, config: RunConfig) -> CausalLMPolicy | VLAPolicy:
    """The policy of a checkpoint, without critic and reference. Its files say which kind of policy it is."""
    from stepwell.policies.kinds import holds_robot_policy, open_policy
    from stepwell.policies.model_resolver import ADAPTER_FILE

    if holds_robot_policy(path):
        from stepwell.policies.vla import VLAPolicy

        return VLAPolicy.from_pretrained(path, dtype=config.policy.dtype, device=config.policy.device)
    changes: dict[str, Any] = {"model": str(path), "critic": "none", "reference": False}
    if (path / ADAPTER_FILE).is_file():
        changes["lora"] = None
    return open_policy(config.policy.model_copy(update=changes))
