"""Failures of a user's own agent: counted by kind, reported, and a reason to stop if there are too many.

    trajectories ─► count_failures ─► figures (`agent_failures/KIND`), for metrics, console and report
                 └► AgentFailures.watch ─► the first error of each kind, once; a reason to stop

Invariants
* An episode that failed by the agent's fault is not learnt from, unless `own_agent.learn_from_errors`.
* A run stops when every episode of its first evaluation or first update failed, or when more than
  `own_agent.max_failed_share` of the episodes of the last `WINDOW` updates did.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stepwell.config.run import OwnAgentConfig
from stepwell.core import Status, Trajectory
from stepwell.rollout.agent_outcome import FAILURES, NO_REWARD

WINDOW = 5
PREFIX = "agent_failures/"
NO_REWARD_NOTE = (
    "the agent gave no reward in any episode (it returned None, or a dict without 'reward'), which counts as "
    "0; let it return a number, True or False"
)


def count_failures(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """How many episodes failed by the agent's fault, by kind, as figures."""
    kinds = Counter(kind for kind, _ in _list_failures(trajectories))
    return {f"{PREFIX}{kind}": float(kinds[kind]) for kind in FAILURES if kinds[kind]}


def describe_failures(figures: Mapping[str, float]) -> str:
    """Such figures in words: `3 raised an exception, 1 did not end in time`."""
    return ", ".join(
        f"{figures[PREFIX + kind]:.0f} {words}"
        for kind, words in FAILURES.items()
        if figures.get(PREFIX + kind)
    )


def find_first_errors(trajectories: Sequence[Trajectory]) -> dict[str, str]:
    """The first error of each kind."""
    found: dict[str, str] = {}
    for kind, error in _list_failures(trajectories):
        found.setdefault(kind, error)
    return found


def _list_failures(trajectories: Sequence[Trajectory]) -> list[tuple[str, str]]:
    """Kind and error of every episode that the agent failed."""
    return [
        (str(t.info.get("failure", "raised")), t.error)
        for t in trajectories
        if t.status is Status.AGENT_ERROR
    ]


@dataclass(eq=False)
class AgentFailures:
    """The failures of one run's agent so far. `note` reports them."""

    config: OwnAgentConfig
    run: str
    note: Callable[[str], None]
    errors: dict[str, str] = field(default_factory=dict)
    _shares: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _has_started: bool = False

    def choose_learnable(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The trajectories of an update that are learnt from."""
        takes_errors = self.config.learn_from_errors
        return [t for t in trajectories if t.steps and (takes_errors or t.status is not Status.AGENT_ERROR)]

    def watch(self, place: str, trajectories: Sequence[Trajectory], *, is_update: bool) -> str | None:
        """Count the episodes of an update or an evaluation; returns why the run should stop, if it should."""
        for kind, error in find_first_errors(trajectories).items():
            if kind not in self.errors:
                self.errors[kind] = error
                self.note(
                    f"{place}: the agent {FAILURES[kind]}. The first such error:\n{_indent_lines(error)}"
                )
        num_failed, is_first = len(_list_failures(trajectories)), not self._has_started
        if is_first and trajectories and all(t.info.get(NO_REWARD) for t in trajectories):
            self.note(f"{place}: {NO_REWARD_NOTE}")
        self._has_started = True
        if is_update:
            self._shares.append((num_failed, len(trajectories)))
        if is_first and num_failed == len(trajectories) and self.config.max_failed_share < 1:
            return self._explain_stop(f"{place}: all {num_failed} episodes failed in the agent", trajectories)
        failed, played = (
            (sum(column) for column in zip(*self._shares, strict=True)) if self._shares else (0, 1)
        )
        if is_update and len(self._shares) == WINDOW and failed > self.config.max_failed_share * played:
            what = f"{place}: {failed} of the last {played} episodes failed in the agent, more than"
            limit = f"own_agent.max_failed_share = {self.config.max_failed_share:g}"
            return self._explain_stop(f"{what} {limit}", trajectories)
        return None

    def _explain_stop(self, what: str, trajectories: Sequence[Trajectory]) -> str:
        kinds = describe_failures(count_failures(trajectories))
        first = next(iter(find_first_errors(trajectories).values()), next(iter(self.errors.values()), ""))
        return (
            f"{what} ({self.config.function}; here {kinds or 'none'}). The first error:\n"
            f"{_indent_lines(first)}\n"
            f"Fix the agent, then continue with --resume {self.run}; its output is in {self.run}/agent_logs. "
            "With own_agent.max_failed_share=1 a run never stops for failures"
        )


def _indent_lines(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
