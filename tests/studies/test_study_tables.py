"""Tables of a study beside success: how agents went about it, what it cost, what a setting changes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from stepwell.config.study import PlannedRun, StudyConfig, load_study, plan_runs
from stepwell.core import ConfigError, EncodingError, Status, Step, Task, TokenAction, TokenState, Trajectory
from stepwell.monitors.base import LogEntry, RunInfo
from stepwell.monitors.jsonl import JsonlMonitor
from stepwell.monitors.summary import Summary, write_summary
from stepwell.runs.evaluation.episodes_file import FILE_NAME, EvalEpisode, read_episodes, write_episodes
from stepwell.studies.measures import measure_times, summarize_golden, summarize_use, thin_track
from stepwell.studies.pages import write_pages, write_table
from stepwell.studies.results import Results, collect_results, join
from stepwell.studies.run_status import get_todo_path, read_status
from stepwell.studies.study import StudyPlan, _order_runs, run_study
from stepwell.studies.tables import make_tables


def step(calls: list[str] | None, num_tokens: int, task: float, **more: Any) -> Step:
    ids = np.arange(num_tokens, dtype=np.int32)
    made = Step(TokenState(np.array([1, 2], np.int32)), TokenAction(ids), np.zeros(num_tokens, np.float32))
    made.info = {"parts": {"task": task, "format": 0.5}, **more}
    if calls is not None:
        made.info |= {"calls": calls, "num_lost": 1}  # type: ignore[dict-item]
    return made


def test_an_episode_is_told_in_figures(tmp_path: Path) -> None:
    steps = [
        step(["search", "expand"], 5, 1.5),
        step(["search"], 7, -0.5, measures={"f1": 0.8}),
    ]
    known = Trajectory(Task("papers", {"n": 1}), steps, Status.SUCCESS, info={"golden": 1})
    plain = Trajectory(Task("lake", {"n": 2}), [step(None, 3, 0.0)], Status.FAILURE)
    write_episodes(tmp_path, [known, plain])
    found = read_episodes(tmp_path)
    assert found[0] == EvalEpisode(
        known.task.id, True, 2, 1, 12, {"expand": 1, "search": 2}, 2, 1.0, {"f1": 0.8}
    )
    assert found[1] == EvalEpisode(plain.task.id, False, 1, None, 3, None)
    assert read_episodes(tmp_path / "nowhere") == []
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('{"torn')
    with pytest.raises(EncodingError, match="is damaged"):
        read_episodes(tmp_path)


def episode(success: bool, turns: int, golden: int | None, **more: Any) -> EvalEpisode:
    return EvalEpisode("t", success, turns, golden, **more)


def test_use_is_the_mean_over_episodes_and_a_tool_not_called_counts_as_nought() -> None:
    found = summarize_use(
        [
            episode(True, 3, None, tokens=30, calls={"search": 4}, score=1.0, measures={"f1": 0.5}),
            episode(False, 5, None, tokens=50, calls={"expand": 2}, lost_calls=3, score=-0.5),
        ]
    )
    assert found == {
        "turns": 4.0,
        "tokens": 40.0,
        "score": 0.25,
        "measures/f1": 0.5,
        "calls/expand": 1.0,
        "calls/search": 2.0,
        "lost_calls": 1.5,
    }
    assert "lost_calls" not in summarize_use([episode(True, 1, None)])
    assert summarize_use([]) == {}


def test_extra_turns_are_those_of_solved_episodes() -> None:
    episodes = [episode(True, 4, 4), episode(True, 7, 4), episode(False, 10, 4), episode(False, 10, 6)]
    assert summarize_golden([*episodes, episode(True, 1, None)]) == [
        {"golden": 4, "num": 3, "success": pytest.approx(2 / 3), "extra": 1.5},
        {"golden": 6, "num": 1, "success": 0.0, "extra": None},
    ]


def test_a_track_is_thinned_to_means() -> None:
    assert thin_track([(1, 0.0), (2, 1.0), (3, 2.0), (4, 4.0)], 2) == [(2, 0.5), (4, 3.0)]
    assert thin_track([(1, 0.5)], 60) == [(1, 0.5)]


def test_the_critics_time_is_taken_from_the_updates() -> None:
    def update(number: int, **times: float) -> LogEntry:
        return LogEntry("update", number, 0.0, 0, {f"time/{k}_s": v for k, v in times.items()})

    own = [
        update(1, rollout=9.0, update=9.0, critic=9.0),
        *[update(n, rollout=1.0, update=4.0, critic=3.0) for n in (2, 3)],
    ]
    assert measure_times(own) == {"rollout": 1.0, "actor": 1.0, "critic": 3.0}
    assert measure_times([update(1, rollout=1.0, update=4.0)]) == {"rollout": 1.0, "actor": 4.0}
    assert measure_times([]) == {}


# --- a study made by hand ---------------------------------------------------------------------

STUDY = """
name = "hand"
seeds = [0, 1]
tables = ["use", "golden", "dynamics", "time"]
rollouts = 8
[settings]
train = { num_updates = 4, group_size = 1 }
[[environments]]
name = "home"
elsewhere.unseen.env.options.size = 5
[[environments]]
name = "lake"
[[variants]]
name = "step"
[[variants]]
name = "token"
settings = { recipe.name = "ppo" }
[[variants]]
name = "step-low"
table = "Discounts"
environments = ["home"]
settings.recipe.credit.gamma = 0.95
[[variants]]
name = "token-low"
table = "Discounts"
environments = ["home"]
settings.recipe = { name = "ppo", credit.gamma = 0.95 }
[[variants]]
name = "prompted"
settings.train.num_updates = 0
[[sweeps]]
name = "gamma"
values = [0.99, 0.95]
lines = { "by step" = ["step", "step-low"], "by token" = ["token", "token-low"] }
[quick]
seeds = [0]
environments = ["home"]
variants = ["step", "token"]
rollouts = 4
"""

AFTER = {"step": 0.8, "token": 0.6, "step-low": 0.76, "token-low": 0.3, "prompted": 0.2}
TURNS = {"step": 4, "token": 6, "step-low": 5, "token-low": 6, "prompted": 7}


def write_run(run: PlannedRun) -> None:
    """A run folder as loop and worker leave it: two updates, or none, and four held-out episodes."""
    folder = Path(run.config.folder) / run.name
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("")
    num_updates = 0 if run.variant == "prompted" else 2
    monitor = JsonlMonitor()
    monitor.start(RunInfo(folder, run.name, run.env, run.variant, run.seed, num_updates))
    monitor.record(LogEntry("eval", 0, 0.0, 0, {"success": 0.2}))
    for update in range(1, num_updates + 1):
        values = {"reward": 0.25 * update, "time/rollout_s": 1.0 + run.seed, "time/update_s": 3.0}
        if run.variant.startswith("step"):
            values |= {"loss/value": 0.5 / update, "time/critic_s": 0.5}
        monitor.record(LogEntry("update", update, 5.0 * update, 100 * update, values))
    monitor.close()
    after = AFTER[run.variant] + (0.1 if run.seed else -0.1)
    summary = Summary(0.2, after, 100 * num_updates, 10.0, run.seed, run.variant, run.env, "finished")
    summary.more = {"num_updates": num_updates, "warm_start_s": 0.0}
    write_summary(folder, summary)
    if run.env == "home":
        golden = [4, 4, 6, 6]
        wins = [True, True, run.seed == 0, False]
        told = {"task": "t", "tokens": 10 * TURNS[run.variant], "calls": {"look": 2}, "score": 0.5}
        lines = [
            json.dumps(told | {"success": win, "turns": length + TURNS[run.variant] - 4, "golden": length})
            for win, length in zip(wins, golden, strict=True)
        ]
        (folder / FILE_NAME).write_text("\n".join(lines) + "\n")
        (folder / "elsewhere.json").write_text(json.dumps({"unseen": after / 2}))


def planned(tmp_path: Path, text: str = STUDY) -> tuple[StudyConfig, list[PlannedRun]]:
    file = tmp_path / "hand.toml"
    file.write_text(text)
    study = load_study(file)
    return study, plan_runs(study, tmp_path, tmp_path / "runs")


@pytest.fixture
def results(tmp_path: Path) -> Results:
    study, runs = planned(tmp_path)
    for run in runs:
        write_run(run)
    return collect_results(study, runs, is_quick=False, sessions=[])


def rows_of(results: Results, env: str, title: str) -> dict[str, list[str]]:
    found = next(table for table in make_tables(results, env) if table.title == title)
    num_names = 2 if title.startswith("Sensitivity") else 1
    return {" ".join(row[:num_names]): row[num_names:] for row in found.rows}


def test_success_by_the_shortest_plan_is_over_the_episodes_of_all_seeds(results: Results) -> None:
    rows = rows_of(results, "home", "By the shortest plan")
    # of 4 turns: all eight solved; of 6: one of four, by the first seed
    assert rows["step"] == ["1.00 (+0.0)", "0.25 (+0.0)"]
    assert rows["token"] == ["1.00 (+2.0)", "0.25 (+2.0)"]
    assert not [t for t in make_tables(results, "lake") if t.title == "By the shortest plan"]


def test_use_is_the_mean_of_seeds(results: Results) -> None:
    found = next(t for t in make_tables(results, "home") if t.title == "How agents worked")
    assert found.head == ["variant", "turns", "response tokens", "score", "calls/look", "calls not done"]
    assert found.rows[1] == ["token", "7.00", "60.00", "0.50", "2.00", "0.00"]


def test_time_is_split_where_the_critic_has_a_time_of_its_own(results: Results) -> None:
    rows = rows_of(results, "home", "Time of an update")
    assert rows["step"] == ["1.500", "2.500", "0.500", "4.500"]
    assert rows["token"] == ["1.500", "3.000", "–", "4.500"]
    assert "prompted" not in rows  # it has made no update


def test_dynamics_compare_the_ends_of_training(results: Results) -> None:
    rows = rows_of(results, "home", "Training")
    assert rows["step"] == ["0.2500", "0.5000", "0.5000", "0.2500"]
    assert rows["token"] == ["0.2500", "0.5000", "–", "–"]
    plots = next(t for t in make_tables(results, "home") if t.title == "Training").plots
    losses = next(plot for plot in plots if plot.name == "dynamics-critic-loss-home")
    lines = [e.get("data-name") for e in ElementTree.fromstring(losses.svg).iter() if e.get("data-name")]
    assert lines == ["step"]


def test_a_sweep_tells_the_change_from_the_first_value_to_the_last(results: Results) -> None:
    rows = rows_of(results, "home", "Sensitivity to gamma")
    assert rows["by step 0.99"] == ["0.800", "0.500", "40.0", "5.00"]
    assert rows["by step change"] == ["-5.0 %", "+0.0 %", "+25.0 %", "+20.0 %"]
    assert rows["by token change"] == ["-50.0 %", "+0.0 %", "+0.0 %", "+0.0 %"]
    assert not [t for t in make_tables(results, "lake") if t.title.startswith("Sens")]


def test_variants_apart_have_a_table_with_the_baseline_and_do_not_compete(results: Results) -> None:
    text = write_table(results)
    main, apart = text.split("## lake")[0].split("### Discounts")
    assert "| step (baseline) | 2 | 0.200 ± 0.000 | 0.800 ± 0.141 | 0.400 ± 0.071 | best |" in main
    assert "step-low" not in main and "token-low" not in main
    assert apart.index("step (baseline)") < apart.index("| step-low |") < apart.index("| token-low |")
    assert "| token |" not in apart.split("![curves]")[0]


def test_a_variant_of_an_extra_table_may_be_compared_with_another_variant(tmp_path: Path) -> None:
    text = STUDY.replace('table = "Discounts"\n', 'table = "Discounts"\ncompare_with = "token"\n')
    study, runs = planned(tmp_path, text)
    for run in runs:
        write_run(run)
    found = write_table(collect_results(study, runs, is_quick=False, sessions=[]))
    apart = found.split("### Discounts")[1].split("![curves]")[0]
    rows = [line.split(" | ")[0] + " | " + line.split(" | ")[5] for line in apart.splitlines()[4:] if line]
    assert rows == ["| token | not told apart", "| step-low | best", "| token-low | not told apart"]
    # this fixture's episodes are the same for all variants, so no paired difference is told apart
    with pytest.raises(ConfigError, match=r"variant step-low, compare_with: unknown name 'nobody'"):
        planned(tmp_path, text.replace('"token"\nenvironments', '"nobody"\nenvironments', 1))


def test_a_variant_that_is_not_trained_says_so_and_leaves_the_horizon_alone(results: Results) -> None:
    rows = {row.variant: row for row in results.rows["lake"]}
    assert list(rows) == ["step", "token", "prompted"]
    assert results.horizons == {"home": 200.0, "lake": 200.0}
    assert rows["prompted"].area and rows["prompted"].area.mean == pytest.approx(0.2)
    line = next(line for line in write_table(results).splitlines() if line.startswith("| prompted |"))
    assert line.endswith("| not trained |")


def test_joined_parts_have_the_same_tables(results: Results, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write_pages(tmp_path / "out", results)
    study, runs = planned(tmp_path)
    joined = join(study, runs, [tmp_path / "out" / "results.json"])
    for env in ("home", "lake"):
        assert make_tables(joined, env) == make_tables(results, env)
    for name in ("golden-success-home", "golden-extra-home", "dynamics-reward-lake", "sweep-gamma-home"):
        assert f"({name}.svg)" in write_table(results)
        ElementTree.fromstring((tmp_path / "out" / f"{name}.svg").read_text())
    page = (tmp_path / "out" / "study.html").read_text()
    assert "Sensitivity to gamma" in page and "<td>-50.0 %</td>" in page and "<h3>Discounts</h3>" in page


def test_a_run_that_is_still_to_be_tried_elsewhere_is_not_done(results: Results, tmp_path: Path) -> None:
    run = next(run for run in results.runs if run.name == "home-step-seed0")
    assert run.elsewhere == {"unseen": pytest.approx(0.35)}
    folder = tmp_path / "runs" / run.name
    assert read_status(folder) == "finished"
    get_todo_path(folder).touch()
    assert read_status(folder) == "unfinished"


def order(tmp_path: Path, critic: str) -> list[str]:
    text = STUDY.replace("[settings]", f'[settings]\npolicy.critic = "{critic}"')
    for name in ("token", "prompted"):
        text = text.replace(f'name = "{name}"\n', f'name = "{name}"\ngroup = "{name}"\n')
    study, runs = planned(tmp_path, text)
    chosen = [run for run in runs if run.env == "lake"]
    return [run.name for run in _order_runs(StudyPlan(study, study, runs, chosen, tmp_path, False))]


def test_the_first_to_start_are_those_that_make_different_warm_starts(tmp_path: Path) -> None:
    firsts = ["lake-step-seed0", "lake-step-seed1"]  # one critic for all: the seed alone tells starts apart
    rest = [f"lake-{name}-seed{seed}" for seed in (0, 1) for name in ("token", "prompted")]
    assert order(tmp_path, "own") == [*firsts, *rest]
    assert order(tmp_path, "none") == [
        f"lake-{name}-seed{seed}" for seed in (0, 1) for name in ("step", "token", "prompted")
    ]


LAKES = """
name = "lakes"
seeds = [0]
[settings]
policy = { model = "tiny-0.3m", critic = "own" }
env.options = { size = 3, max_turns = 2 }
agent.guide = false
sampling.max_tokens = 8
warm_start = { num_demos = 4, batch_size = 4 }
eval = { every = 0, num_tasks = 2 }
train = { num_updates = 1, tasks_per_update = 2, group_size = 1, num_tasks = 16 }
[[environments]]
name = "lake"
elsewhere.larger.env.options.size = 4
[[variants]]
name = "steppo"
[[variants]]
name = "react"
settings = { agent.strategy = "free_think", train.num_updates = 0 }
"""


def test_a_place_without_held_out_tasks_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    file, folder = tmp_path / "lakes.toml", tmp_path / "out"
    file.write_text(
        LAKES.replace("larger.env.options.size = 4", "tiny.env.options = {size = 2, min_actions = 5}")
    )
    with pytest.raises(ConfigError, match=r"variant steppo on lake: elsewhere\.tiny: no 2 x 2 board"):
        run_study(file, folder=folder, workers=1, threads=1, console=Console(file=io.StringIO()))
    assert not list((folder / "runs").glob("*/metrics.jsonl"))


@pytest.mark.slow
def test_a_trained_and_an_untrained_agent_are_tried_elsewhere(tmp_path: Path) -> None:
    file, folder = tmp_path / "lakes.toml", tmp_path / "out"
    file.write_text(LAKES)
    console = Console(file=io.StringIO(), width=200)
    assert run_study(file, folder=folder, workers=1, threads=1, console=console).ending == "complete"
    runs = {run["variant"]: run for run in json.loads((folder / "results.json").read_text())["runs"]}
    assert all(0.0 <= run["elsewhere"]["larger"] <= 1.0 for run in runs.values())
    assert not list((folder / "runs").glob("*.todo"))
    assert runs["react"]["updates"] == 0 and runs["react"]["times"] == {}
    assert runs["react"]["success_after"] == runs["react"]["success_before"]
    assert runs["steppo"]["times"]["critic"] > 0 and runs["steppo"]["use"]["turns"] >= 1
    assert "not trained" in (folder / "table.md").read_text()
