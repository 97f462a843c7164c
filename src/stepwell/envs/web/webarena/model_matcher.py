"""A matcher of answers that asks a model behind an OpenAI-compatible chat API.

    question, reference, answer ─► one chat call ─► a verdict word ─► True or False
                                        │ no answer, or no verdict in it
                                        └─► tried again, then `EnvError`: the episode counts as a fault

The host names the model (`ModelMatcherConfig`); a caller of a service cannot. Temperature is 0, and equal
questions are asked once per process. What the agent wrote is data: it is put between marks that the text
itself cannot contain, and the verdict is the last line of the reply alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from pydantic import Field

from stepwell.config.base import Settings
from stepwell.core import ConfigError
from stepwell.core.api_keys import read_key
from stepwell.core.errors import EnvError
from stepwell.envs.options import declare_host_option

_ANSWER = (
    "You grade answers. Another wording is fine, another meaning is not. 'N/A' means that the task cannot be "
    "done. Compare the given answer with the reference answer.\n\nQuestion:\n{question}\n\n"
    "Reference answer:\n{reference}\n\nGiven answer, between the marks:\n<<<\n{answer}\n>>>\n\n"
    "Reply with one line that is one of: correct, partially correct, incorrect."
)
_REASON = (
    "A task cannot be done, for the reason below. Someone tried it and reports why it failed. Decide whether "
    "the report gives that reason, even if only by implication.\n\nTask:\n{question}\n\n"
    "Reason:\n{reference}\n\nReport, between the marks:\n<<<\n{answer}\n>>>\n\n"
    "Reply with one line that is one of: same, different."
)
_PASSING = frozenset((408, 409, 425, 429, 500, 502, 503, 504))


class ModelMatcherConfig(Settings):
    """A model that compares answers, behind an OpenAI-compatible chat API."""

    url: str = declare_host_option("", description="base URL, up to and without `/chat/completions`")
    model: str = Field("", description="name of the model there")
    key_variable: str = declare_host_option(
        "STEPWELL_JUDGE_KEY", description="environment variable that holds the API key; may be unset"
    )
    timeout_s: float = Field(60.0, gt=0, description="longest wait for one answer")
    max_retries: int = Field(4, ge=0, description="retries after a temporary failure")
    backoff_s: float = Field(0.5, ge=0, description="wait before the first retry; it doubles each time")


class ModelMatcher:
    """Asks the model; verdicts are kept for the life of the object."""

    def __init__(self, config: ModelMatcherConfig) -> None:
        if not config.url.startswith(("http://", "https://")) or not config.model:
            raise ConfigError("a model that compares answers needs webarena.matcher.url and .model; set them")
        self.config = config
        self.num_calls = 0
        self._verdicts: dict[tuple[str, ...], str] = {}

    def matches_answer(self, question: str, reference: str, answer: str) -> bool:
        """Whether the model calls the answer correct; partially correct is not."""
        words = ("partially correct", "incorrect", "correct")
        return self._find_verdict(_ANSWER, question, reference, answer, words) == "correct"

    def matches_reason(self, question: str, reason: str, answer: str) -> bool:
        """Whether the model finds the reason in the answer."""
        return self._find_verdict(_REASON, question, reason, answer, ("different", "same")) == "same"

    def _find_verdict(
        self, form: str, question: str, reference: str, answer: str, words: Sequence[str]
    ) -> str:
        key = (form, question, reference, answer)
        if key not in self._verdicts:
            said = answer.replace("<<<", "< < <").replace(">>>", "> > >")
            self._verdicts[key] = self._ask_model(
                form.format(question=question, reference=reference, answer=said), words
            )
        return self._verdicts[key]

    def _ask_model(self, prompt: str, words: Sequence[str]) -> str:
        wait_s, failure = self.config.backoff_s, ""
        for tried in range(self.config.max_retries + 1):
            if tried:
                time.sleep(wait_s)
                wait_s *= 2
            reply, failure = self._post_prompt(prompt)
            lines = [line for line in reply.lower().splitlines() if line.strip()] or [""]
            verdict = next((word for word in words if word in lines[-1]), None)
            if verdict is not None:
                return verdict
            failure = failure or f"no verdict in {reply[:80]!r}"
        raise EnvError(f"the model that compares answers at {self.config.url} gave no verdict: {failure}")

    def _post_prompt(self, prompt: str) -> tuple[str, str]:
        """The text of the reply, and what went wrong if it was a temporary failure."""
        try:
            import httpx
        except ImportError as error:
            raise ConfigError("chat APIs need httpx: pip install 'stepwell[serve]'") from error

        self.num_calls += 1
        key = read_key(self.config.key_variable)
        body = {
            "model": self.config.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": 256,
        }
        try:
            response = httpx.post(
                f"{self.config.url.rstrip('/')}/chat/completions",
                json=body,
                headers={"authorization": f"Bearer {key}"} if key else {},
                timeout=self.config.timeout_s,
            )
        except httpx.HTTPError as error:
            return "", f"{type(error).__name__} {error}".strip()
        if response.status_code in _PASSING:
            return "", f"status {response.status_code}"
        if response.status_code != 200:
            raise ConfigError(
                f"the model that compares answers at {self.config.url} refused with "
                f"{response.status_code}: {response.text[:200]!r}; check webarena.matcher"
            )
        try:
            return str(response.json()["choices"][0]["message"]["content"]), ""
        except (ValueError, KeyError, IndexError, TypeError):
            return "", "the reply is not a chat completion"
