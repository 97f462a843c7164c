"""`stepwell pool` on a real pool: lists, shows, counts, moves, marks and collects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepwell.cli.main import main
from stepwell.core import Status, Step, Task, Trajectory
from stepwell.pool import open_pool


def trajectory(number: int, status: Status, channel_reward: float) -> Trajectory:
    step = Step.from_tokens([1, 2, number], [4, 5], behavior_logprobs=[-0.5, -0.25], text=f"words {number}")
    step.assign_reward({"task": channel_reward})
    return Trajectory(Task("lake", {"n": number}), [step], status, id=f"traj-{number}")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with open_pool(tmp_path / "pool.db") as pool:
        pool.add([trajectory(n, Status.SUCCESS, 1.0) for n in range(3)], channel="user", tags=("good",))
        pool.add([trajectory(n, Status.FAILURE, 0.0) for n in range(3, 5)], channel="user")
        pool.report("traj-1", "a person liked it")
    return tmp_path / "pool.db"


def said(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    assert main(["pool", *map(str, args)]) == 0
    return capsys.readouterr().out


def test_lists_newest_first_and_by_filter(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "ls", place).splitlines()
    assert [line.split("\t")[0] for line in lines[1:-1]] == [f"traj-{n}" for n in (4, 3, 2, 1, 0)]
    assert lines[-1] == "5 of 5 trajectories"
    wins = said(capsys, "ls", place.parent, "--status", "success", "--limit", 2, "--json").splitlines()
    assert [json.loads(line)["id"] for line in wins] == ["traj-2", "traj-1"]
    for option in (("--min-reward", 0.5), ("--tag", "good"), ("--newer-than", "1h", "--max-version", 0)):
        count = {"--min-reward": 3, "--tag": 3, "--newer-than": 5}[str(option[0])]
        assert said(capsys, "ls", place, *option).splitlines()[-1] == f"{count} of {count} trajectories"
    assert said(capsys, "ls", place, "--older-than", "1m").splitlines()[-1] == "0 of 0 trajectories"


def test_shows_one_by_the_beginning_of_its_id(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "show", place, "traj-1")
    assert "traj-1  user  success" in text and "words 1" in text and '"a person liked it"' in text
    assert "step 0: 3 prompt ids, 2 sampled, reward 1 (task 1)" in text
    told = json.loads(said(capsys, "show", place, "traj-1", "--json"))
    assert told["steps"][0]["prompt_ids"] == [1, 2, 1]
    assert told["steps"][0]["behavior_logprobs"] == [-0.5, -0.25]
    assert main(["pool", "show", str(place), "traj-"]) == 2
    assert "5 trajectories have an id that begins with 'traj-'" in capsys.readouterr().err


def test_counts_by_channel(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "stats", place).splitlines()
    user = next(line for line in lines if line.startswith("user")).split("\t")
    assert user[1:4] == ["5", "0", "5"] and "success 3" in user[5] and "failure 2" in user[5]
    assert "tags: good 3" in lines
    assert json.loads(said(capsys, "stats", place, "--json"))["channels"]["user"]["num_steps"] == 5


@pytest.mark.parametrize("name", ["some.jsonl", "some.parquet"])
def test_what_is_exported_can_be_imported(
    name: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / name, tmp_path / "other.db"
    assert said(capsys, "export", place, file, "--status", "success") == f"3 trajectories in {file}\n"
    assert said(capsys, "import", other, file, "--tag", "moved") == f"3 new trajectories in {other}\n"
    assert said(capsys, "import", other, file) == f"0 new trajectories in {other}\n"
    with open_pool(place) as pool, open_pool(other) as copy:
        assert copy.get("traj-2").trajectory.steps == pool.get("traj-2").trajectory.steps
        assert set(copy.get("traj-2").tags) == {"good", "moved"}


def test_marks_and_unmarks(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "tag", place, "look", "--id", "traj-3") == "1 trajectories now have the tag 'look'\n"
    assert said(capsys, "tag", place, "good", "--with-tag", "good", "--remove").startswith(
        "3 trajectories no"
    )
    with open_pool(place) as pool:
        assert (pool.get("traj-3").tags, pool.get("traj-0").tags) == (("look",), ())


def test_a_person_judges_and_lists_by_that(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "judge", place, "traj-4", 0.9, "--by", "anna") == "traj-4 now counts as a success\n"
    assert said(capsys, "judge", place, "traj-0", 0) == "traj-0 now counts as a failure\n"
    listed = said(capsys, "ls", place, "--solved").splitlines()
    assert [line.split("\t")[0] for line in listed[1:-1]] == ["traj-4", "traj-2", "traj-1"]
    assert listed[1].split("\t")[3:5] == ["failure", "0.90 (human, anna)"]
    assert said(capsys, "ls", place, "--no-solved").splitlines()[-1] == "2 of 2 trajectories"
    assert "judged    0.90 (human, anna)" in said(capsys, "show", place, "traj-4")
    told = json.loads(said(capsys, "show", place, "traj-0", "--json"))
    assert told["outcome"]["success_probability"] == 0.0 and len(told["outcome_history"]) == 1
    assert main(["pool", "judge", str(place), "traj-4", "2"]) == 2
    assert "give a number from 0 to 1" in capsys.readouterr().err


def test_collects_the_oldest_and_says_what_would_go(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dry = said(capsys, "gc", place, "--max-size", "0.1k", "--dry-run")
    assert dry.startswith("5 trajectories with 5 steps") and dry.endswith("would go\n")
    said(capsys, "tag", place, "keep", "--id", "traj-0")
    assert said(capsys, "gc", place, "--max-size", "0").startswith("4 trajectories with 4 steps")
    with open_pool(place) as pool:
        assert [entry.id for entry in pool.find()] == ["traj-0"]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("ls", "nowhere.db"), "there is no pool at nowhere.db"),
        (("gc", "POOL"), "give --max-size, --max-age or both"),
        (("ls", "POOL", "--status", "won"), "status 'won' is unknown"),
        (("export", "POOL", "some.txt"), "some.txt"),
    ],
)
def test_mistakes_are_told_in_a_line(
    args: tuple[str, ...], problem: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pool", *(str(place) if arg == "POOL" else arg for arg in args)]) == 2
    error = capsys.readouterr().err
    assert problem in error and error.count("\n") == 1


def test_ages_and_sizes_have_units(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pool", "gc", str(place), "--max-age", "soon"])
    assert "'soon' is not an age such as 90m, 12h or 30d" in capsys.readouterr().err
