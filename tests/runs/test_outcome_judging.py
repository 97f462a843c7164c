"""Runs whose episodes a judge judges in the checker's place, over a real HTTP server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.rollout.chat_server import Body, ChatServer, chatting
from tests.runs.small import notes, played, small_config, timeless

from stepwell.config.loading import load_config
from stepwell.core import Outcome, OutcomeSource, Status, Step, Task, Trajectory
from stepwell.core.errors import ConfigError, InfraError, InputError
from stepwell.pool import Filter, open_pool
from stepwell.pool.results import UNJUDGED_TAG
from stepwell.rewards import JUDGED_PARTS, apply_outcomes
from stepwell.runs.build.outcome_judges import build_judge
from stepwell.runs.loop.outcome_judging import OutcomeJudging, measure_agreement
from stepwell.runs.loop.sources import Batch
from stepwell.runs.outcome_model.scoring import score_source
from stepwell.runs.run import train

SPARSE = ("recipe.name=awr", "train.num_updates=3", "checkpoint.every=1", "eval.num_tasks=0")


@pytest.fixture(scope="module")
def running() -> Iterator[ChatServer]:
    with chatting() as server:
        yield server


@pytest.fixture
def server(running: ChatServer) -> ChatServer:
    running.__init__(running.url, lambda body: {"content": "<answer>YES</answer>"})  # type: ignore[misc]
    return running


def judged_by(server: ChatServer, *more: str) -> tuple[str, ...]:
    table = f'{{big = {{url = "{server.url}", model = "m", max_retries = 0, backoff_s = 0.0}}}}'
    return ("outcome.judge=endpoint:big", f"outcome.endpoints={table}", *more)


def test_rewards_follow_the_judge_and_the_checker_is_kept_beside_it(
    server: ChatServer, tmp_path: Path
) -> None:
    settings = (*SPARSE, *judged_by(server), "outcome.from_update=2", "rewards.scale=1")
    folder = train(small_config(*settings, folder=tmp_path))
    first, second, third = (entry.values for entry in timeless(folder) if entry.kind == "update")
    assert "outcome/agreement" not in first and first["success"] < 1.0
    for values in (second, third):
        assert values["success"] == values["reward/outcome"] == values["judged"] == 1.0
        assert values["outcome/agreement"] == values["outcome/checker_success"]
        assert values["outcome/false_yes"] == pytest.approx(1.0 - values["outcome/agreement"])
        assert values["outcome/false_no"] == values["outcome/unjudged"] == 0.0
    for trajectory in played(folder, 2):
        assert trajectory.outcome == Outcome(1.0, OutcomeSource.ENDPOINT, "big")
        assert trajectory.status in (Status.SUCCESS, Status.FAILURE)
    assert all(trajectory.outcome is None for trajectory in played(folder, 1))


@pytest.mark.slow
def test_the_first_phases_keep_the_checkers_verdict(server: ChatServer, tmp_path: Path) -> None:
    phases = ("curriculum.updates_per_phase=2", "outcome.from_phase=2")
    folder = train(small_config(*SPARSE, *judged_by(server), *phases, folder=tmp_path))
    values = [entry.values for entry in timeless(folder) if entry.kind == "update"]
    assert ["outcome/agreement" in each for each in values] == [False, False, True]
    assert [each.outcome is None for update in (1, 2, 3) for each in played(folder, update)] == [
        *[True] * (len(played(folder, 1)) + len(played(folder, 2))),
        *[False] * len(played(folder, 3)),
    ]
    with pytest.raises(ConfigError, match=r"outcome\.from_phase=2 needs a run with phases"):
        train(small_config(*SPARSE, *judged_by(server), "outcome.from_phase=2", folder=tmp_path / "b"))


def test_an_episode_without_an_answer_is_kept_told_and_learnt_from_later(
    server: ChatServer, tmp_path: Path
) -> None:
    asked: dict[str, int] = {}

    def refuse_some_once(body: Body) -> Body:
        text = body["messages"][-1]["content"]
        asked[text] = asked.get(text, 0) + 1
        is_silent = len(asked) % 3 == 0 and asked[text] == 1
        return {"content": "Hm." if is_silent else "<answer>NO</answer>"}

    server.say = refuse_some_once
    folder = train(small_config(*SPARSE, *judged_by(server), folder=tmp_path))
    updates = [entry.values for entry in timeless(folder) if entry.kind == "update"]
    assert max(values["outcome/unjudged"] for values in updates) > 0
    told = [note for note in notes(folder) if "are unjudged" in note]
    assert told and "neither YES nor NO" in told[0] and "asked about again" in told[0]
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        entries = list(pool.find(Filter(channel="train")))
        waiting = {entry.id for entry in pool.find(Filter(tags=(UNJUDGED_TAG,)))}
    assert len(entries) == 3 * 8
    assert {entry.id for entry in entries if entry.outcome is None} == waiting
    assert len(waiting) == updates[-1]["outcome/unjudged"]


@pytest.mark.slow
def test_a_judge_that_says_nothing_stops_the_run_and_resume_asks_again(
    server: ChatServer, tmp_path: Path
) -> None:
    server.say = lambda body: {"content": "Hm."}
    config = small_config(*SPARSE, *judged_by(server), folder=tmp_path)
    with pytest.raises(InfraError, match=r"gave no answer for any of 8 episodes.*--resume"):
        train(config)
    before = {trajectory.id for trajectory in played(tmp_path / "run", 1)}
    server.say = lambda body: {"content": "<answer>NO</answer>"}
    train(resume=tmp_path / "run")
    after = played(tmp_path / "run", 1)
    assert {trajectory.id for trajectory in after} == before  # nothing was played again
    assert all(trajectory.outcome is not None and not trajectory.is_success for trajectory in after)


def test_siblings_wait_together_where_they_are_compared(server: ChatServer, tmp_path: Path) -> None:
    silent: list[str] = []

    def hide_first(body: Body) -> Body:
        text = body["messages"][-1]["content"]
        silent[:] = silent or [text]
        return {"content": "Hm." if text == silent[0] else "<answer>YES</answer>"}

    server.say = hide_first
    settings = ("recipe.name=grpo", "train.num_updates=1", "eval.num_tasks=0", *judged_by(server))
    folder = train(small_config(*settings, folder=tmp_path))
    (values,) = (entry.values for entry in timeless(folder) if entry.kind == "update")
    assert values["outcome/unjudged"] >= 2 and values["outcome/unjudged"] % 2 == 0
    assert values["reward"] == pytest.approx(0.1)  # the task's part follows the outcome, scaled


@dataclass
class SlippingJudge:
    """Its last answer is no probability, so that storing the answers one by one would end halfway."""

    answers: tuple[float, ...] = (0.25, 0.75, 2.0)
    name: str = "slipping"
    source: OutcomeSource = OutcomeSource.OUTCOME_MODEL

    def judge(self, trajectories: Sequence[Trajectory]) -> list[float | None]:
        return list(self.answers[: len(trajectories)])


@pytest.mark.parametrize("is_run", [True, False])
def test_outcomes_that_are_asked_for_together_are_stored_together(tmp_path: Path, is_run: bool) -> None:
    """After a kill the same ones are asked about together: in other company a model's last bits differ."""
    made = [Trajectory(Task("lake", {}), [Step.from_tokens([1], [2])], Status.FAILURE) for _ in range(3)]
    with open_pool(tmp_path / "pool.db") as pool:
        pool.add(made)
        with pytest.raises(InputError):
            if is_run:
                OutcomeJudging(SlippingJudge(), pool, print).judge_batch(1, Batch(made))
            else:
                score_source(SlippingJudge(), pool)
        assert pool.stats().num_outcomes == 0
        assert score_source(SlippingJudge((0.25, 0.75, 1.0)), pool).num_yes == 2


def test_the_part_task_follows_the_outcome_only_where_a_judge_decides() -> None:
    step = Step.from_tokens([1], [2])
    step.assign_reward({"task": 10.0, "format": 0.5})
    trajectory = Trajectory(Task("lake", {}), [step], Status.SUCCESS, outcome=Outcome(0.1, "endpoint"))
    apply_outcomes([trajectory])
    assert step.reward_parts == {"task": 10.0, "format": 0.5}
    apply_outcomes([trajectory], 1.0, JUDGED_PARTS)
    assert step.reward_parts == {"task": 0.0, "format": 0.5}
    assert measure_agreement([trajectory])["outcome/false_no"] == 1.0


def test_a_list_of_judges_is_an_ensemble_and_the_checker_alone_is_none() -> None:
    table = 'outcome.endpoints={a = {url = "http://127.0.0.1:9/v1", model = "m"}}'
    both = build_judge(load_config(None, ["outcome.judge=['checker', 'endpoint:a']", table]).outcome)
    assert both is not None and both.name == "mean of checker, a"
    assert build_judge(load_config(None, []).outcome) is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["outcome.judge=orm"], 'must be "checker", "model:DIR" or "endpoint:NAME"'),
        (["outcome.judge=endpoint:a"], "needs a table"),
        (["outcome.judge=model:orm", "offline.pool=p.db"], "stepwell orm score"),
    ],
)
def test_mistakes_in_the_settings_are_told(settings: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(None, settings)
