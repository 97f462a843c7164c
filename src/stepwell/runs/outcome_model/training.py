"""`stepwell orm train`: from labelled roll-outs to a calibrated outcome model in a folder.

    roll-outs ─► split by task ─► epochs, each kept in DIR.training/ ─► best weights ─► calibration ─► DIR

A command that was killed continues after its last whole epoch if it is given again with the same data and
settings, and ends with the same bytes; one that had come to its end changes nothing. Anything else in
`DIR.training/` is refused.

The validation tasks stop training early and fit the calibration. The figures in the folder are therefore a
little optimistic; `stepwell orm eval` on other roll-outs gives honest ones.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from stepwell.core import ConfigError
from stepwell.core.disk import rename_durably
from stepwell.policies.numerics import set_numerics
from stepwell.rewards.outcome_model.calibration_fit import fit_calibration
from stepwell.rewards.outcome_model.measures import measure_judge
from stepwell.rewards.outcome_model.question import TEMPLATE_VERSION, TextLimits
from stepwell.runs.outcome_model.model import FILE_NAME, TRAINING, OutcomeModel, name_folder
from stepwell.runs.outcome_model.rollouts import LabelledRollout, split_by_task
from stepwell.training.answer_model import AnswerTraining, EpochFigures, LabelledPrompt, TrainingState

_STATE = "state.pt"
Tell = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class OutcomeTraining:
    """How an outcome model is trained."""

    model: str = "tiny-0.3m"
    limits: TextLimits = field(default_factory=TextLimits)
    answers: AnswerTraining = field(default_factory=AnswerTraining)
    validation_share: float = 0.2
    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"


def train_outcome_model(
    rollouts: Sequence[LabelledRollout],
    to: Path,
    settings: OutcomeTraining,
    *,
    tell: Tell = lambda num_done, total: None,
    note: Callable[[str], None] = lambda text: None,
) -> OutcomeModel:
    """Train, calibrate and write an outcome model; continues where the same command was stopped."""
    partial, key = to.with_name(f"{to.name}.training"), _make_key(rollouts, settings)
    if _read_key(to) == key:
        shutil.rmtree(partial, ignore_errors=True)
        note(f"{to} was complete")
        return OutcomeModel.load(to, device=settings.device)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"--to: {to} exists and is not empty; choose another directory")
    set_numerics()
    train, validation = split_by_task(rollouts, settings.validation_share, settings.seed)
    model = OutcomeModel.start_from(
        settings.model, settings.limits, seed=settings.seed, dtype=settings.dtype, device=settings.device
    )
    state = _read_state(partial, key)
    if state.epoch:
        note(f"continuing after epoch {state.epoch} of {partial}")
    shown, held_out = label_prompts(model, train), label_prompts(model, validation)
    epochs = model.answers.train_epochs(
        shown, held_out, settings.answers, settings.seed, state=state, tell=tell
    )
    for kept in epochs:
        _write_state(partial, key, kept)
        last = kept.history[-1]
        note(
            f"epoch {last.epoch}: loss {last.train_loss:.3f}, validation loss {last.loss:.3f}, "
            f"right {last.accuracy:.3f}"
        )
    _calibrate(model, train, validation, held_out, state, settings)
    model.save(to, key)
    model.name = name_folder(to)
    shutil.rmtree(partial, ignore_errors=True)
    return model


def label_prompts(model: OutcomeModel, rollouts: Sequence[LabelledRollout]) -> list[LabelledPrompt]:
    """The questions about roll-outs with the checker's answers."""
    prompts = model.write_prompts([one.trajectory for one in rollouts])
    return [LabelledPrompt(ids, one.is_success) for ids, one in zip(prompts, rollouts, strict=True)]


def _calibrate(
    model: OutcomeModel,
    train: Sequence[LabelledRollout],
    validation: Sequence[LabelledRollout],
    held_out: Sequence[LabelledPrompt],
    state: TrainingState,
    settings: OutcomeTraining,
) -> None:
    """Fit the calibration on the validation tasks, and keep figures of the training."""
    labels = [one.is_yes for one in held_out]
    differences = model.answers.compare_answers([one.prompt_ids for one in held_out])
    model.calibration = fit_calibration(differences, labels)
    model.figures = {
        "model": settings.model,
        "num_train": len(train),
        "num_validation": len(validation),
        "train_success_share": sum(one.is_success for one in train) / len(train),
        "best_epoch": state.best_epoch,
        "epochs": [asdict(one) for one in state.history],
        "validation": asdict(measure_judge(model.calibration.convert(differences), labels)),
    }


def _make_key(rollouts: Sequence[LabelledRollout], settings: OutcomeTraining) -> str:
    """Equal exactly for the same data and settings."""
    identity = [TEMPLATE_VERSION, asdict(settings), [(one.trajectory.id, one.is_success) for one in rollouts]]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _read_key(folder: Path) -> str:
    """The key of the training that made the model in a folder; empty where there is none."""
    is_ours = (folder / FILE_NAME).is_file() and (folder / TRAINING).is_file()
    return str(json.loads((folder / TRAINING).read_text())["key"]) if is_ours else ""


def _write_state(folder: Path, key: str, state: TrainingState) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kept: dict[str, Any] = {
        "key": key,
        "epoch": state.epoch,
        "best_epoch": state.best_epoch,
        "best_loss": state.best_loss,
        "best_weights": state.best_weights,
        "weights": state.weights,
        "optimizer": state.optimizer,
        "history": [asdict(one) for one in state.history],
    }
    fresh = folder / f".{_STATE}.new"
    torch.save(kept, fresh)
    rename_durably(fresh, folder / _STATE)


def _read_state(folder: Path, key: str) -> TrainingState:
    """The state of the same command's last whole epoch; a fresh one if there is none."""
    file = folder / _STATE
    if not file.is_file():
        return TrainingState()
    stored = torch.load(file, weights_only=True)
    if stored.pop("key") != key:
        raise ConfigError(
            f"{folder} holds a training with other roll-outs or settings; remove that folder to start "
            "afresh, or choose another --to"
        )
    history = [EpochFigures(**one) for one in stored.pop("history")]
    return TrainingState(**stored, history=history)
