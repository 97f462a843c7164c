"""Parts of a study that were run apart, joined into one table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.studies.study_files import THREE, planned, study_of, write_run

from stepwell.cli.main import main
from stepwell.config.study import plan_runs
from stepwell.core.errors import ConfigError
from stepwell.studies.folder import read_sessions
from stepwell.studies.pages import write_pages
from stepwell.studies.results import collect_results, join


def part(tmp_path: Path, name: str, heights: dict[str, list[float]], *, is_quick: bool = False) -> Path:
    """The results file of a folder in which only some runs came to their end."""
    folder = tmp_path / name
    folder.mkdir()
    study = study_of(THREE, folder)
    runs = planned(THREE, folder)
    for run in runs:
        if run.name in heights:
            write_run(run, heights[run.name])
    sessions = [
        {"command": name, "started": "", "workers": 1, "threads": 1, "wall_s": 1.0, "ending": "limit"}
    ]
    write_pages(folder, collect_results(study, runs, is_quick=is_quick, sessions=sessions))
    return folder / "results.json"


def test_joined_parts_give_the_figures_of_one_study(tmp_path: Path) -> None:
    every = {f"lake-{v}-seed{s}": [0.25, 0.1 * s] for v in ("base", "good") for s in (0, 1, 2)}
    first = {name: heights for name, heights in every.items() if "base" in name}
    files = [
        part(tmp_path, "first", first),
        part(tmp_path, "second", {n: h for n, h in every.items() if n not in first}),
    ]
    whole = json.loads(part(tmp_path, "whole", every).read_text())
    study = study_of(THREE, tmp_path)
    joined = join(study, plan_runs(study, tmp_path, tmp_path / "runs"), files)
    # through JSON, as files hold it: tuples become lists
    written = json.loads(json.dumps(joined.as_json()))
    assert written["rows"] == whole["rows"] and written["runs"] == whole["runs"]
    assert written["num_done"] == 6 and written["machines"] == whole["machines"]
    assert [session["command"] for session in written["sessions"]] == ["first", "second"]


def test_a_part_of_an_earlier_version_is_joined(tmp_path: Path) -> None:
    file = part(tmp_path, "first", {"lake-base-seed0": [0.25, 0.5]})
    content = json.loads(file.read_text())
    content["sittings"] = content.pop("sessions")
    file.write_text(json.dumps(content))
    study = study_of(THREE, tmp_path)
    joined = join(study, plan_runs(study, tmp_path, tmp_path / "runs"), [file])
    assert [session["command"] for session in joined.sessions] == ["first"]
    assert [session["command"] for session in read_sessions(file.parent)] == ["first"]


def test_a_remark_about_a_run_is_kept_and_told_in_the_table(tmp_path: Path) -> None:
    file = part(tmp_path, "first", {"lake-base-seed0": [0.25, 0.5], "lake-good-seed0": [0.25, 0.5]})
    content = json.loads(file.read_text())
    next(run for run in content["runs"] if run["name"] == "lake-good-seed0")["remark"] = "a <former> way"
    file.write_text(json.dumps(content))
    study = study_of(THREE, tmp_path)
    write_pages(tmp_path, join(study, plan_runs(study, tmp_path, tmp_path / "runs"), [file]))
    table, page = ((tmp_path / name).read_text() for name in ("table.md", "study.html"))
    assert "| good † |" in table and "| base (baseline) |" in table
    assert "* lake-good-seed0: a <former> way" in table and "a &lt;former&gt; way" in page


@pytest.mark.parametrize(
    ("error", "heights", "status"),
    [
        ("ParityError: engine and trainer disagree", [0.25, 0.0, 0.0], "collapsed"),
        ("ParityError: engine and trainer disagree", [0.25, 0.0, 0.1], "failed"),  # it still solves some
        ("ParityError: engine and trainer disagree", [0.0, 0.0, 0.0], "failed"),  # it never did
        ("InfraError: killed by SIGKILL", [0.25, 0.0, 0.0], "failed"),  # says nothing about the policy
    ],
)
def test_a_run_stopped_after_its_policy_fell_apart_counts_as_zero(
    tmp_path: Path, error: str, heights: list[float], status: str
) -> None:
    file = part(tmp_path, "first", {"lake-base-seed0": heights, "lake-good-seed0": [0.25, 0.5]})
    content = json.loads(file.read_text())
    stopped = next(run for run in content["runs"] if run["name"] == "lake-base-seed0")
    stopped |= {"status": "failed", "error": error, "success_after": None, "by_task": []}
    file.write_text(json.dumps(content))
    study = study_of(THREE, tmp_path)
    joined = join(study, plan_runs(study, tmp_path, tmp_path / "runs"), [file])
    run = next(run for run in joined.runs if run.name == "lake-base-seed0")
    assert (run.status, run.success_after) == (status, 0.0 if status == "collapsed" else None)
    assert joined.num_done == (2 if status == "collapsed" else 1)
    base = next(row for row in joined.rows["lake"] if row.variant == "base")
    assert (base.after is not None and base.after.mean == 0.0) == (status == "collapsed")


def test_of_a_run_in_several_parts_the_last_finished_one_counts(tmp_path: Path) -> None:
    name = "lake-base-seed0"
    files = [
        part(tmp_path, "a", {name: [0.25, 0.5]}),
        part(tmp_path, "b", {name: [0.25, 0.75]}),
        part(tmp_path, "c", {"lake-good-seed0": [0.25, 0.9]}),  # where that run is still waiting
    ]
    study = study_of(THREE, tmp_path)
    runs = plan_runs(study, tmp_path, tmp_path / "runs")

    def after(order: list[Path]) -> float | None:
        return next(run.success_after for run in join(study, runs, order).runs if run.name == name)

    assert after(files) == 0.75
    assert after([files[1], files[0], files[2]]) == 0.5


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    quick = part(tmp_path, "quick", {}, is_quick=True)
    whole = part(tmp_path, "whole", {"lake-base-seed1": [0.25, 0.5]})
    study = study_of(THREE, tmp_path)
    runs = plan_runs(study, tmp_path, tmp_path / "runs")
    with pytest.raises(ConfigError, match="short form"):
        join(study, runs, [quick, whole])
    with pytest.raises(ConfigError, match="no run lake-base-seed1"):
        join(study, runs[:1], [whole])
    fewer = [run for run in runs if run.name == "lake-base-seed1"]
    assert join(study, fewer, [whole]).num_done == 1  # the runs that left the study had never started
    other = study.model_copy(update={"name": "other"})
    with pytest.raises(ConfigError, match="study 'three', not of 'other'"):
        join(other, runs, [whole])
    torn = tmp_path / "torn.json"
    torn.write_text('{"name": ')
    with pytest.raises(ConfigError, match=r"not the results\.json of a study"):
        join(study, runs, [torn])


def test_the_command_writes_the_joined_table_and_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heights = {f"lake-base-seed{seed}": [0.25, 0.5] for seed in (0, 1, 2)}
    heights |= {f"lake-good-seed{seed}": [0.25, 0.6 + seed / 100] for seed in (0, 1)}
    file = part(tmp_path, "only", heights)
    (tmp_path / "three.toml").write_text(THREE)
    code = main(["study", f"{tmp_path}/three.toml", "--join", str(file), "--folder", f"{tmp_path}/joined"])
    told = capsys.readouterr().out
    assert code == 1 and "5 of 12 runs done" in told
    assert "good against base: +0.105" in told and "lake: 2 seeds" in told  # and what two seeds can detect
    assert "| good | 2 of 3 |" in (tmp_path / "joined" / "table.md").read_text()
    some = ["--only", "base-seed", "good-seed[01]", "--folder", f"{tmp_path}/some"]
    assert main(["study", f"{tmp_path}/three.toml", "--join", str(file), *some]) == 0
    table = (tmp_path / "some" / "table.md").read_text()
    assert "5 of 5 runs done" in capsys.readouterr().out and "| good |" in table and "better" not in table
