"""The endpoint judge: a model behind any OpenAI-compatible chat API says YES or NO.

    questions ─► distinct ones ─► cache ─► rate limit ─► call, retried ─► answers ─► cache
                                                              │ retries spent
                                                              └─► stop with an error, or the rule judge

A batch is asked at once, with `max_concurrent` calls in flight; equal questions are asked once. A
failure never silently becomes a reward: `on_failure` either stops the batch with an `InfraError` or
uses the rule judge and counts it (`num_fallbacks`). After `MAX_IN_A_ROW` failures in a row, the rest
of the batch is not asked. Each answer is compared with the rule judge's; calls, tokens and agreement
are in `counts`, for the log and the cost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Literal

from stepwell.config.judge import EndpointConfig
from stepwell.core.env_description import StateForm
from stepwell.core.errors import ConfigError, InfraError
from stepwell.rewards.chat_client import ChatClient, ChatRefusedError, ChatReply, NoAnswerError
from stepwell.rewards.judge.cache import AnswerCache, make_question_key
from stepwell.rewards.judge.prompts import Part, read_answer, write_question
from stepwell.rewards.judge.rule import RuleJudge

MAX_IN_A_ROW = 8
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


@dataclass(slots=True)
class JudgeCounts:
    """Counters of judging so far."""

    num_questions: int = 0
    num_calls: int = 0
    num_retries: int = 0
    num_failures: int = 0
    num_fallbacks: int = 0
    num_cached: int = 0
    num_unreadable: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    num_compared: int = 0
    num_agreed: int = 0

    @property
    def agreement(self) -> float:
        """Share of answers that equal the rule judge's; 1 if none was compared."""
        return self.num_agreed / self.num_compared if self.num_compared else 1.0

    def collect_metrics(self) -> dict[str, float]:
        """All counters as metrics for a monitor."""
        return {f"judge/{name}": float(value) for name, value in asdict(self).items()} | {
            "judge/agreement": self.agreement
        }


class EndpointJudge:
    """Asks a model. `threshold` is for the rule judge that it is compared with."""

    def __init__(
        self, env_name: str, config: EndpointConfig, *, rule: RuleJudge, threshold: float = 0.7
    ) -> None:
        if not config.url or not config.model:
            raise ConfigError("rewards.judge.endpoint needs url and model; set them")
        self.env_name, self.config, self.threshold = env_name, config, threshold
        self.rule = rule
        self.cache = AnswerCache(config.cache)
        self.counts = JudgeCounts()
        self._in_a_row = 0

    def judge(self, questions: Sequence[JudgeQuestion]) -> list[JudgeAnswer]:
        """The answers, in order. A caller inside an event loop, such as a notebook, waits as well."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.judge_async(questions))
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self.judge_async(questions)).result()

    async def judge_async(self, questions: Sequence[JudgeQuestion]) -> list[JudgeAnswer]:
        """The answers, in order."""
        self._in_a_row = 0
        asked = [
            write_question(self.env_name, self.rule.vocabulary.criteria, one.part, one.said, one.truth)
            for one in questions
        ]
        keys = [make_question_key(self.config.model, messages) for messages in asked]
        answers = {key_: self._find_known(one, key_) for one, key_ in zip(questions, keys, strict=True)}
        open_ = {k: m for k, m in zip(keys, asked, strict=True) if answers[k] is None}
        by_key = dict(zip(keys, questions, strict=True))
        async with ChatClient(self.config, self.counts) as client:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = {
                        k: group.create_task(self._answer_question(client, k, messages, by_key[k]))
                        for k, messages in open_.items()
                    }
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from errors  # the first failure stopped the others
        answers.update({k: task.result() for k, task in tasks.items()})
        self.counts.num_questions += len(questions)
        _log.info("judged %d texts, agreement with rules %.3f", len(questions), self.counts.agreement)
        return [answer for answer in (answers[k] for k in keys) if answer is not None]

    def _find_known(self, asked: JudgeQuestion, key: str) -> JudgeAnswer | None:
        if not asked.said.strip():
            return JudgeAnswer(False, "empty")
        known = self.cache.get(key)
        if known is None:
            return None
        self.counts.num_cached += 1
        return JudgeAnswer(known, "cache")

    async def _answer_question(
        self, client: ChatClient, key: str, messages: list[dict[str, str]], asked: JudgeQuestion
    ) -> JudgeAnswer:
        by_rule = self.rule.judge(asked.form, asked.said, asked.truth).is_yes(self.threshold)
        try:
            is_yes = await self._ask_model(client, messages)
        except NoAnswerError as failure:
            self.counts.num_failures += 1
            self._in_a_row += 1
            if self.config.on_failure == "stop":
                raise InfraError(
                    f"the judge at {self.config.url} gave no answer: {failure}; "
                    "check that it is running, raise rewards.judge.endpoint.max_retries, or set "
                    'rewards.judge.endpoint.on_failure = "rule"'
                ) from failure
            self.counts.num_fallbacks += 1
            return JudgeAnswer(by_rule, "rule")
        self._in_a_row = 0
        self.cache.put(key, is_yes)
        self.counts.num_compared += 1
        self.counts.num_agreed += is_yes == by_rule
        return JudgeAnswer(is_yes, "endpoint")

    async def _ask_model(self, client: ChatClient, messages: list[dict[str, str]]) -> bool:
        body = {
            "model": self.config.model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": self.config.max_tokens,
        }
        try:
            return await client.complete(body, self._read_reply, may_ask=self._check_failures)
        except ChatRefusedError as refusal:
            raise ConfigError(
                f"the judge at {self.config.url} {refusal}; "
                f"check rewards.judge.endpoint (url, model) and the key in ${self.config.key_variable}"
            ) from refusal

    def _check_failures(self) -> None:
        if self._in_a_row >= MAX_IN_A_ROW:
            raise NoAnswerError(f"{MAX_IN_A_ROW} questions in a row failed, so this one was not asked")

    def _read_reply(self, reply: ChatReply) -> bool:
        is_yes = None if reply.text is None else read_answer(reply.text)
        if is_yes is None:
            self.counts.num_unreadable += 1
            raise NoAnswerError(f"neither YES nor NO: {str(reply.text)[:80]!r}")
        return is_yes
