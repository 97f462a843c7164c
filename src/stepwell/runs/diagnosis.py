"""Why a run learnt nothing: causes with the figures that show them, and a remedy for each.

    diagnose(entries of metrics.jsonl, …) -> sentences; none if the run learnt

A run learnt if held-out success rose by `RISE`, or ended at `GOOD` or above. Otherwise the first `WINDOW`
updates are compared with the last. A cause is named only if a figure shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from stepwell.core.text import format_count
from stepwell.monitors.base import LogEntry
from stepwell.runs.loop.agent_failures import PREFIX, describe_failures

RISE, GOOD = 0.1, 0.9
WINDOW = 5
KNOWN_FORM = 0.5  # share of replies in the required form from which the form counts as known
LOW_ENTROPY = 0.02
EQUAL_GROUPS = 0.9
MANY_FAILED = 0.1  # share of episodes that the agent failed from which it counts as a cause


@dataclass(frozen=True, slots=True)
class _Figures:
    """The figures of a run's updates, by name. `agent_episodes`: see `diagnose`."""

    updates: Sequence[dict[str, float]]
    has_warm_start: bool
    agent_episodes: int = 0

    def early(self, name: str) -> float | None:
        return _mean_of(self.updates[:WINDOW], name)

    def late(self, name: str) -> float | None:
        return _mean_of(self.updates[-WINDOW:], name)

    def whole(self, name: str) -> float | None:
        return _mean_of(self.updates, name)


def diagnose(entries: Sequence[LogEntry], *, has_warm_start: bool, agent_episodes: int = 0) -> list[str]:
    """The reasons why a run learnt nothing; empty if it learnt, or made no update.

    `agent_episodes`: how many episodes of an update a user's own agent plays; 0 without one.
    """
    updates = [entry.values for entry in entries if entry.kind == "update"]
    scores = [entry.values["success"] for entry in entries if entry.kind == "eval"]
    if not updates:
        return []
    figures = _Figures(updates, has_warm_start, agent_episodes)
    before, after, name = (
        (scores[0], scores[-1], "held-out success")
        if len(scores) > 1
        else (figures.early("success") or 0.0, figures.late("success") or 0.0, "success while training")
    )
    if after >= GOOD or after - before >= RISE:
        return []
    if not agent_episodes and (unread := _find_unknown_form(figures)) is not None:
        causes = [unread]  # what else the figures show follows from it
    else:
        causes = [cause for find in _CAUSES if (cause := find(figures)) is not None]
    unknown = (
        "No single cause shows in the figures. Train longer (train.num_updates, train.max_seconds), on more "
        "episodes per update (train.tasks_per_update), or with a larger model (policy.model)."
    )
    return [f"The run learnt little: {name} {before:.2f} -> {after:.2f}.", *(causes or [unknown])]


def _find_lost_form(figures: _Figures) -> str | None:
    early, late = figures.early("format_share"), figures.late("format_share")
    if early is None or late is None or early < KNOWN_FORM or late >= early / 2:
        return None
    return (
        f"The policy knew the form of replies and lost it: {early:.2f} of replies had it, then {late:.2f}. "
        "The updates were too large: lower train.optimizer.learning_rate (and muon_learning_rate), or keep "
        "the policy near its start (recipe.kl_coef)."
    )


def _find_unknown_form(figures: _Figures) -> str | None:
    early, late = figures.early("format_share"), figures.late("format_share")
    if early is None or late is None or max(early, late) >= KNOWN_FORM:
        return None
    remedy = (
        "Make the warm start longer (warm_start.max_updates, warm_start.stop_at_format), and check that "
        "sampling.max_tokens leaves room for a reply."
        if figures.has_warm_start
        else "There was no warm start: set warm_start.num_demos (the environment needs an oracle()) or "
        "warm_start.chats, or "
        "start from a model that follows instructions (policy.model, agent.guide=true)."
    )
    return f"The policy does not know the form of replies: only {late:.2f} of them have it. {remedy}"


def _find_no_success(figures: _Figures) -> str | None:
    if max(values.get("success", 0.0) for values in figures.updates) > 0:
        return None
    remedy = (
        "Make the warm start longer (warm_start.stop_at, warm_start.max_updates)"
        if figures.has_warm_start
        else "Give demonstrations (warm_start.num_demos)"
    )
    easier = "give easier tasks first (env.options), or a reward for coming nearer (Effect.process and "
    easier += "rewards.process)."
    if figures.agent_episodes:
        examples = "more examples" if figures.has_warm_start else "examples"
        remedy = (
            f"Check what the agent returns. Give {examples} (warm_start.chats), a larger model (policy.model)"
        )
        easier = "easier tasks first (own_agent.tasks), or return a number for coming nearer."
    return (
        f"No episode of {format_count(len(figures.updates), 'update')} succeeded, so the reward never said "
        f"what to do. {remedy}, {easier}"
    )


def _find_failed_agent(figures: _Figures) -> str | None:
    names = {name for values in figures.updates for name in values if name.startswith(PREFIX)}
    failed = {name: sum(values.get(name, 0.0) for values in figures.updates) for name in names}
    count, played = sum(failed.values()), figures.agent_episodes * len(figures.updates)
    if count <= MANY_FAILED * played:
        return None
    return (
        f"The agent failed in {count:.0f} of {played} episodes ({describe_failures(failed)}). Mend it first: "
        "an error of each kind is above and in the report."
    )


def _find_equal_groups(figures: _Figures) -> str | None:
    share = figures.whole("equal_groups")
    if share is None or share < EQUAL_GROUPS:
        return None
    return (
        f"In {share:.2f} of all groups every sibling got the same reward, so there was nothing to compare: "
        "advantages are zero. Raise train.group_size or sampling.temperature, or choose tasks that are "
        "sometimes solved and sometimes not."
    )


def _find_paid_form(figures: _Figures) -> str | None:
    form, task = figures.late("reward/format"), figures.late("reward/task")
    if form is None or task is None or form <= max(task, 0.0):
        return None
    return (
        f"The form of replies pays more than the task: {form:.3g} against {task:.3g} per episode at the end. "
        "Lower rewards.format."
    )


def _find_low_entropy(figures: _Figures) -> str | None:
    early, late = figures.early("entropy"), figures.late("entropy")
    if early is None or late is None or late >= LOW_ENTROPY or late >= early / 2:
        return None
    return (
        f"The policy stopped exploring: its entropy fell from {early:.3g} to {late:.3g}. Raise "
        "recipe.entropy_coef, or lower train.optimizer.learning_rate."
    )


_CAUSES = (
    _find_failed_agent,
    _find_lost_form,
    _find_no_success,
    _find_equal_groups,
    _find_paid_form,
    _find_low_entropy,
)


def _mean_of(updates: Sequence[dict[str, float]], name: str) -> float | None:
    values = [values[name] for values in updates if name in values]
    return mean(values) if values else None
