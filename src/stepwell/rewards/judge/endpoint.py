"""The endpoint judge: a model behind any OpenAI-compatible chat API says YES or NO.

    questions ─► distinct ones ─► cache ─► the model (`rewards/yes_no.py`) ─► answers
                                              │ no answer
                                              └─► stop with an error, or the rule judge

Equal questions are asked once. A failure never silently becomes a reward: `on_failure` either stops the
batch with an `InfraError` or uses the rule judge and counts it (`num_fallbacks`). Each answer is compared
with the rule judge's; calls, tokens and agreement are in `counts`, for the log and the cost.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stepwell.config.judge import EndpointConfig
from stepwell.core.env_description import StateForm
from stepwell.core.errors import InfraError
from stepwell.rewards.chat_client import NoAnswerError, run_to_end
from stepwell.rewards.judge.cache import make_question_key
from stepwell.rewards.judge.prompts import Part, write_question
from stepwell.rewards.judge.rule import RuleJudge
from stepwell.rewards.yes_no import YesNoModel

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
    """A judgement and its source."""

    is_yes: bool
    source: Literal["endpoint", "cache", "rule", "empty"]


class EndpointJudge:
    """Asks a model. `threshold` is for the rule judge that it is compared with."""

    def __init__(
        self, env_name: str, config: EndpointConfig, *, rule: RuleJudge, threshold: float = 0.7
    ) -> None:
        self.model = YesNoModel(config, "rewards.judge.endpoint")
        self.env_name, self.config, self.threshold = env_name, config, threshold
        self.rule = rule
        self.cache, self.counts = self.model.cache, self.model.counts

    def judge(self, questions: Sequence[JudgeQuestion]) -> list[JudgeAnswer]:
        """The answers, in order. A caller inside an event loop, such as a notebook, waits as well."""
        return run_to_end(self.judge_async(questions))

    async def judge_async(self, questions: Sequence[JudgeQuestion]) -> list[JudgeAnswer]:
        """The answers, in order."""
        messages = [
            write_question(self.env_name, self.rule.vocabulary.criteria, one.part, one.said, one.truth)
            for one in questions
        ]
        keys = [make_question_key(self.config.model, each) for each in messages]
        answers = {key: self._find_known(one, key) for one, key in zip(questions, keys, strict=True)}
        unknown = {key: each for key, each in zip(keys, messages, strict=True) if answers[key] is None}
        by_key = dict(zip(keys, questions, strict=True))
        for key, is_yes in (await self.model.ask_all(unknown, self._refuse_failure)).items():
            answers[key] = self._compare_with_rule(by_key[key], is_yes)
        self.counts.num_questions += len(questions)
        _log.info("judged %d texts, agreement with rules %.3f", len(questions), self.counts.agreement)
        return [answer for answer in (answers[key] for key in keys) if answer is not None]

    def _find_known(self, asked: JudgeQuestion, key: str) -> JudgeAnswer | None:
        if not asked.said.strip():
            return JudgeAnswer(False, "empty")
        known = self.cache.get(key)
        if known is None:
            return None
        self.counts.num_cached += 1
        return JudgeAnswer(known, "cache")

    def _refuse_failure(self, failure: NoAnswerError) -> None:
        if self.config.on_failure == "stop":
            raise InfraError(
                f"the judge at {self.config.url} gave no answer: {failure}; "
                "check that it is running, raise rewards.judge.endpoint.max_retries, or set "
                'rewards.judge.endpoint.on_failure = "rule"'
            ) from failure

    def _compare_with_rule(self, asked: JudgeQuestion, is_yes: bool | None) -> JudgeAnswer:
        by_rule = self.rule.judge(asked.form, asked.said, asked.truth).is_yes(self.threshold)
        if is_yes is None:
            self.counts.num_fallbacks += 1
            return JudgeAnswer(by_rule, "rule")
        self.counts.num_compared += 1
        self.counts.num_agreed += is_yes == by_rule
        return JudgeAnswer(is_yes, "endpoint")
