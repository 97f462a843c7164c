"""What a run leaves in its folder, and when it ends."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path

import pytest
from PIL import Image
from tests.runs.small import notes, played, small_config, timeless
from tests.variants import keep_quick

from stepwell.config.loading import load_config
from stepwell.core import ConfigError
from stepwell.monitors.replays import load_replays
from stepwell.monitors.summary import read_summary
from stepwell.runs.run import make_run_folder, train
from stepwell.training.checkpoint import list_checkpoints

FULL = ("monitor.report=true", "monitor.tensorboard=true", "train.num_updates=3", "eval.every=2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    start = ("warm_start.num_demos=8", "warm_start.batch_size=4", "warm_start.noise=0.1")
    config = small_config(*FULL, *start, "checkpoint.every=1", folder=tmp_path_factory.mktemp("runs"))
    return train(config)


@pytest.mark.slow
def test_the_command_in_the_report_does_the_run_once_more_beside_it(whole: Path) -> None:
    summary = read_summary(whole)
    assert summary is not None and summary.command in (whole / "report.html").read_text()
    _, _, source, *settings = shlex.split(summary.command)
    again = make_run_folder(load_config(source, settings))
    assert again.parent == whole.parent and not list(again.iterdir())
    again.rmdir()


def test_no_chart_of_the_report_has_the_bare_name_of_a_figure_as_its_title(whole: Path) -> None:
    page = (whole / "report.html").read_text()
    assert not re.findall(r">\s*((?:grad_norm|loss|parity|time|reward)/\w+)\s*<", page)


def test_a_run_folder_is_complete(whole: Path) -> None:
    names = {path.name for path in whole.iterdir()}
    assert names == {
        ".lock",
        "checkpoints",
        "config.toml",
        "credit.db",
        "eval_episodes.jsonl",
        "metrics.jsonl",
        "reference.safetensors",
        "replays.json",
        "report.html",
        "run.json",
        "summary.json",
        "tensorboard",
        "pool",
    }
    assert load_config(whole) == small_config(
        *FULL,
        *("warm_start.num_demos=8", "warm_start.batch_size=4", "warm_start.noise=0.1"),
        "checkpoint.every=1",
        folder=whole.parent,
    )
    kept = [path.name for path in list_checkpoints(whole / "checkpoints")]
    assert kept == ["update-000002", "update-000003"]
    html = (whole / "report.html").read_text()
    assert "<html" in html and "frozenlake" in html and "steppo" in html
    assert not re.search(r"""(src|href)=["']https?:""", html)


def test_the_summary_says_what_the_record_says(whole: Path) -> None:
    summary = json.loads((whole / "summary.json").read_text())
    evals = [entry for entry in timeless(whole) if entry.kind == "eval"]
    assert [entry.update for entry in evals] == [0, 2, 3]
    assert summary["success_before"] == evals[0].values["success"] == summary["before"]["success"]
    assert summary["success_after"] == evals[-1].values["success"] == summary["after"]["success"]
    assert summary["before"]["num_tasks"] == 6 and summary["after"]["low"] == evals[-1].values["low"]
    assert summary["env_steps"] == evals[-1].env_steps > 0
    assert summary["seed"] == 0 and summary["recipe"] == "steppo" and summary["env"] == "frozenlake"
    assert summary["status"] == "finished" and summary["num_updates"] == 3
    assert summary["wall_s"] > summary["warm_start_s"] > 0
    assert summary["wall_s"] > summary["checkpoint_wait_s"] >= 0
    assert summary["decoding"] == {"temperature": 0.0, "samples_per_task": 1}
    assert {"processor", "cores", "threads", "torch", "stepwell"} <= summary["machine"].keys()


def test_figures_of_an_update_are_all_there(whole: Path) -> None:
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    updates = [line for line in lines if line["kind"] == "update"]
    wanted = {
        *("success", "reward", "reward/task", "entropy", "kl", "clip_share", "ratio", "loss/policy"),
        *("loss/value", "explained_variance", "grad_norm", "learning_rate", "tokens", "tokens_per_s"),
        *("turns", "format_share", "time/rollout_s", "time/update_s", "time/publish_s", "infra_errors"),
        "time/checkpoint_s",
    }
    assert all(wanted <= line.keys() for line in updates)
    for line in updates:
        learnt = played(whole, line["update"])
        assert line["reward"] == pytest.approx(sum(t.total_reward for t in learnt) / 8)
        assert line["tokens"] == sum(step.num_units for t in learnt for step in t.steps)
        assert line["ratio"] == pytest.approx(1.0, abs=1e-5)
    counts = [int(t.info["num_actions"]) for u in (1, 2, 3) for t in played(whole, u)]  # type: ignore[arg-type]
    assert updates[-1]["env_steps"] == sum(counts)
    assert [line["step"] for line in lines if line["kind"] == "warm_start"] == [2.0]
    assert any(text.startswith("warm start: 8 demonstrations") for text in notes(whole))


def test_an_environment_that_draws_nothing_has_no_images_in_its_replays(tmp_path: Path) -> None:
    settings = (
        "env.name=household",
        "env.options={size='tiny'}",
        "train.num_updates=1",
        "monitor.report=true",
    )
    folder = train(small_config(*settings, "engine.max_length=1024", folder=tmp_path))
    replays = load_replays(folder / "replays.json")
    assert replays and all(frame.image_png is None for one in replays for frame in one.frames)
    assert all(frame.observation for one in replays for frame in one.frames)


PAGE = """
import numpy as np
from stepwell.core import ActionSpace, EnvDescription, Observation, Task
from stepwell.envs import Effect, Env

class Page(Env):
    name = "page"
    description = EnvDescription(name, "Count.", ActionSpace(("More", "Less")), max_turns=2)
    @classmethod
    def make_task(cls, options, seed): return Task(cls.name, {"n": seed % 50})
    def begin(self, task, seed): self.n = task.content["n"]
    def act(self, action): return Effect(1.0, terminated=True, success=True)
    def observe(self): return Observation(str(self.n))
    def oracle(self): return ["More"]
    def render(self):
        window = np.full((720, 1280, 3), 80, np.uint8)
        window[:210, :160] = 200
        return window
"""


def test_the_empty_part_of_a_window_is_left_out_of_replays(tmp_path: Path) -> None:
    (tmp_path / "page_env.py").write_text(PAGE)
    settings = (f"env.name={tmp_path}/page_env.py:Page", "env.options={}", "train.num_updates=1")
    folder = train(small_config(*settings, "monitor.report=true", folder=tmp_path))
    shown = [frame.image_png for one in load_replays(folder / "replays.json") for frame in one.frames]
    sizes = {Image.open(io.BytesIO(png or b"")).size for png in shown}
    assert sizes == {(160, 210)}


def test_replays_show_the_same_boards_before_and_after_with_what_each_turn_was_worth(whole: Path) -> None:
    replays = load_replays(whole / "replays.json")
    boards = {stage: [r.task_id for r in replays if r.stage == stage] for stage in ("before", "after")}
    assert boards["before"] == boards["after"] and len(boards["before"]) == 6
    for replay in replays:
        assert sum(frame.reward for frame in replay.frames) == pytest.approx(replay.total_reward)
        for frame in replay.frames:
            assert frame.image_png is not None and frame.image_png.startswith(b"\x89PNG")
            assert frame.value is not None and frame.advantage is not None


def test_a_folder_in_use_is_not_overwritten(whole: Path) -> None:
    with pytest.raises(ConfigError, match="exists already; continue with --resume"):
        train(small_config(folder=whole.parent, name=whole.name))


# --- ends ---------------------------------------------------------------------------------------


def test_the_run_ends_once_enough_actions_were_executed(tmp_path: Path) -> None:
    folder = train(small_config("train.num_updates=50", "train.max_env_steps=30", folder=tmp_path))
    summary = read_summary(folder)
    assert summary is not None and summary.status == "finished"
    entries = timeless(folder)
    steps = [entry.env_steps for entry in entries if entry.kind == "update"]
    assert steps[-1] >= 30 > steps[-2] and summary.env_steps == steps[-1]
    assert entries[-1].kind == "eval" and entries[-1].update == len(steps)
    assert any(text.startswith("train.max_env_steps (30) reached") for text in notes(folder))


def test_the_run_ends_when_its_time_is_over(tmp_path: Path) -> None:
    folder = train(small_config("train.num_updates=500", "train.max_seconds=0.01", folder=tmp_path))
    summary = read_summary(folder)
    assert summary is not None and summary.status == "finished" and summary.more["num_updates"] <= 1
    assert any("train.max_seconds (0.01) reached" in text for text in notes(folder))


def test_the_run_ends_where_the_agent_has_ceased_to_act(tmp_path: Path) -> None:
    costly = ("env.name=tests.runs.broken_envs:RichLake", "env.options={size=3, max_turns=2, reward=-5.0}")
    wish = ("train.num_updates=60", "train.max_silent_updates=2", "train.optimizer.learning_rate=0.02")
    folder = train(small_config(*costly, *wish, "recipe.name=grpo", folder=tmp_path))
    summary = read_summary(folder)
    assert summary is not None and summary.status == "finished" and summary.success_after == 0.0
    steps = [entry.env_steps for entry in timeless(folder) if entry.kind == "update"]
    assert len(steps) < 60 and steps[-1] == steps[-3] > 0
    assert any("almost no actions in 2 updates" in text for text in notes(folder))


def test_the_run_stops_early_where_it_is_good_enough(tmp_path: Path) -> None:
    wish = ("train.num_updates=9", "eval.every=1", "eval.stop_at=0.0001", "eval.num_tasks=40")
    folder = train(small_config(*wish, "train.optimizer.learning_rate=1e-9", folder=tmp_path))
    summary = read_summary(folder)
    assert summary is not None and summary.success_after is not None
    assert summary.success_after > 0 and summary.status == "stopped_early"
    assert summary.more["num_updates"] == 0


def test_no_updates_is_an_evaluation(tmp_path: Path) -> None:
    folder = train(small_config("train.num_updates=0", folder=tmp_path))
    assert [entry.kind for entry in timeless(folder)] == ["eval"]
    summary = read_summary(folder)
    assert summary is not None and summary.success_after == summary.success_before


SHAPES = ((1, 1, 1), (3, 5, 2), (7, 1, 4), (5, 3, 15))


@pytest.mark.parametrize(("tasks", "size", "minibatches"), keep_quick(SHAPES, SHAPES[:2].__contains__))
def test_any_batch_and_group_size_trains(tmp_path: Path, tasks: int, size: int, minibatches: int) -> None:
    shape = (
        f"train.tasks_per_update={tasks}",
        f"train.group_size={size}",
        f"train.minibatches={minibatches}",
        "train.num_updates=1",
        "engine.max_batch_size=3",
    )
    folder = train(small_config(*shape, folder=tmp_path))
    assert len(played(folder, 1)) == tasks * size


def test_the_warm_start_ends_where_enough_training_tasks_are_solved(tmp_path: Path) -> None:
    start = ("num_demos=64", "epochs=50", "batch_size=16", "check_every=3", "stop_at=0.05")
    settings = [f"warm_start.{item}" for item in (*start, "optimizer.learning_rate=5e-3")]
    config = small_config(*settings, "train.num_updates=0", "eval.num_tasks=16", folder=tmp_path)
    folder = train(config)
    (told,) = [text for text in notes(folder) if text.endswith("(enough)")]
    number = int(re.search(r"update (\d+) of at most 200", told)[1])  # type: ignore[index]
    assert number % 3 == 0 and number < 200  # fifty epochs would be 200 updates
