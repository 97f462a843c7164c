"""Recorded steps are what the engine saw and sampled, whatever real clients do in between."""

from __future__ import annotations

import pytest
from benchmarks.faithfulness import Report, measure, taught_policy

from stepwell.policies import CausalLMPolicy
from stepwell.rendering import History

TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def policy() -> CausalLMPolicy:
    return taught_policy(num_updates=75)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "history", "num_conversations"),
    [("tiny", "exact", 15), ("stripping", "exact", 15), ("stripping", "template", 10)],
)
def test_no_step_differs_from_what_the_engine_saw_and_sampled(
    policy: CausalLMPolicy, template: str, history: History, num_conversations: int
) -> None:
    report = measure(policy, num_conversations, template=template, history=history, seed=1)
    assert report.is_faithful, report
    assert report.max_logprob_gap < TOLERANCE
    covers_what_it_claims(report)


def covers_what_it_claims(report: Report) -> None:
    assert set(report.calls_by_api) == {"chatcmpl", "msg", "resp"}
    assert 0 < report.num_streamed < report.num_steps
    assert report.num_tool_calls > 0 and report.num_thinking > 0
    if report.template == "tiny":  # nothing there rewrites history but the clients that edit it
        assert set(report.branches) <= {"turn_changed", "history_changed", "tools_changed"}
        assert report.num_extended == report.num_continued > 0.5 * report.num_steps
    elif report.history == "exact":
        assert report.branches["template_rewrites"] > 0
