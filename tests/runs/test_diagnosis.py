"""A run that learns nothing names the true cause, with figures and a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runs.small import notes, small_config

from stepwell.monitors import LogEntry
from stepwell.monitors.summary import read_summary
from stepwell.runs.diagnosis import diagnose
from stepwell.runs.run import train

FINE = {"success": 0.3, "format_share": 0.95, "entropy": 0.3, "reward/task": 0.3, "reward/format": 0.05}


def run_of(
    first: dict[str, float], last: dict[str, float], before: float = 0.3, after: float = 0.3
) -> list[LogEntry]:
    rows = [FINE | first] * 6 + [FINE | last] * 6
    updates = [LogEntry("update", i + 1, float(i), i, values) for i, values in enumerate(rows)]
    evals = [LogEntry("eval", u, 0.0, 0, {"success": s}) for u, s in ((0, before), (12, after))]
    return [evals[0], *updates, evals[1]]


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [
        ({}, {"format_share": 0.1}, ["lost it: 0.95 of replies had it, then 0.10", "learning_rate"]),
        (
            {"format_share": 0.02},
            {"format_share": 0.03},
            ["does not know the form of replies: only 0.03", "warm_start.max_updates"],
        ),
        (
            {"success": 0.0, "reward/task": 0.0},
            {"success": 0.0, "reward/task": 0.0},
            ["No episode of 12 updates succeeded", "Effect.process"],
        ),
        ({"equal_groups": 1.0}, {"equal_groups": 0.96}, ["In 0.98 of all groups", "train.group_size"]),
        ({}, {"reward/format": 0.28, "reward/task": 0.03}, ["0.28 against 0.03", "rewards.format"]),
        ({}, {"entropy": 0.001}, ["entropy fell from 0.3 to 0.001", "recipe.entropy_coef"]),
        ({}, {}, ["No single cause shows", "train.num_updates"]),
    ],
)
def test_each_cause_is_named_with_its_figures_and_what_to_change(
    first: dict[str, float], last: dict[str, float], words: list[str]
) -> None:
    headline, *causes = diagnose(run_of(first, last), has_warm_start=True)
    assert headline == "The run learnt little: held-out success 0.30 -> 0.30."
    assert all(word in causes[0] for word in words)


def test_an_unknown_form_without_a_warm_start_points_to_the_oracle() -> None:
    found = diagnose(run_of({"format_share": 0.0}, {"format_share": 0.0}), has_warm_start=False)
    assert "There was no warm start" in found[1] and "oracle()" in found[1]


def test_what_follows_from_an_unknown_form_is_not_named_beside_it() -> None:
    bad = {"format_share": 0.0, "success": 0.0, "reward/task": 0.0, "equal_groups": 1.0}
    assert len(diagnose(run_of(bad, bad), has_warm_start=True)) == 2


def test_a_run_without_success_is_given_demonstrations_only_where_it_had_none() -> None:
    bad = {"success": 0.0, "reward/task": 0.0}
    had, had_none = (diagnose(run_of(bad, bad), has_warm_start=has)[1] for has in (True, False))
    assert "Make the warm start longer" in had and "Give demonstrations" in had_none


def test_a_run_of_ones_own_agent_is_told_only_what_such_a_run_has() -> None:
    bad = {"success": 0.0, "reward/task": 0.0, "format_share": 0.0}
    found = diagnose(run_of(bad, bad), has_warm_start=False, agent_episodes=8)[1]
    assert "warm_start.chats" in found and "own_agent.tasks" in found
    assert not any(name in found for name in ("env.options", "Effect", "rewards.process", "num_demos"))


@pytest.mark.parametrize(("failed", "is_told"), [(4.0, True), (0.5, False)])
def test_an_agent_that_often_fails_is_named_as_the_cause(failed: float, is_told: bool) -> None:
    some = {"agent_failures/raised": failed}
    cause = diagnose(run_of(some, some), has_warm_start=True, agent_episodes=8)[1]
    assert ("The agent failed in 48 of 96 episodes (48 raised an exception)" in cause) is is_told


def test_a_healthy_cause_is_not_named() -> None:
    assert len(diagnose(run_of({}, {"entropy": 0.001}), has_warm_start=True)) == 2


@pytest.mark.parametrize(("before", "after"), [(0.3, 0.4), (0.95, 0.93), (0.0, 0.5)])
def test_a_run_that_learnt_is_not_diagnosed(before: float, after: float) -> None:
    assert diagnose(run_of({}, {"entropy": 0.001}, before, after), has_warm_start=True) == []


def test_without_evaluations_success_while_training_decides() -> None:
    updates = [entry for entry in run_of({}, {}) if entry.kind == "update"]
    assert "success while training 0.30 -> 0.30" in diagnose(updates, has_warm_start=True)[0]
    assert diagnose([], has_warm_start=True) == []


def test_a_run_that_learns_nothing_says_so_aloud_in_its_summary_and_in_its_report(tmp_path: Path) -> None:
    quiet = ("policy.model=tiny-0.3m", "train.num_updates=1", "monitor.report=true")
    folder = train(small_config(*quiet, folder=tmp_path))
    told = [note for note in notes(folder) if "does not know the form of replies" in note]
    summary = read_summary(folder)
    assert len(told) == 1 and "There was no warm start" in told[0]
    assert summary is not None and told[0] in summary.more["diagnosis"]
    assert "does not know the form of replies" in (folder / "report.html").read_text()
