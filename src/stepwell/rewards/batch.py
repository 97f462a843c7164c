"""Rewards that need a whole batch: a judge behind an endpoint, and the repetition penalty.

    trajectories ─► text of each step, and the state it describes ─► judge ─► parts ─► rewards

A step got its other parts when it was played. Here `grounding` and `world_modeling` become the
endpoint's answer times their weight: 1 or 0, or the score of compared facts. `repetition` is added. Every
text is judged against the state it describes: a description against the step's own state, a prediction
against the next step's, the last prediction against the state stored with the trajectory. If the endpoint
fails and there is no fallback, the error leaves the batch unchanged: rewards are assigned after all answers.

Trajectories that ended in `infra_error` are not changed: nothing is learned from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepwell.agents import Agent
from stepwell.agents.strategy import Field
from stepwell.config.judge import JudgeConfig
from stepwell.config.run import RewardConfig
from stepwell.core import Status, Step, Trajectory
from stepwell.core.env_description import StateForm
from stepwell.core.errors import ConfigError
from stepwell.rewards.judge.prompts import Part
from stepwell.rewards.parts import select_parts
from stepwell.rewards.repetition import RepeatedSentence, RepetitionPenalty

if TYPE_CHECKING:
    from stepwell.rewards.judge.endpoint import EndpointJudge, JudgeQuestion


@dataclass(frozen=True, slots=True)
class _JudgedText:
    """One text of one step."""

    step: Step
    question: JudgeQuestion


def refuse_batch_settings(judge: JudgeConfig) -> None:
    """Refuse settings that need a whole batch."""
    if judge.kind == "endpoint":
        raise ConfigError(
            'rewards.judge.kind = "endpoint" judges whole batches, and there is no BatchJudge here: '
            'use "rule", or play with judged_later=True and a BatchJudge'
        )
    if judge.repetition_penalty:
        raise ConfigError(
            "rewards.judge.repetition_penalty counts over whole batches, and there is no BatchJudge here: "
            "set it to 0, or play with judged_later=True and a BatchJudge"
        )


class BatchJudge:
    """Rewards batches of one agent's trajectories; keeps counts and repeated sentences across batches."""

    def __init__(
        self,
        agent: Agent,
        weights: RewardConfig,
        *,
        parts: Sequence[str],
        optional_parts: Sequence[str] = (),
    ) -> None:
        self.agent, self.weights = agent, weights
        self.parts, self.optional_parts = tuple(parts), (*optional_parts, "repetition")
        judge = weights.judge
        from stepwell.rewards.judge.endpoint import EndpointJudge  # large, and few runs judge batches
        from stepwell.rewards.judge.rule import RuleJudge

        self.rule = RuleJudge(agent.description.vocabulary)
        self.repetition = RepetitionPenalty(judge)
        self.endpoint: EndpointJudge | None = None
        if judge.kind == "endpoint":
            self.endpoint = EndpointJudge(
                agent.description.name,
                judge.endpoint,
                rule=self.rule,
                threshold=judge.threshold,
                answer=judge.answer,
            )

    def reward(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Judge and reward a batch in place; returns metrics for a monitor."""
        said = [one for trajectory in trajectories for one in self._iter_texts(trajectory)]
        scores = self._score_texts(said)
        penalties = self.repetition.compute_penalties([one.question.said for one in said], scores)
        changed: dict[int, tuple[Step, dict[str, float]]] = {}
        for one, score, penalty in zip(said, scores, penalties, strict=True):
            _, parts = changed.setdefault(id(one.step), (one.step, dict(_get_reward_parts(one.step))))
            if self.endpoint is not None:
                parts[one.question.part] = getattr(self.weights, one.question.part) * score
            if self.weights.judge.repetition_penalty:
                parts["repetition"] = parts.get("repetition", 0.0) + penalty
        for step, parts in changed.values():
            self._assign_reward(step, parts)
        return self._collect_metrics(penalties)

    def find_most_repeated(self) -> list[RepeatedSentence]:
        """The most repeated sentences and the share of texts that contain them, for a monitor."""
        return self.repetition.find_most_repeated()

    def state(self) -> dict[str, Any]:
        """The state that later batches depend on, for a checkpoint."""
        return {"repetition": self.repetition.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        self.repetition.restore(state["repetition"])

    def _iter_texts(self, trajectory: Trajectory) -> Iterator[_JudgedText]:
        if trajectory.status is Status.INFRA_ERROR:
            return
        steps = [step for step in trajectory.steps if not step.is_summary]
        states = [step.info.get("state") for step in steps]
        states.append(trajectory.info.get("state"))
        fields = self.agent.strategy.fields
        for step, before, after in zip(steps, states, states[1:], strict=False):
            reply = self.agent.read(step.action.text)  # type: ignore[union-attr]
            if Field.OBSERVATION in fields and self.agent.form in _as_mapping(before):
                yield self._make_question(step, "grounding", reply.observation, before)
            if Field.PREDICTION in fields and self.agent.form in _as_mapping(after):
                yield self._make_question(step, "world_modeling", reply.prediction, after)

    def _make_question(self, step: Step, part: Part, said: str | None, state: Any) -> _JudgedText:
        from stepwell.rewards.judge.endpoint import JudgeQuestion

        truth = {StateForm(form): str(text) for form, text in _as_mapping(state).items()}
        return _JudgedText(step, JudgeQuestion(part, self.agent.form, said or "", truth))

    def _score_texts(self, said: Sequence[_JudgedText]) -> list[float]:
        questions = [one.question for one in said]
        if self.endpoint is not None:
            answers = self.endpoint.judge(questions)
            is_graded = self.weights.judge.graded
            return [answer.score if is_graded else float(answer.is_yes) for answer in answers]
        return [self.rule.judge(one.form, one.said, one.truth).score for one in questions]

    def _assign_reward(self, step: Step, parts: dict[str, float]) -> None:
        step.info["parts"] = dict(parts)
        chosen = select_parts(parts, self.parts, self.optional_parts)
        step.assign_reward({name: self.weights.scale * value for name, value in chosen.items()})

    def _collect_metrics(self, penalties: Sequence[float]) -> dict[str, float]:
        found = self.repetition.collect_metrics()
        found["repetition/penalized"] = sum(p < 0 for p in penalties) / len(penalties) if penalties else 0.0
        return found if self.endpoint is None else found | self.endpoint.counts.collect_metrics()


def _as_mapping(state: Any) -> Mapping[str, Any]:
    return state if isinstance(state, Mapping) else {}


def _get_reward_parts(step: Step) -> Mapping[str, float]:
    return step.info.get("parts") or {}  # type: ignore[return-value]
