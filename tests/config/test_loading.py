"""Configuration files and overrides: what is typed is what is set, and every mistake is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.config.loading import dump_config, load_config, parse_options
from stepwell.config.presets import list_preset_names
from stepwell.config.run import EnvConfig, RunConfig
from stepwell.config.schema import walk_settings
from stepwell.config.training import TrainConfig
from stepwell.config.writing import format_toml
from stepwell.core import ConfigError
from stepwell.runs.build.recipe import resolve_recipe


def file_with(folder: Path, text: str) -> Path:
    path = folder / "my.toml"
    path.write_text(text)
    return path


def test_nothing_given_is_all_defaults() -> None:
    assert load_config(None) == RunConfig()


def test_overrides_stand_above_the_file_and_the_file_above_the_defaults(tmp_path: Path) -> None:
    path = file_with(tmp_path, "seed = 3\n[train]\ngroup_size = 7\noptimizer.learning_rate = 0.1\n")
    config = load_config(
        path, ["train.optimizer.learning_rate=3e-4", "env.options.size=5", "recipe.name=grpo"]
    )
    assert (config.seed, config.train.group_size, config.train.optimizer.learning_rate) == (3, 7, 3e-4)
    assert config.env.options == {"size": 5}
    assert config.recipe.name == "grpo"
    assert config.train.num_updates == TrainConfig().num_updates


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("env.options.x=5", 5),
        ("env.options.x=3e-4", 3e-4),
        ("env.options.x=true", True),
        ("env.options.x=True", "True"),
        ("env.options.x=word", "word"),
        ("env.options.x=two words", "two words"),
        ('env.options.x="5"', "5"),
        ("env.options.x=[1, 'a']", [1, "a"]),
        ("env.options.x={y = 1}", {"y": 1}),
        ("env.options.x=a=b", "a=b"),
        ("env.options.x=", ""),
        ("env.options.x=2024-01-01", "2024-01-01"),
        ("env.options.x=1\nseed = 9", "1\nseed = 9"),
    ],
)
def test_an_override_is_a_toml_value_or_else_text(text: str, value: Any) -> None:
    assert load_config(None, [text]).env.options == {"x": value}


def test_where_text_is_wanted_what_was_typed_is_the_text() -> None:
    config = load_config(None, ["name=7", "policy.device=cuda:0", "env.name=gymnasium:CartPole-v1"])
    assert (config.name, config.policy.device, config.env.name) == ("7", "cuda:0", "gymnasium:CartPole-v1")


def test_another_recipe_leaves_the_arguments_of_the_files_recipe_behind(tmp_path: Path) -> None:
    settings = 'name = "steppo"\ncredit = { lam = 0.9 }\nloss = { clip_low = 0.1 }\n'
    file = file_with(tmp_path, f"[recipe]\n{settings}")
    assert load_config(file, ["recipe.name=steppo"]).recipe.credit == {"lam": 0.9}
    other = load_config(file, ["recipe.credit.eps=1e-3", "recipe.name=grpo"]).recipe
    assert other.name == "grpo" and other.credit == {"eps": 1e-3} and other.loss == {}
    resolve_recipe(load_config("demo", ["recipe.name=grpo"]).recipe)  # refuses arguments it does not take


def test_none_takes_a_setting_back(tmp_path: Path) -> None:
    path = file_with(tmp_path, "[train]\nmax_seconds = 5\n[policy.lora]\nrank = 4\n")
    config = load_config(path, ["train.max_seconds=none", "policy.lora=none"])
    assert config.train.max_seconds is None
    assert config.policy.lora is None
    assert load_config(None, ["policy.critic=none"]).policy.critic == "none"


def test_setting_one_key_of_a_table_leaves_its_other_defaults(tmp_path: Path) -> None:
    defaults = RunConfig().warm_start.optimizer
    assert defaults.learning_rate != RunConfig().train.optimizer.learning_rate  # one model, two places
    changed = defaults.model_copy(update={"weight_decay": 0.5})
    assert load_config(None, ["warm_start.optimizer.weight_decay=0.5"]).warm_start.optimizer == changed
    path = file_with(tmp_path, "[warm_start.optimizer]\nweight_decay = 0.5\n")
    assert load_config(path).warm_start.optimizer == changed


def test_a_table_that_is_off_by_default_is_made_by_setting_into_it() -> None:
    lora = load_config(None, ["policy.lora.rank=8"]).policy.lora
    assert lora is not None
    assert lora.rank == 8


KNOWN = f". Known: {', '.join(RunConfig.model_fields)}"


def test_an_unknown_key_unlike_any_of_its_table_is_refused_with_the_keys_of_that_table() -> None:
    with pytest.raises(ConfigError, match=r"Known in train\.optimizer: kind, learning_rate, .*beta2"):
        load_config(None, ["train.optimizer.name=adam"])


def test_an_unknown_key_in_a_list_of_tables_is_compared_with_the_keys_of_such_a_table() -> None:
    with pytest.raises(
        ConfigError, match=r"functoin: unknown key; did you mean 'function'\? Known: name, func"
    ):
        load_config(None, ['rewards.parts=[{name="x", functoin="rewards.py:x"}]'])


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("train.optimizer.learnig_rate", "train.optimizer.learning_rate"),
        ("train.learning_rate", "train.optimizer.learning_rate"),
        ("learning_rate", "warm_start.optimizer.learning_rate or train.optimizer.learning_rate"),
        ("critic_learnin_rate", "train.critic_learning_rate"),
        ("something_else", None),
        ("group_size", "train.group_size"),
        ("train.num_task", "train.num_tasks"),
        ("trian", "train"),
        ("warmstart", "warm_start"),
        ("policy.lora.rnak", "policy.lora.rank"),
        ("env.held_out", "env.held_out_share"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(key: str, near: str | None) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(None, [f"{key}=1"])
    guess = f"; did you mean {' or '.join(map(repr, near.split(' or ')))}?" if near else KNOWN
    assert str(raised.value) == f"{key}: unknown key{guess} (override)"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("train.group_size=0", "train.group_size: must be a whole number, at least 1, got 0 (override)"),
        ("train.group_size=two", "must be a whole number, at least 1, got 'two' (override)"),
        (
            "train.optimizer.learning_rate=inf",
            "train.optimizer.learning_rate: must be a number, above 0, got inf (override)",
        ),
        ("rewards.format=nan", "rewards.format: must be a number, got nan (override)"),
        ("monitor.console=5", "monitor.console: must be true or false, got 5 (override)"),
        ("parity.on_mismatch=go", """must be one of "stop", "warn", got 'go' (override)"""),
        (
            "train.max_seconds=-1",
            "train.max_seconds: must be a number, above 0, or none, got -1 (override)",
        ),
        ("recipe.reward_parts=['a', 1]", "must be a list of text, or none; item 2 is 1 (override)"),
        ("policy.lora.target_modules=5", """must be a list of text or "all-linear", got 5 (override)"""),
        ("train=5", "train: must be a table, got 5 (override)"),
        ("recipe=grpo", "must be a table, got 'grpo'; did you mean recipe.name=grpo? (override)"),
        ("seed.x=5", "seed: must be a whole number, at least 0, at most 1e+18, got {'x': 5} (override)"),
        ("train.minibatches=1000", "train.minibatches (1000) exceeds the trajectories of an update (128)"),
        ("engine.num_slots=1", "engine: num_slots (1) must be at least max_batch_size (64)"),
        ("seed", "'seed' is not a setting; write key=value"),
        ("=5", "'=5' is not a setting; write key=value"),
        ("a b=5", "'a b=5' is not a setting; write key=value"),
    ],
)
def test_a_wrong_value_is_told_by_its_path_with_what_is_allowed(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(None, [text])
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


def test_all_problems_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    path = file_with(
        tmp_path,
        'sede = 1\n\n[train]\ngroup_size = "many"\noptimizer.learnig_rate = 1e-3  # slow\n\n'
        "[ policy.lora ]\nrank = 0\n[nonsense]\nx = 1\n",
    )
    with pytest.raises(ConfigError) as raised:
        load_config(path, ["eval.every=-1", "junk"])
    first, *rest = str(raised.value).split("\n")
    assert first == f"{path}: 7 problems"
    assert {line.strip() for line in rest} == {
        "'junk' is not a setting; write key=value, such as train.group_size=8",
        "sede: unknown key; did you mean 'seed'? (line 1)",
        "train.group_size: must be a whole number, at least 1, got 'many' (line 4)",
        "train.optimizer.learnig_rate: unknown key; did you mean 'train.optimizer.learning_rate'? (line 5)",
        "policy.lora.rank: must be a whole number, at least 1, got 0 (line 8)",
        f"nonsense: unknown key{KNOWN} (line 9)",
        "eval.every: must be a whole number, at least 0, got -1 (override)",
    }


def test_a_setting_inside_a_number_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"env\.options\.a\.b: env\.options\.a is 1, which has no keys"):
        load_config(None, ["env.options.a=1", "env.options.a.b=2"])


def test_a_broken_file_is_told_with_its_line(tmp_path: Path) -> None:
    path = file_with(tmp_path, "seed = 1\n[train\n")
    with pytest.raises(ConfigError, match=r"my\.toml is not valid TOML: .*line 2"):
        load_config(path)
    path.write_bytes(b"name = '\xff'\n")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_config(path)


def test_a_missing_file_is_refused_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'frozen_lake' is neither a file nor a preset; did you mean 'fro"):
        load_config("frozen_lake")
    with pytest.raises(ConfigError, match=r"neither a file nor a preset\. Presets: .*sokoban"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"is a folder without config\.toml"):
        load_config(tmp_path)


def test_a_run_folder_stands_for_its_configuration(tmp_path: Path) -> None:
    config = RunConfig(seed=4)
    (tmp_path / "config.toml").write_text(dump_config(config))
    assert load_config(tmp_path) == config


@pytest.mark.parametrize("name", list_preset_names())
def test_every_preset_loads_by_both_its_names(name: str) -> None:
    assert load_config(name) == load_config(f"preset:{name}")
    assert load_config(name) != RunConfig()


def test_options_of_an_env_are_read_one_by_one() -> None:
    assert parse_options(["size=5", "a.b=x", "rate=0.5"]) == {"size": 5, "a": {"b": "x"}, "rate": 0.5}


def test_what_may_be_none_is_none_by_default_so_that_leaving_it_out_means_it() -> None:
    for setting in walk_settings(RunConfig):
        assert not setting.takes_none or setting.default is None, setting.key


scalars = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.just("\x7f"))
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(options=st.dictionaries(st.text(), values, max_size=4), name=st.none() | st.text())
def test_what_is_written_reads_back_equal(
    options: dict[str, Any], name: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = RunConfig(name=name, env=EnvConfig(options=options))
    path = tmp_path_factory.mktemp("run") / "config.toml"
    path.write_text(dump_config(config), encoding="utf-8", newline="")
    assert load_config(path) == config


@given(
    rate=st.floats(min_value=1e-12, max_value=1e12),
    updates=st.integers(0, 10**9),
    parts=st.none() | st.lists(st.text(), max_size=3),
    lora=st.none() | st.integers(1, 512),
    options=st.dictionaries(st.from_regex(r"[A-Za-z0-9_-]+", fullmatch=True), values, max_size=3),
)
def test_overrides_survive_writing_and_reading(
    rate: float,
    updates: int,
    parts: list[str] | None,
    lora: int | None,
    options: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    overrides = [f"train.optimizer.learning_rate={rate!r}", f"train.num_updates={updates}"]
    overrides += [f"recipe.reward_parts={format_toml(parts)}"] if parts is not None else []
    overrides += [f"policy.lora.rank={lora}"] if lora is not None else []
    overrides += [f"env.options.{key}={format_toml(value)}" for key, value in options.items()]
    config = load_config(None, overrides)
    assert (config.train.optimizer.learning_rate, config.train.num_updates) == (rate, updates)
    assert config.recipe.reward_parts == (None if parts is None else tuple(parts))
    assert config.env.options == options
    path = tmp_path_factory.mktemp("run") / "config.toml"
    path.write_text(dump_config(config), encoding="utf-8", newline="")
    assert load_config(path) == config


def test_what_toml_cannot_say_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"env\.options\.x: None cannot be written as TOML"):
        dump_config(RunConfig(env=EnvConfig(options={"x": None})))


def test_loading_needs_no_torch() -> None:
    code = "import sys, stepwell.config.loading as l; l.load_config('frozenlake'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers"} & set(loaded.stdout.split())


def test_what_one_configuration_changes_is_not_seen_by_the_next(tmp_path: Path) -> None:
    """Texts are read once and kept: tables and lists must not be shared."""
    file = tmp_path / "my.toml"
    file.write_text("[env.options]\nsize = 5\n")
    table = "env.options={size=6}"
    assert load_config(str(file), ["env.options.hole_rate=0.1"]).env.options == {"size": 5, "hole_rate": 0.1}
    assert load_config(str(file)).env.options == {"size": 5}
    assert load_config(None, [table, "env.options.hole_rate=0.1"]).env.options == {
        "size": 6,
        "hole_rate": 0.1,
    }
    assert load_config(None, [table]).env.options == {"size": 6}
