"""An environment of one's own gets settings that fit it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runs.own_envs import ShortLine
from tests.runs.small import notes

from stepwell.cli.main import main
from stepwell.config.loading import load_config
from stepwell.core import ConfigError
from stepwell.envs import Env
from stepwell.runs.build.components import Components
from stepwell.runs.build.env_defaults import load_own_config
from stepwell.runs.build.warm_starts import is_warm
from stepwell.runs.run import make_run_folder, train

ENVS = "tests.runs.own_envs"
QUICK = (
    "train.num_updates=0",
    "eval.num_tasks=4",
    "eval.samples_per_task=1",
    "warm_start.num_demos=16",
    "warm_start.batch_size=4",
    "warm_start.check_every=2",
    "monitor.console=false",
    "monitor.tensorboard=false",
    "monitor.report=false",
)


def test_a_success_counts_one_and_the_form_of_all_turns_a_tenth_of_it() -> None:
    config, (note,) = load_own_config(f"{ENVS}:ShortLine", [])
    assert (config.rewards.scale, config.rewards.format) == (0.02, 1.0)
    assert config.rewards.format * 5 * config.rewards.scale == pytest.approx(0.1)
    assert "a success pays 50" in note and "rewards.format=1 " in note


def test_the_longest_action_leaves_room_for_the_longest_demonstrated_reply() -> None:
    config, _ = load_own_config(f"{ENVS}:ShortLine", [])
    components = Components(config)
    longest = max(step.num_units for t in components.play_demonstrations(16, 0.0, 0) for step in t.steps)
    assert longest < config.sampling.max_tokens <= 2 * longest


def test_what_the_user_sets_wins_over_what_is_fitted() -> None:
    own = ["rewards.format=3.0", "sampling.max_tokens=40", "env.held_out_share=0.25"]
    config, _ = load_own_config(f"{ENVS}:ShortLine", own)
    assert (config.rewards.format, config.sampling.max_tokens, config.rewards.scale) == (3.0, 40, 0.02)
    assert config.env.held_out_share == 0.25


def test_an_environment_whose_success_pays_nothing_is_told_and_its_form_is_not_paid() -> None:
    config, (note,) = load_own_config(f"{ENVS}:UnpaidLine", [])
    assert config.rewards.format == 0.0
    assert "no success of the oracle in 16 training tasks pays a positive reward" in note


def test_an_environment_that_defines_no_oracle_has_none() -> None:
    class Blind(ShortLine):
        oracle = Env.oracle

    class Led(Blind):
        def oracle(self) -> list[str]:
            return ["More"]

    assert (ShortLine.has_oracle, Blind.has_oracle, Led.has_oracle) == (True, False, True)


def test_options_of_a_presets_environment_are_left_behind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "frozenlake", "--env", f"{ENVS}:ShortLine", "--dry-run"]) == 0
    assert f"env         {ENVS}:ShortLine" in capsys.readouterr().out


def test_without_an_oracle_there_is_no_warm_start_and_what_to_expect_is_said() -> None:
    config, (note,) = load_own_config(f"{ENVS}:OracleFreeLine", [])
    assert config.warm_start.num_demos == 0
    assert "has no oracle" in note and "policy.model" in note


def test_a_robots_environment_is_sent_to_a_robots_preset() -> None:
    with pytest.raises(ConfigError, match=r"stepwell train metaworld-reach env\.name=metaworld"):
        load_own_config("metaworld", [])


def test_few_tasks_are_demonstrated_several_times_with_other_mistakes() -> None:
    components = Components(load_config("own", [f"env.name={ENVS}:ShortLine", "rewards.scale=0.02"]))
    shown = components.play_demonstrations(64, 0.5, 0)
    tasks = {t.task.id for t in shown}
    assert len(shown) == 64 and len(tasks) < 20
    said = {t.task.id: set() for t in shown}  # type: dict[str, set[str]]
    for t in shown:
        said[t.task.id].add(" ".join(str(step.action.text) for step in t.steps))  # type: ignore[union-attr]
    assert max(len(replies) for replies in said.values()) > 1


@pytest.mark.parametrize(
    ("form", "success", "enough"),
    [(0.97, 0.6, True), (0.8, 0.6, False), (0.97, 0.3, False), (0.95, 0.5, True)],
)
def test_a_warm_start_ends_once_form_and_some_success_are_there(
    form: float, success: float, enough: bool
) -> None:
    warm = load_config("own", []).warm_start
    assert is_warm(warm, {"format_share": form, "success": success}) is enough


@pytest.mark.slow
def test_a_warm_start_says_how_far_it_is_and_ends_at_its_cap(tmp_path: Path) -> None:
    settings = [*QUICK, f"folder={tmp_path}", "name=run", "warm_start.max_updates=4"]
    config, _ = load_own_config(f"{ENVS}:ShortLine", settings)
    folder = train(config)
    told = [note for note in notes(folder) if note.startswith("warm start: update")]
    assert [note.split(",")[0] for note in told] == [
        "warm start: update 2 of at most 4",
        "warm start: update 4 of at most 4",
    ]
    assert "goal: 95% of replies have the required form and 50% of training tasks are solved" in told[0]


@pytest.mark.parametrize(
    ("env", "begin"),
    [("my_module:NumberLine", "my_module-NumberLine-"), ("a/b/mine.py:NumberLine", "mine-NumberLine-")],
)
def test_a_run_is_named_after_its_environment(env: str, begin: str, tmp_path: Path) -> None:
    folder = make_run_folder(load_config("own", [f"env.name={env}", f"folder={tmp_path}"]))
    assert folder.parent == tmp_path and folder.name.startswith(begin)


def test_an_environment_is_planned_by_the_path_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = Path(__file__).with_name("own_envs.py").read_text()
    (tmp_path / "line_of_mine.py").write_text(source)
    assert main(["train", "--env", "line_of_mine.py:ShortLine", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "fitted to the environment: a success pays 50" in out
    assert "line_of_mine.py:ShortLine:" in out and "frozenlake" not in out.lower()
    assert main(["train", "--env", "line_of_mine.py:ShortLin", "--dry-run"]) == 2
    assert "did you mean 'ShortLine'?" in capsys.readouterr().err
    assert main(["train", "--env", "no_such_file.py:ShortLine", "--dry-run"]) == 2
    assert "there is no file no_such_file.py" in capsys.readouterr().err
