"""A session: one agent's calls on one task, stored as an open trajectory in the pool.

    get_or_open(caller) ─► GatewaySession ─► begin_call ─► … ─► end_call          finish ─► a trajectory

A session is known by name (path or header) or belongs to a key, which then has one open session at a time. It
opens with its first call, or earlier with a task and a group. It ends when it is completed or stays silent. A
process that starts on a pool with open sessions continues them: each is restored when it is first needed.

Invariants
* A step gets its number when its call arrives, so steps are in the order of calls. A call that failed
  leaves its numbers unused.
* A session that is over takes no more steps: a call still in flight is refused, and nothing is recorded.
* The path of a trajectory holds one step per call: the choice that a later call continued, or else the first.
  A call whose reply never reached its client, and which the client therefore repeated, is not on the path.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stepwell.core import JSON, Status
from stepwell.pool import StoredTrajectory
from stepwell.rendering import Message
from stepwell.services.errors import ErrorKind, ServiceError
from stepwell.services.gateway.history import Branch, History, RecordedTurn
from stepwell.services.gateway.step_info import restore_turn

_MAX_REASONS = 20
_MAX_CONVERSATIONS = 512


@dataclass(slots=True, eq=False)
class GatewaySession:
    """One open session. `owner` is the name of the key that opened it; only that key may use it."""

    id: str
    owner: str
    history: History
    next_number: int = 0
    num_running: int = 0
    num_calls: int = 0
    num_prompt_tokens: int = 0
    num_action_tokens: int = 0
    branches: Counter[str] = field(default_factory=Counter)
    reasons: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_REASONS))
    superseded: set[int] = field(default_factory=set)
    infra_errors: Counter[str] = field(default_factory=Counter)
    last_infra_error: str = ""  # of the newest call; empty if it succeeded
    rewards: dict[int | None, float] = field(default_factory=dict)  # by step; None: the last one
    is_over: bool = False
    created_s: float = field(default_factory=time.time)
    last_seen_s: float = field(default_factory=time.monotonic)
    conversations: dict[str, tuple[Message, ...]] = field(default_factory=dict)

    def begin_call(self, num_choices: int) -> int:
        """Count a new call. Return the number of its first step."""
        self.refuse_if_over()
        first, self.next_number = self.next_number, self.next_number + num_choices
        self.num_running += 1
        self.num_calls += 1
        self.last_seen_s = time.monotonic()
        return first

    def end_call(self) -> None:
        self.num_running -= 1
        self.last_seen_s = time.monotonic()

    def refuse_if_over(self) -> None:
        if self.is_over:
            raise ServiceError(
                ErrorKind.CONFLICT, f"session {self.id!r} is over; start a new one with another id"
            )

    def note_branch(self, first: int, branch: Branch | None) -> None:
        if branch is not None:
            self.branches[branch.kind.value] += 1
            self.reasons.append(f"step {first}: {branch.kind.value}: {branch.reason}")

    def note_infra_error(self, error: Exception) -> None:
        self.infra_errors[type(error).__name__] += 1
        self.last_infra_error = f"{type(error).__name__}: {error}"

    def select_path(self) -> list[int]:
        """The steps that are trained on, in the order of calls."""
        calls: dict[int, list[RecordedTurn]] = {}
        for turn in self.history.turns.values():
            if turn.call not in self.superseded:
                calls.setdefault(turn.call, []).append(turn)
        chosen: list[int] = []
        for turns in calls.values():
            continued = [turn.number for turn in turns if turn.is_continued]
            chosen += continued or [min(turn.number for turn in turns)]
        return sorted(chosen)

    def find_step(self, call_id: str, choice: int = 0) -> int | None:
        """The number of the step behind a reply, by the reply's id."""
        found = (turn for turn in self.history.turns.values() if turn.call_id == call_id)
        return next((turn.number for turn in found if turn.choice == choice), None)

    def remember_conversation(self, answer_id: str, messages: tuple[Message, ...]) -> None:
        if len(self.conversations) >= _MAX_CONVERSATIONS:
            self.conversations.pop(next(iter(self.conversations)))
        self.conversations[answer_id] = messages

    def recall_conversation(self, answer_id: str) -> tuple[Message, ...]:
        """A conversation by a reply's id: as remembered, or else as recorded."""
        if answer_id in self.conversations:
            return self.conversations[answer_id]
        for turn in self.history.turns.values():
            if turn.call_id == answer_id and turn.choice == 0 and turn.messages:
                return turn.messages
        raise ServiceError(
            ErrorKind.NOT_FOUND,
            f"session {self.id!r} has no reply {answer_id!r}",
            param="previous_response_id",
        )

    def describe(self) -> dict[str, JSON]:
        """What the control endpoint shows of an open session."""
        return {
            "id": self.id,
            "status": "open",
            "num_calls": self.num_calls,
            "num_running": self.num_running,
            "num_steps": len(self.history.turns),
            "path": list(self.select_path()),
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_action_tokens": self.num_action_tokens,
            "num_branches": self.branches.total(),
            "branches": dict(self.branches),
            "reasons": list(self.reasons),
            "infra_errors": dict(self.infra_errors),
            "created_s": self.created_s,
            "silent_s": round(time.monotonic() - self.last_seen_s, 3),
        }

    def summarize(self) -> dict[str, JSON]:
        """What the trajectory's `info` holds about its session."""
        value: dict[str, JSON] = {"num_calls": self.num_calls, "branches": dict(self.branches)}
        if self.infra_errors:
            value["infra_errors"] = dict(self.infra_errors)
        if self.superseded:
            value["superseded"] = list[JSON](sorted(self.superseded))
        return value


def restore_session(stored: StoredTrajectory, prompt_extra: str) -> GatewaySession:
    """An open session as stored in the pool."""
    session = GatewaySession(stored.id, str(stored.source.get("key", "")), History(prompt_extra))
    session.created_s = stored.created_s
    steps = dict(sorted(zip(stored.numbers, stored.trajectory.steps, strict=True)))
    for number, step in steps.items():
        info: Mapping[str, Any] = step.info
        turn = restore_turn(session.history, number, step)
        session.history.add(turn)
        if "branch" in info:
            session.branches[info["branch"]] += 1
            session.reasons.append(f"step {number}: {info['branch']}: {info['reason']}")
        if "supersedes" in info:
            session.superseded.add(info["supersedes"])
        session.num_action_tokens += step.num_units
    calls = [turn.call for turn in session.history.turns.values()]
    for turn in session.history.turns.values():
        turn.is_delivered = turn.call != max(calls)  # whether the last reply arrived is unknown
    session.num_calls = len(set(calls))
    session.next_number = max(steps, default=-1) + 1
    session.rewards = {entry.step: entry.value for entry in stored.reward_history}
    return session


def decide_outcome(session: GatewaySession, status: Status | None, error: str) -> tuple[Status, str]:
    """How a completed session ended, as far as its agent did not say."""
    if status is None and session.last_infra_error:
        return Status.INFRA_ERROR, error or session.last_infra_error
    if status is None:
        status = Status.SUCCESS if sum(session.rewards.values()) > 0 else Status.FAILURE
    if status in (Status.AGENT_ERROR, Status.INFRA_ERROR) and not error:
        error = session.last_infra_error or "reported by the agent without a message"
    return status, error


def count_running(sessions: Iterable[GatewaySession]) -> dict[str, JSON]:
    """Counts over open sessions."""
    branches: Counter[str] = Counter()
    num_running = 0
    for session in sessions:
        branches += session.branches
        num_running += session.num_running
    return {"num_running": num_running, "branches": dict(branches)}
