"""A model behind any OpenAI-compatible chat API as a judge of outcomes.

    episodes ─► questions ─► distinct ones ─► cache ─► the model (`rewards/chat_judge.py`) ─► 1, 0 or None

The question has the words of the trained outcome model. It is inside a fence that it cannot contain, so
nothing in it is an instruction. Answers are cached by the hash of model and question. A call without an
answer gives None, never a NO.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.config.judge import EndpointConfig
from stepwell.core import OutcomeSource, Trajectory
from stepwell.rewards.chat_client import NoAnswerError, run_to_end
from stepwell.rewards.chat_judge import make_yes_no_judge
from stepwell.rewards.judge.prompts import fence_text
from stepwell.rewards.outcome_model.question import OutcomeQuestion, TextLimits, read_question, write_question

ENDPOINT_LIMITS = TextLimits(max_tokens=6000, page_tokens=4000, action_chars=2000)
_CHARS_PER_TOKEN = 3
_SYSTEM = (
    "You judge whether an agent did its task. You get the task, the agent's actions and what it saw at the "
    "end. A task that asks for information is done if the right answer was given; one that asks for a change "
    "is done if exactly that change was made; one that asks for a place is done if the agent ended there.\n"
    "Think briefly, then end with <answer>YES</answer> or <answer>NO</answer>."
)


class EndpointOutcomeJudge:
    """Asks a model about whole episodes."""

    source = OutcomeSource.ENDPOINT

    def __init__(self, config: EndpointConfig, name: str = "") -> None:
        self.model = make_yes_no_judge(config, "a judge behind an endpoint")
        self.config, self.name = config, name or config.model
        self.cache, self.counts = self.model.cache, self.model.counts
        self.last_failure = ""

    def judge(self, trajectories: Sequence[Trajectory]) -> list[float | None]:
        """1 for YES, 0 for NO, None without an answer. A caller inside an event loop waits as well."""
        asked = [read_question(each, ENDPOINT_LIMITS.action_chars) for each in trajectories]
        return run_to_end(self._judge_batch([write_messages(question) for question in asked]))

    async def _judge_batch(self, asked: Sequence[list[dict[str, str]]]) -> list[float | None]:
        self.counts.num_questions += len(asked)
        judged = await self.model.ask_all(asked, self._note_failure)
        return [None if each.answer is None else float(each.answer) for each in judged]

    def _note_failure(self, failure: NoAnswerError) -> None:
        self.last_failure = str(failure)


def write_messages(question: OutcomeQuestion) -> list[dict[str, str]]:
    """The messages that ask a chat model; tokens are estimated, three characters each."""
    text = write_question(question, ENDPOINT_LIMITS, lambda text: len(text) // _CHARS_PER_TOKEN + 1)
    return [
        {"role": "system", "content": _SYSTEM},
        {"role": "user", "content": fence_text(text, "The episode")},
    ]
