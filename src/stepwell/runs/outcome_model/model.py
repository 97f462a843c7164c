"""An outcome model in its folder: a language model, the words of its question, and its calibration.

    DIR/  config.json, model.safetensors, tokenizer …   an ordinary Hugging Face directory
          outcome_model.json                            template version, limits, calibration, figures
          training.json                                 which training made it

Invariants
* The folder appears whole or not at all, and holds everything that a score depends on: a model that is loaded
  again gives the same probabilities for the same list of episodes.
* A folder whose questions were worded by another version of the template is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from stepwell.config.policy import PolicyConfig
from stepwell.core import ConfigError, OutcomeSource, Trajectory
from stepwell.core.arrays import IntArray
from stepwell.policies import CausalLMPolicy, accepts_images, resolve_model
from stepwell.policies.atomic_directory import write_directory_atomically
from stepwell.rendering import Message, Renderer, load_tokenizer
from stepwell.rewards.outcome_model.calibration import Calibration
from stepwell.rewards.outcome_model.question import (
    NO,
    TEMPLATE_VERSION,
    YES,
    TextLimits,
    read_question,
    write_question,
)
from stepwell.training.answer_model import AnswerModel

FILE_NAME = "outcome_model.json"
TRAINING = "training.json"


@dataclass(eq=False)
class OutcomeModel:
    """Judges episodes by comparing P(YES) and P(NO)."""

    answers: AnswerModel
    renderer: Renderer
    limits: TextLimits
    calibration: Calibration = field(default_factory=Calibration)
    figures: dict[str, Any] = field(default_factory=dict)  # of its training, for people
    name: str = "outcome model"
    source: OutcomeSource = OutcomeSource.OUTCOME_MODEL

    @classmethod
    def start_from(
        cls, model: str, limits: TextLimits, *, seed: int = 0, dtype: str = "float32", device: str = "cpu"
    ) -> OutcomeModel:
        """A model that has not learnt to judge yet, from a policy's directory or a built-in model."""
        path = resolve_model(model, seed=seed)
        if accepts_images(path):
            raise ConfigError(f"{model} is a vision-language model; outcome models here read text only")
        return cls._open(path, limits, dtype, device)

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu") -> OutcomeModel:
        """The model that `save` wrote."""
        path = Path(folder).expanduser()
        stored = _read_description(path)
        if stored["template_version"] != TEMPLATE_VERSION:
            raise ConfigError(
                f"{path} was trained with version {stored['template_version']} of the question, this is "
                f"version {TEMPLATE_VERSION}; train it again with `stepwell orm train`"
            )
        model = cls._open(path, TextLimits(**stored["limits"]), stored["dtype"], device)
        model.calibration = Calibration(**stored["calibration"])
        model.figures, model.name = stored["figures"], name_folder(path)
        return model

    @classmethod
    def _open(cls, path: Path, limits: TextLimits, dtype: str, device: str) -> OutcomeModel:
        policy = CausalLMPolicy.from_config(
            PolicyConfig.model_validate(
                {"model": str(path), "dtype": dtype, "device": device, "critic": "none", "reference": False}
            )
        )
        tokenizer = load_tokenizer(path)
        encode = partial(tokenizer.encode, add_special_tokens=False)
        if limits.max_tokens + 64 > policy.context_length:
            raise ConfigError(
                f"max_tokens is {limits.max_tokens}, but the model's context is {policy.context_length}; "
                "leave 64 tokens for the chat template"
            )
        answers = AnswerModel(policy, encode(YES)[0], encode(NO)[0])
        return cls(answers, Renderer(tokenizer), limits)

    def save(self, folder: str | Path, training: str = "") -> None:
        """Write the folder, all or nothing; `training` identifies the training that made it."""
        path = Path(folder)
        described = {
            "template_version": TEMPLATE_VERSION,
            "limits": asdict(self.limits),
            "calibration": asdict(self.calibration),
            "dtype": str(self.answers.policy.model.dtype).removeprefix("torch."),
            "figures": self.figures,
        }
        with write_directory_atomically(path) as fresh:
            inner = fresh / "model"
            self.answers.policy.save_pretrained(inner)
            for file in inner.iterdir():
                file.rename(fresh / file.name)
            inner.rmdir()
            (fresh / FILE_NAME).write_text(json.dumps(described, indent=2) + "\n")
            (fresh / TRAINING).write_text(json.dumps({"key": training}) + "\n")

    def write_prompts(self, trajectories: Sequence[Trajectory]) -> list[IntArray]:
        """The exact ids of the question about each episode."""
        tokenizer = self.renderer.template.tokenizer
        asked = [read_question(each, self.limits.action_chars) for each in trajectories]
        texts = [
            write_question(question, self.limits, lambda text: len(_encode(tokenizer, text)))
            for question in asked
        ]
        return [self.renderer.start([Message.user(text)]).state.prompt_ids for text in texts]

    def judge(
        self, trajectories: Sequence[Trajectory], tell: Callable[[int], None] = lambda num_done: None
    ) -> list[float | None]:
        """The calibrated probability of success of each episode."""
        differences = self.answers.compare_answers(self.write_prompts(trajectories), tell)
        return [float(p) for p in self.calibration.convert(differences)]


def name_folder(path: Path) -> str:
    """The name of a stored model in the record: its folder and what is in it, so that no two are confused."""
    digest = hashlib.sha256()
    for file in sorted([path / FILE_NAME, *path.glob("*.safetensors")]):
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return f"{path.resolve().name}@{digest.hexdigest()[:8]}"


def _encode(tokenizer: Any, text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return found


def _read_description(path: Path) -> dict[str, Any]:
    file = path / FILE_NAME
    if not file.is_file():
        raise ConfigError(
            f"{path} is not an outcome model: it has no {FILE_NAME}; `stepwell orm train` makes one"
        )
    try:
        stored: dict[str, Any] = json.loads(file.read_text())
        _ = [stored[name] for name in ("template_version", "limits", "calibration", "dtype", "figures")]
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{file} is damaged ({error}); train the outcome model again") from error
    return stored
