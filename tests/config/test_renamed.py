"""Settings with a new name: the old one still works, with one warning that names the new one."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from stepwell.cli.main import _show_warning
from stepwell.config.changing import find_changes
from stepwell.config.loading import dump_config, load_config
from stepwell.config.renamed import rename_key, rename_tables
from stepwell.config.run import AgentConfig, RunConfig
from stepwell.config.study import load_study
from stepwell.core.errors import ConfigError
from stepwell.studies.folder import read_known_runs

OLD = '[groups]\nmode = "stream"\n[groups.simulators]\nnum_workers = 3\n'


def test_an_old_file_and_a_new_one_say_the_same(tmp_path: Path) -> None:
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text(OLD)
    new.write_text(OLD.replace("groups", "workers"))
    with pytest.warns(
        FutureWarning, match=r"old.toml: the settings \[groups\] are now called \[workers"
    ) as seen:
        found = load_config(old)
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_config(new) == found
    assert (found.workers.mode, found.workers.simulators.num_workers) == ("stream", 3)
    assert "[workers]" in dump_config(found) and "groups" not in dump_config(found)


def test_an_old_override_works_with_one_warning() -> None:
    with pytest.warns(FutureWarning, match=r"write workers.KEY instead of groups.KEY") as seen:
        found = load_config(None, ["groups.mode=stream", "groups.global_batch=7", "workers.hang_s=9"])
    assert len(seen) == 1
    assert found == load_config(None, ["workers.mode=stream", "workers.global_batch=7", "workers.hang_s=9"])


def test_an_old_override_counts_on_top_of_a_new_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(OLD.replace("groups", "workers"))
    with pytest.warns(FutureWarning, match="workers"):
        found = load_config(file, ["groups.simulators.num_workers=5"])
    assert (found.workers.mode, found.workers.simulators.num_workers) == ("stream", 5)


def test_a_mistake_in_an_old_table_is_told_by_its_new_name_and_its_line(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[groups]\nmode = "streem"\n')
    with pytest.raises(ConfigError, match=r"workers.mode: must be one of .*\(line 2\)"):
        load_config(file)


def test_what_an_earlier_version_stored_is_no_change() -> None:
    stored = RunConfig().model_dump(mode="json")
    stored["groups"] = stored.pop("workers") | {"hang_s": 7.0}
    (change,) = find_changes(stored, RunConfig())
    assert (change.key, change.old, change.rule.is_allowed) == ("workers.hang_s", 7.0, True)
    stored["groups"]["hang_s"] = RunConfig().workers.hang_s
    assert find_changes(stored, RunConfig()) == []


def test_the_plan_of_an_older_study_is_read_by_the_new_names(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"runs": {"one": {"groups.mode": "off", "seed": 1}}}))
    assert read_known_runs(tmp_path) == {"one": {"workers.mode": "off", "seed": 1}}


def test_only_the_first_part_of_a_key_is_a_table() -> None:
    assert rename_key("groups") == "workers" and rename_key("env.groups") == "env.groups"
    assert rename_tables({"workers": {"mode": "off"}, "groups": {"mode": "sync", "hang_s": 1}}) == {
        "workers": {"mode": "off", "hang_s": 1}
    }


def test_the_command_line_shows_such_a_warning_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    _show_warning(FutureWarning("[groups] is now [workers]"), FutureWarning, "stepwell/config/loading.py", 1)
    assert capsys.readouterr().err == "warning: [groups] is now [workers]\n"
    _show_warning(UserWarning("look"), UserWarning, "elsewhere.py", 1)
    assert "elsewhere.py:1: UserWarning: look" in capsys.readouterr().err


def test_a_study_with_worlds_is_read_with_one_warning(tmp_path: Path) -> None:
    new = """name = "s"
[[environments]]
name = "lake"
[[variants]]
name = "a"
environments = ["lake"]
[quick]
environments = ["lake"]
"""
    (tmp_path / "new.toml").write_text(new)
    (tmp_path / "old.toml").write_text(new.replace("environments", "worlds"))
    with pytest.warns(FutureWarning, match=r"old.toml: the worlds of a study are now called env") as seen:
        found = load_study(tmp_path / "old.toml")
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_study(tmp_path / "new.toml") == found
    assert [env.name for env in found.environments] == ["lake"]


def test_the_memory_of_an_agent_is_now_its_context(tmp_path: Path) -> None:
    file = tmp_path / "old.toml"
    file.write_text('[agent]\nmemory = "steps"\n')
    with pytest.warns(FutureWarning, match="agent.memory is now called agent.context"):
        assert load_config(file).agent.context == "observation"
    with pytest.warns(FutureWarning, match='the value "steps" of agent.context .* write "observation"'):
        assert load_config(None, ["agent.memory=steps"]).agent.context == "observation"
    assert load_config(None, ["agent.context=window"]).agent.context == "window"
    assert AgentConfig.model_validate({"memory": "dialogue"}).context == "dialogue"
    stored = {"agent": {"memory": "steps"}}
    assert rename_tables(stored) == {"agent": {"context": "observation"}}


RENAMED = {
    "agent.remind": ("agent.repeat_format", True),
    "agent.tell_problems": ("agent.report_problems", True),
    "engine.server.num_retries": ("engine.server.max_retries", 7),
    "train.guard.fall_errors": ("train.guard.fall_threshold", 2.5),
    "train.guard.rate_after": ("train.guard.learning_rate_factor", 0.25),
}


@pytest.mark.parametrize("old", RENAMED)
def test_a_key_with_a_new_name_is_read_by_the_old_one_from_everywhere(old: str, tmp_path: Path) -> None:
    new, value = RENAMED[old]
    table, _, key = old.rpartition(".")
    file = tmp_path / "old.toml"
    file.write_text(f"[{table}]\n{key} = {json.dumps(value)}\n")
    expected = load_config(None, [f"{new}={json.dumps(value)}"])
    ways: list[tuple[Path | None, list[str]]] = [
        (file, []),
        (None, [f"{old}={json.dumps(value)}"]),
        (None, [f"{table}={{{key}={json.dumps(value)}}}"]),
    ]
    for path, overrides in ways:
        with pytest.warns(FutureWarning, match=f"the setting {old} is now called {new}: write {new}") as seen:
            assert load_config(path, overrides) == expected
        assert len(seen) == 1
    stored = expected.model_dump(mode="json")
    inner = stored
    for part in table.split("."):
        inner = inner[part]
    inner[key] = inner.pop(new.rpartition(".")[2])
    assert RunConfig.model_validate(stored) == expected and find_changes(stored, expected) == []


def test_a_value_with_a_new_name_is_read_by_the_old_one() -> None:
    with pytest.warns(FutureWarning, match='the value "tell" of train.guard.on_fall .* "warn"') as seen:
        assert load_config(None, ["train.guard.on_fall=tell"]).train.guard.on_fall == "warn"
    assert len(seen) == 1


def test_a_variant_with_beside_is_read_with_one_warning(tmp_path: Path) -> None:
    new = """name = "s"
[[variants]]
name = "a"
[[variants]]
name = "b"
table = "Ablation"
compare_with = "a"
"""
    (tmp_path / "new.toml").write_text(new)
    (tmp_path / "old.toml").write_text(new.replace("compare_with", "beside"))
    with pytest.warns(FutureWarning, match="beside of a variant is now called compare_with") as seen:
        found = load_study(tmp_path / "old.toml")
    assert len(seen) == 1 and found == load_study(tmp_path / "new.toml")
    assert found.variants[1].compare_with == "a"
