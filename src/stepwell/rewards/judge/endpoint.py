"""The endpoint judge: a model behind any OpenAI-compatible chat API.

    yes_no      text and true state ─► model ─► YES or NO
    dictionary  text ─► model ─► dictionary of facts ─► rules compare it with the true state ─► F1

    questions ─► distinct ones ─► cache ─► the model (`rewards/chat_judge.py`) ─► answers
                                              │ no answer
                                              └─► stop with an error, or the rule judge

Equal questions are asked once. A failure never silently becomes a reward: `on_failure` either stops the
batch with an `InfraError` or uses the rule judge and counts it (`num_fallbacks`). Each answer is compared
with the rule judge's own reading; calls, tokens and agreement are in `counts`, for the log and the cost.
A dictionary is only asked for where the text is natural language: rules read the other forms themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stepwell.config.judge import EndpointConfig
from stepwell.core.env_description import StateForm
from stepwell.core.errors import InfraError
from stepwell.rewards.chat_client import NoAnswerError, run_to_end
from stepwell.rewards.chat_judge import ChatJudge, make_yes_no_judge
from stepwell.rewards.judge.facts import read_facts, write_fact_question, write_sentences
from stepwell.rewards.judge.prompts import Part, write_question
from stepwell.rewards.judge.rule import RuleJudge
from stepwell.rewards.judge.verdict import Verdict

Source = Literal["endpoint", "cache", "rule", "empty"]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JudgeQuestion:
    """One description or prediction, and the state to compare it with."""

    part: Part
    form: StateForm
    said: str
    truth: Mapping[StateForm, str]


@dataclass(frozen=True, slots=True)
class JudgeAnswer:
    """A judgement and its source; `facts` and `verdict` only where facts were compared."""

    is_yes: bool
    source: Source
    verdict: Verdict | None = None
    facts: str = ""

    @property
    def score(self) -> float:
        """What a graded reward pays."""
        return float(self.is_yes) if self.verdict is None else self.verdict.score


class EndpointJudge:
    """Asks a model. `threshold` is the score from which compared facts, or the rule judge, mean yes."""

    def __init__(
        self,
        env_name: str,
        config: EndpointConfig,
        *,
        rule: RuleJudge,
        threshold: float = 0.7,
        answer: Literal["yes_no", "dictionary"] = "yes_no",
    ) -> None:
        settings = "rewards.judge.endpoint"
        self.model: ChatJudge[Any] = (
            make_yes_no_judge(config, settings)
            if answer == "yes_no"
            else ChatJudge(config, settings, read_facts, "no JSON dictionary")
        )
        self.env_name, self.config, self.threshold, self.answer = env_name, config, threshold, answer
        self.rule = rule
        self.cache, self.counts = self.model.cache, self.model.counts

    def judge(self, questions: Sequence[JudgeQuestion]) -> list[JudgeAnswer]:
        """The answers, in order. A caller inside an event loop, such as a notebook, waits as well."""
        return run_to_end(self.judge_async(questions))

    async def judge_async(self, questions: Sequence[JudgeQuestion]) -> list[JudgeAnswer]:
        """The answers, in order."""
        messages = {place: self._write_messages(one) for place, one in enumerate(questions)}
        asked = {place: each for place, each in messages.items() if each is not None}
        self.counts.num_questions += len(questions)
        replies = await self.model.ask_all(list(asked.values()), self._refuse_failure)
        by_place = dict(zip(asked, replies, strict=True))
        judged: dict[tuple[str, tuple[str, ...]], JudgeAnswer] = {}
        answers = []
        for place, one in enumerate(questions):
            if place not in by_place:
                answers.append(self._answer_without_model(one))
                continue
            reply = by_place[place]
            mark = reply.key, tuple(one.truth.values())
            if mark not in judged:
                judged[mark] = self._make_answer(one, reply.answer, "endpoint" if reply.is_fresh else "cache")
            answers.append(judged[mark])
        _log.info("judged %d texts, agreement with rules %.3f", len(questions), self.counts.agreement)
        return answers

    def _write_messages(self, asked: JudgeQuestion) -> list[dict[str, str]] | None:
        """The question for the model; None where it is not asked."""
        if not asked.said.strip():
            return None
        vocabulary = self.rule.vocabulary
        if self.answer == "yes_no":
            return write_question(self.env_name, vocabulary.criteria, asked.part, asked.said, asked.truth)
        if asked.form is not StateForm.NATURAL_LANGUAGE:
            return None
        return write_fact_question(self.env_name, vocabulary, asked.said)

    def _answer_without_model(self, asked: JudgeQuestion) -> JudgeAnswer:
        if not asked.said.strip():
            return JudgeAnswer(False, "empty")
        verdict = self.rule.judge(asked.form, asked.said, asked.truth)
        return JudgeAnswer(verdict.is_yes(self.threshold), "rule", verdict)

    def _refuse_failure(self, failure: NoAnswerError) -> None:
        if self.config.on_failure == "stop":
            raise InfraError(
                f"the judge at {self.config.url} gave no answer: {failure}; "
                "check that it is running, raise rewards.judge.endpoint.max_retries, or set "
                'rewards.judge.endpoint.on_failure = "rule"'
            ) from failure

    def _make_answer(self, asked: JudgeQuestion, answer: bool | str | None, source: Source) -> JudgeAnswer:
        by_rule = self.rule.judge(asked.form, asked.said, asked.truth)
        if answer is None:
            self.counts.num_fallbacks += 1
            verdict = by_rule if self.answer == "dictionary" else None
            return JudgeAnswer(by_rule.is_yes(self.threshold), "rule", verdict)
        found = (
            JudgeAnswer(answer, source)
            if isinstance(answer, bool)
            else self._compare_facts(asked, answer, source)
        )
        if source == "endpoint":
            self.counts.num_compared += 1
            self.counts.num_agreed += found.is_yes == by_rule.is_yes(self.threshold)
        return found

    def _compare_facts(self, asked: JudgeQuestion, facts: str, source: Source) -> JudgeAnswer:
        verdict = self.rule.judge(StateForm.NATURAL_LANGUAGE, write_sentences(facts), asked.truth)
        return JudgeAnswer(verdict.is_yes(self.threshold), source, verdict, facts)
