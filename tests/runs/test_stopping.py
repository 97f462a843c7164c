"""Runs that were asked to stop, moved, extended and changed: what they say of themselves is true."""

from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import closing
from pathlib import Path

import pytest
import torch
from tests.runs.small import notes, small_config, timeless
from tests.runs.test_resume import equal

from stepwell.cli.main import main
from stepwell.cli.summary import describe_run
from stepwell.config.loading import load_config
from stepwell.core import ConfigError
from stepwell.monitors import LogEntry, Monitor
from stepwell.monitors.jsonl import read_entries
from stepwell.monitors.report import write_report
from stepwell.monitors.summary import read_summary
from stepwell.pool import open_pool
from stepwell.runs import run as run_module
from stepwell.runs.evaluation.evaluate import choose_checkpoint
from stepwell.runs.interrupts import Terminated
from stepwell.runs.run import raise_if_interrupted, train
from stepwell.training.checkpoint import list_checkpoints

LONG = ("train.num_updates=4", "checkpoint.every=0", "train.schedule=linear")


class SignalAt(Monitor):
    """Sends this process a signal once an update is recorded, which is between two updates."""

    def __init__(self, update: int, number: signal.Signals, kind: str) -> None:
        self._update, self._number, self._kind = update, number, kind

    def record(self, entry: LogEntry) -> None:
        if entry.kind == self._kind and entry.update == self._update:
            os.kill(os.getpid(), self._number)


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """A function that makes runs stop after an update by a real signal."""
    made = run_module._make_monitors

    def stop(update: int, number: signal.Signals = signal.SIGTERM, kind: str = "update") -> None:
        monkeypatch.setattr(
            run_module, "_make_monitors", lambda config: [*made(config), SignalAt(update, number, kind)]
        )

    yield stop
    monkeypatch.undo()


def state_of(folder: Path, update: int) -> object:
    return torch.load(folder / f"checkpoints/update-{update:06d}/trainer.pt")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four updates without a stop."""
    return train(small_config(*LONG, folder=tmp_path_factory.mktemp("whole")))


# --- asked to stop ----------------------------------------------------------------------------------


def test_a_signal_in_the_warm_start_ends_it_at_once(tmp_path: Path, stop_at) -> None:  # type: ignore[no-untyped-def]
    stop_at(0, kind="warm_start")
    warm = ("warm_start.num_demos=16", "warm_start.batch_size=1", "warm_start.epochs=1000")
    with pytest.raises(Terminated):
        train(small_config(*warm, folder=tmp_path, name="cut"))
    entries = read_entries(tmp_path / "cut" / "metrics.jsonl")
    assert sum(entry.kind == "warm_start" for entry in entries) == 1
    assert any("in the warm start, which is not kept" in note for note in notes(tmp_path / "cut"))


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_a_signal_saves_the_run_and_is_told_apart(
    tmp_path: Path, stop_at, number: signal.Signals, error: type[BaseException]
) -> None:
    stop_at(2, number)
    folder = train(small_config(*LONG, folder=tmp_path))
    assert [path.name for path in list_checkpoints(folder / "checkpoints")][-1] == "update-000002"
    summary = read_summary(folder)
    assert summary is not None and summary.status == "interrupted"
    assert summary.interrupted_by == number.name
    with pytest.raises(KeyboardInterrupt) as raised:
        raise_if_interrupted(folder)
    assert raised.type is error


def test_the_command_ends_with_143_after_sigterm_and_says_how_to_continue(
    tmp_path: Path, stop_at, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "settings.toml").write_text(run_module.dump_config(small_config(*LONG, folder=tmp_path)))
    stop_at(1)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["train", str(tmp_path / "settings.toml")]) == 143
    told = capsys.readouterr()
    assert f"stopped by SIGTERM. Continue with: stepwell train --resume {tmp_path / 'run'}" in told.err
    assert "not measured after update 1" in told.out
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_run_that_was_stopped_does_not_show_its_start_as_its_end(tmp_path: Path, stop_at) -> None:
    stop_at(2)
    folder = train(small_config(*LONG, folder=tmp_path))
    summary = read_summary(folder)
    assert summary is not None and summary.success_before is not None
    assert summary.success_after is None and summary.after is None
    assert summary.latest is not None and summary.latest.name == "update 0"
    line = describe_run(folder)
    assert "->" not in line and "?" not in line
    assert f"{summary.success_before:.2f} before training, not measured after update 2" in line
    page = write_report(folder).read_text()
    assert "not measured after update 2, the last one." in page
    path, why = choose_checkpoint(folder)
    assert path.name == "update-000002" and "no weights after training were evaluated" in why


def test_an_evaluation_on_the_way_is_named_and_the_best_by_it_is_taken(tmp_path: Path, stop_at) -> None:
    stop_at(3)
    folder = train(small_config(*LONG, "eval.every=2", "eval.temperature=1", folder=tmp_path))
    summary = read_summary(folder)
    assert summary is not None and summary.latest is not None and summary.best is not None
    assert summary.latest.name == "update 2" and summary.success_after is None
    assert f"{summary.latest.success:.2f} at update 2, not measured after update 3" in describe_run(folder)
    path, why = choose_checkpoint(folder)
    assert path.name == "best" and f"{summary.best.name}, held-out success {summary.best.success:.2f}" in why


def test_a_run_without_evaluations_says_so(tmp_path: Path) -> None:
    folder = train(small_config("train.num_updates=1", "eval.num_tasks=0", folder=tmp_path))
    assert describe_run(folder) == f"held-out success was not measured (eval.num_tasks is 0)  run {folder}"
    assert "Held-out success was not measured" in write_report(folder).read_text()
    path, why = choose_checkpoint(folder)
    assert path.name == "update-000001" and why == "the last, of update 1: none was evaluated"


def test_eval_says_which_checkpoint_it_takes(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(whole), "--num-tasks", "2"]) == 0
    assert "checkpoint the best of those that were evaluated, of update" in capsys.readouterr().out


# --- time -------------------------------------------------------------------------------------------


def test_checkpoints_by_time_change_nothing_that_is_learnt(whole: Path, tmp_path: Path) -> None:
    often = ("checkpoint.every_minutes=1e-9", "checkpoint.keep=9")
    folder = train(small_config(*LONG, *often, folder=tmp_path))
    assert [path.name[-1] for path in list_checkpoints(folder / "checkpoints")] == list("01234")
    assert [path.name[-1] for path in list_checkpoints(whole / "checkpoints")] == list("04")
    assert equal(state_of(whole, 4), state_of(folder, 4)) and timeless(whole) == timeless(folder)


# --- moved ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_renamed_and_moved_run_goes_on_bit_for_bit(whole: Path, tmp_path: Path, stop_at) -> None:
    """Killed after the episodes of update 3 were stored, so that the pool holds some that are not learnt."""
    stop_at(2)
    folder = train(small_config(*LONG, folder=tmp_path / "first"))
    stop_at(99)
    shutil.copytree(folder, tmp_path / "copy")
    train(resume=tmp_path / "copy")  # stores what updates 3 and 4 play
    shutil.rmtree(folder / "pool")
    shutil.copytree(tmp_path / "copy" / "pool", folder / "pool")
    moved = tmp_path / "elsewhere" / "renamed"
    moved.parent.mkdir()
    folder.rename(moved)
    assert train(resume=moved) == moved
    assert equal(state_of(whole, 4), state_of(moved, 4)) and timeless(whole) == timeless(moved)
    assert not folder.exists()
    with closing(open_pool(moved / "pool" / "pool.db")) as pool:  # its episodes still belong to it
        assert {entry.group.partition("/")[0] for entry in pool.find()} == {"run"}


# --- extended and changed ---------------------------------------------------------------------------


@pytest.mark.slow
def test_an_extended_run_learns_what_a_longer_one_would_have(tmp_path: Path) -> None:
    constant = ("eval.every=2", "train.schedule=constant")
    long = train(small_config(*LONG, *constant, folder=tmp_path, name="long"))
    short = train(small_config(*LONG, *constant, "train.num_updates=2", folder=tmp_path, name="short"))
    assert main(["train", "--resume", str(short), "train.num_updates=4"]) == 0
    assert equal(state_of(long, 4), state_of(short, 4)) and timeless(long) == timeless(short)
    assert load_config(short).train.num_updates == 4
    summary = json.loads((short / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["num_updates"] == 4
    (change,) = summary["changes"]
    assert (change["key"], change["old"], change["new"]) == ("train.num_updates", 2, 4)
    assert change["update"] == 2
    assert "train.num_updates from 2 to 4 after update 2" in describe_run(short)
    assert any("train.num_updates 2 -> 4 (a falling schedule is stretched" in text for text in notes(short))


def test_what_a_run_cannot_go_on_with_is_refused_with_the_reason(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in whole.glob("*") if path.is_file() and path.name != ".lock"}
    wish = ["seed=3", "env.options.size=5", "recipe.name=grpo", "train.num_updates=9"]
    assert main(["train", "--resume", str(whole), *wish]) == 2
    told = capsys.readouterr().err
    assert "seed 0 -> 3 is refused, because tasks, episodes and new weights follow from it" in told
    assert "env.options.size 3 -> 5 is refused" in told and 'recipe.name "steppo" -> "grpo"' in told
    assert "train.num_updates" not in told
    assert before == {path: path.read_bytes() for path in before}


def test_fewer_updates_than_were_made_are_refused(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = (whole / "config.toml").read_bytes()
    assert main(["train", "--resume", str(whole), "train.num_updates=3"]) == 2
    told = capsys.readouterr().err
    assert f"train.num_updates is 3, but {whole} has made 4 updates; give more, or leave it out" in told
    assert (whole / "config.toml").read_bytes() == settings


def test_an_edited_config_is_noticed_and_judged_by_the_same_rules(whole: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    text = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(text.replace("group_size = 2", "group_size = 4"))
    with pytest.raises(ConfigError, match=r"train\.group_size 2 -> 4 is refused, because the order of tasks"):
        train(resume=copy)
    (copy / "config.toml").write_text(text.replace("num_updates = 4", "num_updates = 5"))
    train(resume=copy)
    assert any("changed from here on: train.num_updates 4 -> 5" in text for text in notes(copy))
    assert [path.name[-1] for path in list_checkpoints(copy / "checkpoints")][-1] == "5"


def test_a_shortened_run_is_evaluated_where_it_ends(tmp_path: Path, stop_at) -> None:
    stop_at(2)
    folder = train(small_config(*LONG, folder=tmp_path))
    stop_at(99)
    train(load_config(folder, ["train.num_updates=2"]), resume=folder)
    summary = read_summary(folder)
    assert summary is not None and summary.status == "finished" and summary.success_after is not None
    assert timeless(folder)[-1].kind == "eval" and timeless(folder)[-1].update == 2


def test_another_way_to_measure_begins_a_new_best_and_marks_the_old_figure(
    whole: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    train(load_config(copy, ["train.num_updates=5", "eval.num_tasks=3"]), resume=copy)
    summary = read_summary(copy)
    assert summary is not None and summary.best is not None and summary.after is not None
    assert summary.best.name == "update 5" and summary.after.num_tasks == 3
    assert "(before: with other eval settings)" in describe_run(copy)
