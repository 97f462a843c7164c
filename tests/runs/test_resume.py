"""A run that goes on from a checkpoint does, bit for bit, what it would have done anyway."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from glob import glob
from pathlib import Path

import pytest
import torch
from tests.processes import await_end, start_module
from tests.runs.small import notes, small_config, timeless

from stepwell.config import PolicyConfig
from stepwell.config.loading import dump_config
from stepwell.monitors.summary import read_summary
from stepwell.policies import open_policy
from stepwell.pool.credit_reading import list_credit_updates, read_update_credit
from stepwell.pool.credit_records import encode_record
from stepwell.runs.run import train
from stepwell.training.checkpoint import find_damage, find_latest_checkpoint, list_checkpoints

CRITIC = (
    "recipe.name=steppo",
    "train.update_epochs=2",
    "train.minibatches=2",
    "train.schedule=linear",
    "recipe.entropy_coef=0.01",
)
GROUPS = ("recipe.name=grpo", "recipe.kl_coef=0.1", "train.optimizer.kind=muon", "train.token_budget=600")
OUTLINE = ("train.num_updates=6", "checkpoint.every=3", "eval.every=2", "checkpoint.keep=9")


def same(one: Path, other: Path, update: int = 6) -> None:
    """Weights, optimizer, record and best checkpoint of two runs are equal."""
    for name in (f"update-{update:06d}", "best"):
        paths = [folder / "checkpoints" / name for folder in (one, other)]
        weights = [open_policy(PolicyConfig(model=str(path))).state_dict() for path in paths]
        assert weights[0].keys() == weights[1].keys()
        assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0]), name
    states = [torch.load(f / f"checkpoints/update-{update:06d}/trainer.pt") for f in (one, other)]
    assert equal(*states)
    assert timeless(one) == timeless(other)
    assert equal(credit(one), credit(other))


def credit(folder: Path) -> dict[int, list[bytes]]:
    """The stored credit of a run by update, without the ids of trajectories, which are random."""
    return {
        update: sorted(encode_record(record) for record in read_update_credit(folder, update))
        for update in list_credit_updates(folder)
    }


def equal(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)  # type: ignore[arg-type]
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)  # type: ignore[attr-defined,index]
    if isinstance(one, list):
        return all(equal(*pair) for pair in zip(one, other, strict=True))  # type: ignore[call-overload]
    return one == other


def cut_back(whole: Path, copy: Path, update: int) -> Path:
    """A copy of a run as a power cut after `update` would have left it: only its checkpoints up to there."""
    shutil.copytree(whole, copy)
    for path in list_checkpoints(copy / "checkpoints"):
        if int(path.name[-6:]) > update:
            shutil.rmtree(path)
    return copy


@pytest.fixture(scope="module")
def critic_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(small_config(*CRITIC, *OUTLINE, folder=tmp_path_factory.mktemp("critic")))


@pytest.fixture(scope="module")
def group_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(small_config(*GROUPS, *OUTLINE, folder=tmp_path_factory.mktemp("group")))


@pytest.mark.slow
def test_two_runs_with_one_seed_are_the_same_run(critic_run: Path, tmp_path: Path) -> None:
    same(critic_run, train(small_config(*CRITIC, *OUTLINE, folder=tmp_path)))


def test_another_seed_is_another_run(critic_run: Path, tmp_path: Path) -> None:
    other = train(small_config(*CRITIC, *OUTLINE, "seed=1", "train.num_updates=1", folder=tmp_path))
    assert timeless(other)[1] != timeless(critic_run)[1]


@pytest.mark.slow
@pytest.mark.parametrize("update", [0, 3])
def test_critic_epochs_and_minibatches_go_on_bit_for_bit(
    critic_run: Path, tmp_path: Path, update: int
) -> None:
    copy = cut_back(critic_run, tmp_path / "copy", update)
    assert train(resume=copy) == copy
    same(critic_run, copy)


@pytest.mark.slow
def test_groups_with_a_reference_go_on_bit_for_bit(group_run: Path, tmp_path: Path) -> None:
    copy = cut_back(group_run, tmp_path / "copy", 3)
    train(resume=copy)
    same(group_run, copy)


@pytest.mark.slow
@pytest.mark.parametrize("wish", ["policy.lora={rank=2}", "policy.critic=own"])
def test_adapters_and_own_critics_go_on_bit_for_bit(tmp_path: Path, wish: str) -> None:
    outline = ("train.num_updates=2", "checkpoint.every=1", "recipe.kl_coef=0.1", "eval.num_tasks=2")
    whole = train(small_config(wish, *outline, folder=tmp_path, name="whole"))
    copy = cut_back(whole, tmp_path / "copy", 1)
    train(resume=copy)
    same(whole, copy, update=2)


@pytest.mark.slow
def test_repeated_sentences_cost_a_reward_and_their_counts_go_on_bit_for_bit(tmp_path: Path) -> None:
    """The counts of updates 1 and 2 decide what is penalized later."""
    wish = (
        "agent={strategy='grounding', state_form='symbolic'}",
        "sampling={max_tokens=40, temperature=0.4}",  # colder: one sentence; warmer: none is repeated
        "train.optimizer.learning_rate=1e-4",  # so that it goes on to repeat itself
        "train.num_tasks=2",
        "recipe.name=steppo",
        "rewards.judge={kind='rule', threshold=1.0, repetition_penalty=0.1}",
        "rewards.judge.repetition_min_share=0.0001",
        "rewards.judge.repetition_top=1000",  # whatever this machine's rounding makes it say
        "rewards.judge.repetition_memory=0.9",
        "warm_start={num_demos=32, epochs=24, batch_size=16, optimizer={learning_rate=5e-3}}",
        "eval.num_tasks=2",
    )
    outline = ("train.num_updates=4", "checkpoint.every=2", "eval.every=2")
    whole = train(small_config(*wish, *outline, folder=tmp_path, name="whole"))
    copy = cut_back(whole, tmp_path / "copy", 2)
    kept = find_latest_checkpoint(copy / "checkpoints", print)
    assert kept is not None and kept.update == 2
    told = kept.loop["judge"]["repetition"]
    assert len(told["counts"]) > 1 and told["num_texts"] > 0
    train(resume=copy)
    same(whole, copy, update=4)
    ends = [folder / "checkpoints/update-000004/loop.json" for folder in (whole, copy)]
    assert len({json.dumps(json.loads(end.read_text())["judge"]) for end in ends}) == 1
    entries = [entry.values for entry in timeless(whole) if entry.kind == "update"]
    figures = [values["repetition/penalized"] for values in entries]
    assert len(figures) == 4 and max(figures[2:]) > 0
    assert [values["reward/repetition"] < 0 for values in entries] == [share > 0 for share in figures]
    assert any(text.startswith("most repeated sentences") for text in notes(whole))


@pytest.mark.slow
def test_a_run_that_never_reached_a_checkpoint_starts_anew(group_run: Path, tmp_path: Path) -> None:
    copy = cut_back(group_run, tmp_path / "copy", -1)
    train(resume=copy)
    same(group_run, copy)


def test_resuming_a_finished_run_changes_nothing_but_says_so(critic_run: Path, tmp_path: Path) -> None:
    copy = cut_back(critic_run, tmp_path / "copy", 6)
    before = read_summary(copy)
    train(resume=copy)
    after = read_summary(copy)
    assert before is not None and after is not None
    same(critic_run, copy)
    assert "nothing is left to do: the run ended after 6 updates" in notes(copy)
    assert after.after == before.after and after.before == before.before and after.status == "finished"


def test_a_run_stopped_early_stays_stopped_when_resumed(tmp_path: Path) -> None:
    wish = ("train.num_updates=9", "eval.every=1", "eval.patience=2", "train.optimizer.learning_rate=1e-9")
    folder = train(small_config(*wish, folder=tmp_path))
    summary = read_summary(folder)
    assert summary is not None and summary.status == "stopped_early"
    assert summary.more["num_updates"] == 2
    told = timeless(folder)
    train(resume=folder)
    assert timeless(folder) == told


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_with_a_note(critic_run: Path, tmp_path: Path) -> None:
    copy = cut_back(critic_run, tmp_path / "copy", 6)
    weights = copy / "checkpoints/update-000006/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    train(resume=copy)
    same(critic_run, copy)
    (note,) = [text for text in notes(copy) if "damaged" in text]
    assert "update-000006 is damaged (model.safetensors has changed or is cut short)" in note
    assert find_damage(copy / "checkpoints/update-000006") is None


def test_a_run_with_nothing_but_damaged_checkpoints_is_refused(critic_run: Path, tmp_path: Path) -> None:
    copy = cut_back(critic_run, tmp_path / "copy", 3)
    summary = (copy / "summary.json").read_text()
    for path in list_checkpoints(copy / "checkpoints"):
        (path / "complete.json").unlink()
    with pytest.raises(ValueError, match=r"every checkpoint of .* is damaged.*start a new one"):
        train(resume=copy)
    assert (copy / "summary.json").read_text() == summary


def test_a_lost_reference_is_told_and_not_replaced(group_run: Path, tmp_path: Path) -> None:
    copy = cut_back(group_run, tmp_path / "copy", 3)
    (copy / "reference.safetensors").unlink()
    with pytest.raises(ValueError, match=r"reference\.safetensors, the reference weights of the KL term"):
        train(resume=copy)


# --- real interrupts ----------------------------------------------------------------------


def wait_for(condition: Callable[[], object], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


@pytest.mark.slow
def test_after_ctrl_c_the_rest_is_the_same(
    critic_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = ("monitor.console=true", "monitor.tensorboard=true", "monitor.report=true")
    config = small_config(*CRITIC, *OUTLINE, *shown, folder=Path("runs"))
    (tmp_path / "settings.toml").write_text(dump_config(config))
    log, folder = tmp_path / "errors.txt", Path("runs/run")
    started = start_module("stepwell", "train", "settings.toml", log=log)
    try:
        wait_for(lambda: any_in_pool(folder))
        started.send_signal(signal.SIGINT)
        code, _ = await_end(started)
    finally:
        started.kill()
    err = log.read_text()
    assert code == 130, err
    # nothing that a library prints reaches the console
    assert err.split("\n") == ["", f"interrupted. Continue with: stepwell train --resume {folder}", ""]
    found = find_latest_checkpoint(folder / "checkpoints", print)
    assert found is not None and 1 <= found.update < 6
    summary = read_summary(folder)
    assert summary is not None and summary.status == "interrupted"
    assert any("interrupted: finishing this update" in text for text in notes(folder))
    train(resume=folder)
    same(critic_run, folder)
    summary = read_summary(folder)
    assert summary is not None and summary.status == "finished"


@pytest.mark.slow
def test_killed_at_any_moment_the_rest_is_the_same(critic_run: Path, tmp_path: Path) -> None:
    """Kills during warm-up, play, learning, and while a checkpoint is being written."""
    folder = tmp_path / "run"
    config = small_config(*CRITIC, *OUTLINE, "checkpoint.every=1", "checkpoint.keep=1", folder=tmp_path)
    # `Path.glob` fails if a folder vanishes while it looks
    moments: list[Callable[[], object]] = [
        lambda: (folder / "metrics.jsonl").exists(),
        lambda: glob("checkpoints/.best.*/*", root_dir=folder),
        lambda: glob("checkpoints/.update-*/trainer.pt", root_dir=folder),
        lambda: any_in_pool(folder),
        lambda: glob("checkpoints/.update-000002*", root_dir=folder),
        lambda: glob("checkpoints/.update-*/complete.json", root_dir=folder),
        lambda: any_in_pool(folder, "/3-"),
        lambda: glob("checkpoints/update-000004", root_dir=folder),
        lambda: glob("checkpoints/.update-*.gone", root_dir=folder),
    ]
    num_killed = 0
    for number, moment in enumerate(moments, start=1):
        # a fast machine may slip past the moment: then it is killed one checkpoint later, at the latest
        late = f"update-{min(number, 5):06d}"
        child = multiprocessing.get_context("fork").Process(target=go_on, args=(config, folder))
        child.start()
        wait_for(lambda c=child, m=moment, n=late: m() or newest(folder) >= n or not c.is_alive())
        child.kill()
        child.join()
        num_killed += child.exitcode == -signal.SIGKILL
    assert num_killed >= 4
    train(resume=folder)
    same(critic_run, folder)  # which has fewer checkpoints: how many there are changes nothing
    assert [path.name for path in list_checkpoints(folder / "checkpoints")] == ["update-000006"]
    assert not list(folder.glob("checkpoints/.*"))


def any_in_pool(folder: Path, part: str = "") -> bool:
    """Whether trajectories of a group of such a name were committed by now."""
    path = folder / "pool" / "pool.db"
    if not path.exists():
        return False
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        try:
            query = "SELECT count(*) FROM groups WHERE name LIKE ?"
            return bool(database.execute(query, (f"%{part}%",)).fetchone()[0])
        except sqlite3.OperationalError:  # its tables are being made
            return False


def newest(folder: Path) -> str:
    """The name of the newest checkpoint; empty while there is none."""
    return max((path.name for path in list_checkpoints(folder / "checkpoints")), default="")


def go_on(config: object, folder: Path) -> None:
    """In a process of its own: begin the run, or go on with it."""
    if (folder / "config.toml").exists():
        train(resume=folder)
    else:
        train(config)  # type: ignore[arg-type]
