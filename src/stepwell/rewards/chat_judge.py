"""A chat model that answers questions, for example with YES or NO.

    questions ─► cache ─► rate limit ─► calls, retried ─► `read` ─► answers ─► cache
                                             │ retries spent
                                             └─► `on_failure`: raise, or go on without an answer

The judge of states and the judge of outcomes both ask through it. The questions of a batch run at once, with
`max_concurrent` calls in flight. `read` finds the answer in a reply; for `read_yes_no` it is
`<answer>YES</answer>` or `<answer>NO</answer>`. A reply without an answer counts as a failed call. A missing
answer is None, never a NO. After `MAX_IN_A_ROW` failures in a row, the rest of the batch is not asked. A
refusal (a wrong key, model or address) is a mistake in the settings and is raised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Generic

from stepwell.config.judge import EndpointConfig
from stepwell.core.errors import ConfigError
from stepwell.rewards.chat_client import (
    CallCounts,
    ChatClient,
    ChatRefusedError,
    ChatReply,
    NoAnswerError,
    gather_calls,
)
from stepwell.rewards.judge.cache import Answer, AnswerCache, make_question_key

MAX_IN_A_ROW = 8
_ANSWER = re.compile(r"<answer>\s*(yes|no)\s*\.?\s*</answer>", re.IGNORECASE)


@dataclass(slots=True)
class JudgeCounts(CallCounts):
    """Counters of judging so far."""

    num_questions: int = 0
    num_failures: int = 0
    num_fallbacks: int = 0
    num_cached: int = 0
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


@dataclass(frozen=True, slots=True)
class JudgedQuestion(Generic[Answer]):
    """A question by its key, and its answer; None if the model gave none. `is_fresh`: it was asked now."""

    key: str
    answer: Answer | None
    is_fresh: bool


class ChatJudge(Generic[Answer]):
    """Asks one model. In errors, `settings` names the part of the configuration, `problem` what a reply is
    in which `read` finds no answer."""

    def __init__(
        self, config: EndpointConfig, settings: str, read: Callable[[str], Answer | None], problem: str
    ) -> None:
        if not config.url or not config.model:
            raise ConfigError(f"{settings} needs url and model; set them")
        self.config, self.settings = config, settings
        self.cache: AnswerCache[Answer] = AnswerCache(config.cache)
        self.counts = JudgeCounts()
        self._read: Callable[[str], Answer | None] = read
        self._problem = problem
        self._in_a_row = 0

    async def ask_all(
        self,
        questions: Sequence[list[dict[str, str]]],
        on_failure: Callable[[NoAnswerError], None] = lambda failure: None,
    ) -> list[JudgedQuestion[Answer]]:
        """The answers, in order. What the cache knows is not asked; the same question is asked once.

        `on_failure` may raise, which stops the batch.
        """
        keys = [make_question_key(self.config.model, messages) for messages in questions]
        known = {key: self.cache.get(key) for key in keys}
        unknown = {key: each for key, each in zip(keys, questions, strict=True) if known[key] is None}
        self.counts.num_cached += sum(known[key] is not None for key in keys)
        self._in_a_row = 0
        async with ChatClient(self.config, self.counts) as client:
            answers = await gather_calls(
                self._ask_once(client, key, messages, on_failure) for key, messages in unknown.items()
            )
        known |= zip(unknown, answers, strict=True)
        return [JudgedQuestion(key, known[key], key in unknown) for key in keys]

    async def _ask_once(
        self,
        client: ChatClient,
        key: str,
        messages: list[dict[str, str]],
        on_failure: Callable[[NoAnswerError], None],
    ) -> Answer | None:
        body = {
            "model": self.config.model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": self.config.max_tokens,
        }
        try:
            answer = await client.complete(body, self._read_reply, may_ask=self._check_failures)
        except NoAnswerError as failure:
            self.counts.num_failures += 1
            self._in_a_row += 1
            on_failure(failure)
            return None
        except ChatRefusedError as refusal:
            raise ConfigError(
                f"the judge at {self.config.url} {refusal}; "
                f"check {self.settings} (url, model) and the key in ${self.config.key_variable}"
            ) from refusal
        self._in_a_row = 0
        self.cache.put(key, answer)
        return answer

    def _check_failures(self) -> None:
        if self._in_a_row >= MAX_IN_A_ROW:
            raise NoAnswerError(f"{MAX_IN_A_ROW} questions in a row failed, so this one was not asked")

    def _read_reply(self, reply: ChatReply) -> Answer:
        answer = None if reply.text is None else self._read(reply.text)
        if answer is None:
            self.counts.num_unreadable += 1
            raise NoAnswerError(f"{self._problem}: {str(reply.text)[:80]!r}")
        return answer


def make_yes_no_judge(config: EndpointConfig, settings: str) -> ChatJudge[bool]:
    """A model that answers with YES or NO."""
    return ChatJudge(config, settings, read_yes_no, "neither YES nor NO")


def read_yes_no(text: str) -> bool | None:
    """The last answer in a reply; None if there is none."""
    found = _ANSWER.findall(text)
    if found:
        return bool(found[-1].lower() == "yes")
    return {"yes": True, "no": False}.get(text.strip().strip(".").lower())
