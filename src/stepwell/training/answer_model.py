"""A language model that answers YES or NO with its next token, and its supervised training.

    prompts with labels ─► AnswerModel.train_epochs ─► validation after each ─► the best weights are kept
    prompts             ─► AnswerModel.compare_answers ─► log P(YES) − log P(NO)

The loss is that of supervised fine-tuning: −log P(right answer) over the whole vocabulary. The score compares
the two answers only, so that what else the model might say does not count.

Invariants
* Every batch has both answers in equal number, however rare one of them is. An epoch draws as many prompts as
  there are; within an answer no prompt is drawn twice before each was drawn once.
* What happens in epoch e is a function of the weights and the optimizer before it, the seed and e. So
  training that continues from a `TrainingState` repeats what it would have done.
* Training ends after `patience` epochs without a better validation loss; the weights are then the best ones.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepwell.config.training import OptimizerConfig
from stepwell.core import InputError, Step
from stepwell.core.arrays import FloatArray, IntArray
from stepwell.packing import Outputs, backward, pack
from stepwell.policies import CausalLMPolicy
from stepwell.training.optimizer import Optimizer, explain_nan, rate_share

_ADVICE = "Lower the learning rate"
_WARMUP_SHARE = 0.1
_SCORED_TOGETHER = 16


@dataclass(frozen=True, slots=True)
class LabelledPrompt:
    """A prompt and the right answer to it."""

    prompt_ids: IntArray
    is_yes: bool


@dataclass(frozen=True, slots=True)
class AnswerTraining:
    """How an answer model is trained."""

    epochs: int = 4
    batch_size: int = 16
    learning_rate: float = 1e-3
    patience: int = 2
    token_budget: int = 8192

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "learning_rate", "patience", "token_budget"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name} must be above 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class EpochFigures:
    """One epoch: the mean training loss, and loss and accuracy on validation prompts."""

    epoch: int
    train_loss: float
    loss: float
    accuracy: float


@dataclass(slots=True)
class TrainingState:
    """Everything that the next epoch depends on, besides the weights; plain data for a file."""

    epoch: int = 0
    best_epoch: int = 0
    best_loss: float = float("inf")
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    optimizer: Any = None
    history: list[EpochFigures] = field(default_factory=list)


class AnswerModel:
    """A causal language model and the ids of its two answers."""

    def __init__(self, policy: CausalLMPolicy, yes_id: int, no_id: int) -> None:
        if yes_id == no_id:
            raise InputError("YES and NO begin with the same token; use a model with another tokenizer")
        self.policy, self.yes_id, self.no_id = policy, yes_id, no_id

    def compare_answers(
        self, prompts: Sequence[IntArray], tell: Callable[[int], None] = lambda num_done: None
    ) -> FloatArray:
        """log P(YES) − log P(NO) of each prompt, in order."""
        found: list[FloatArray] = []
        for start in range(0, len(prompts), _SCORED_TOGETHER):
            asked = prompts[start : start + _SCORED_TOGETHER]
            steps = [Step.from_tokens(ids, [answer]) for ids in asked for answer in (self.yes_id, self.no_id)]
            scores = np.concatenate(self.policy.score(steps))
            found.append(scores[0::2] - scores[1::2])
            tell(start + len(asked))
        return np.concatenate(found) if found else np.zeros(0, dtype=np.float32)

    def train_epochs(
        self,
        train: Sequence[LabelledPrompt],
        validation: Sequence[LabelledPrompt],
        settings: AnswerTraining,
        seed: int,
        *,
        state: TrainingState | None = None,
        tell: Callable[[int, int], None] = lambda num_done, total: None,
    ) -> Iterator[TrainingState]:
        """Train, and yield the state after each epoch; at the end the best weights are in place."""
        _check_labels(train, "training")
        _check_labels(validation, "validation")
        state = TrainingState() if state is None else state
        optimizer = Optimizer(
            self.policy.named_parameters(), OptimizerConfig(learning_rate=settings.learning_rate)
        )
        if state.weights:
            self.policy.load_state_dict(state.weights)
            optimizer.load_state_dict(state.optimizer)
        while state.epoch < settings.epochs and state.epoch - state.best_epoch < settings.patience:
            loss = self._train_epoch(train, settings, seed, state.epoch, optimizer, tell)
            self._note_epoch(state, loss, validation)
            state.optimizer = optimizer.state_dict()
            yield state
        self.policy.load_state_dict(state.best_weights)

    def _train_epoch(
        self,
        train: Sequence[LabelledPrompt],
        settings: AnswerTraining,
        seed: int,
        epoch: int,
        optimizer: Optimizer,
        tell: Callable[[int, int], None],
    ) -> float:
        batches = list(draw_balanced([one.is_yes for one in train], settings.batch_size, seed, epoch))
        total, losses = settings.epochs * len(batches), []
        for number, places in enumerate(batches):
            done = epoch * len(batches) + number
            warmup = max(1, int(_WARMUP_SHARE * total))
            optimizer.set_rate(
                rate_share(done, num_updates=total, schedule="cosine", warmup=warmup, final=0.1)
            )
            losses.append(self._learn_batch([train[i] for i in places], settings, optimizer, epoch))
            tell(done + 1, total)
        return float(np.mean(losses))

    def _learn_batch(
        self, examples: Sequence[LabelledPrompt], settings: AnswerTraining, optimizer: Optimizer, epoch: int
    ) -> float:
        optimizer.zero_grad()
        total = 0.0
        for part in _cut_batch(examples, settings.token_budget):
            share = len(part) / len(examples)
            steps = [
                Step.from_tokens(one.prompt_ids, [self.yes_id if one.is_yes else self.no_id]) for one in part
            ]

            def imitate_part(outputs: Outputs, share: float = share) -> tuple[Tensor, dict[str, Tensor]]:
                assert outputs.logprobs is not None
                return -share * outputs.logprobs.mean(), {}

            with explain_nan(f"outcome model, epoch {epoch + 1}", _ADVICE):
                loss, _, _ = backward(self.policy, pack(steps), imitate_part)
            total += float(loss)
        torch.nn.utils.clip_grad_norm_(optimizer.parameters, 1.0)
        optimizer.step()
        return total

    def _note_epoch(self, state: TrainingState, loss: float, validation: Sequence[LabelledPrompt]) -> None:
        odds = self.compare_answers([one.prompt_ids for one in validation]).astype(np.float64)
        labels = np.array([one.is_yes for one in validation])
        log_loss = float(np.mean(np.logaddexp(0.0, np.where(labels, -odds, odds))))
        accuracy = float(np.mean((odds >= 0.0) == labels))
        state.epoch += 1
        state.history.append(EpochFigures(state.epoch, loss, log_loss, accuracy))
        state.weights = copy.deepcopy(self.policy.state_dict())
        if log_loss < state.best_loss:
            state.best_loss, state.best_epoch, state.best_weights = log_loss, state.epoch, state.weights


def draw_balanced(labels: Sequence[bool], batch_size: int, seed: int, epoch: int) -> Iterator[list[int]]:
    """Batches of places with both labels in equal number, as many places as there are labels."""
    pools = [[i for i, label in enumerate(labels) if label is wanted] for wanted in (True, False)]
    streams = [_cycle_shuffled(pool, [seed, epoch, number]) for number, pool in enumerate(pools)]
    drawn = [next(streams[number % 2]) for number in range(len(labels) + len(labels) % 2)]
    for start in range(0, len(drawn), batch_size):
        yield drawn[start : start + batch_size]


def _cycle_shuffled(places: Sequence[int], seed: list[int]) -> Iterator[int]:
    rng = np.random.default_rng(seed)
    while True:
        yield from (places[i] for i in rng.permutation(len(places)))


def _cut_batch(examples: Sequence[LabelledPrompt], token_budget: int) -> Iterator[list[LabelledPrompt]]:
    """Parts of a batch of at most this many tokens each; their gradients are summed."""
    part: list[LabelledPrompt] = []
    num_tokens = 0
    for one in examples:
        if part and num_tokens + one.prompt_ids.size > token_budget:
            yield part
            part, num_tokens = [], 0
        part.append(one)
        num_tokens += one.prompt_ids.size
    yield part


def _check_labels(prompts: Sequence[LabelledPrompt], name: str) -> None:
    num_yes = sum(one.is_yes for one in prompts)
    if not 0 < num_yes < len(prompts):
        raise InputError(
            f"the {name} roll-outs have {num_yes} successes and {len(prompts) - num_yes} failures; both are "
            "needed. Give more roll-outs, or another share for validation"
        )
