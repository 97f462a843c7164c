"""Python objects and keywords become the settings of a TOML file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.api.number_line import LineOptions, NumberLine, brevity, centred

import stepwell as sw
from stepwell.algos.recipes import RECIPES
from stepwell.api.settings import list_object_settings, list_settings
from stepwell.config.loading import dump_config
from stepwell.core import ConfigError
from stepwell.core.user_objects import find_object

HERE = "tests.api.number_line"
WRONG: dict[str, Any] = {"class": NumberLine, "object": NumberLine(), "function": centred}


def test_nested_and_dotted_keywords_are_the_same_settings() -> None:
    nested = list_settings({"train": {"num_updates": 40, "optimizer": {"learning_rate": 1e-3}}, "seed": 1})
    dotted = list_settings({"train.num_updates": 40, "train.optimizer.learning_rate": 1e-3, "seed": 1})
    assert nested == dotted == ["train.num_updates=40", "train.optimizer.learning_rate=0.001", "seed=1"]


def test_a_file_with_overrides_as_text_as_a_mapping_and_as_keywords(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text("seed = 3\n[train]\nnum_updates = 7\n")
    by_text = sw.load_config(file, ["train.group_size=8"])
    by_mapping = sw.load_config(str(file), {"train.group_size": 8})
    by_keyword = sw.load_config(file, train={"group_size": 8})
    assert by_text == by_mapping == by_keyword
    assert (by_text.seed, by_text.train.num_updates, by_text.train.group_size) == (3, 7, 8)


def test_loaded_settings_take_further_changes_and_stay_themselves() -> None:
    first = sw.load_config("frozenlake", rewards={"parts": [brevity]})
    second = sw.load_config(first, train={"num_updates": 1})
    assert second.train.num_updates == 1 != first.train.num_updates
    assert second.rewards == first.rewards and second.env == first.env


def test_values_of_python_are_written_as_toml() -> None:
    config = sw.load_config(
        "frozenlake",
        folder=Path("some") / "place",
        train={"max_seconds": None, "num_updates": np.int64(5)},
        env={"options": {"size": 3}},
        offline={"tags": ("a", "b")},
    )
    assert (config.folder, config.train.max_seconds, config.train.num_updates) == ("some/place", None, 5)
    assert config.env.options["size"] == 3 and config.offline.tags == ("a", "b")


def test_none_in_a_free_table_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"env\.options\.size: None cannot be written as TOML"):
        sw.load_config("frozenlake", env={"options": {"size": None}})


def test_a_misspelt_keyword_is_refused_with_the_name_that_was_meant() -> None:
    with pytest.raises(ConfigError, match="num_updates"):
        sw.load_config("frozenlake", train={"num_update": 5})


def test_objects_become_names_that_find_them_again() -> None:
    settings = list_object_settings(NumberLine, None, sw.recipe("grpo", credit=centred), [brevity])
    config = sw.load_config(None, settings)
    assert config.env.name == f"{HERE}:NumberLine"
    assert config.recipe.credit == {"function": f"{HERE}:centred"}
    assert config.rewards.parts[0].function == f"{HERE}:brevity"
    assert find_object(config.env.name, "env") is NumberLine
    assert "module" not in dump_config(config) and f'"{HERE}:centred"' in dump_config(config)


def test_an_environment_object_brings_its_options() -> None:
    config = sw.load_config(None, list_object_settings(NumberLine(LineOptions(size=9)), None, None, None))
    assert (config.env.name, config.env.options) == (f"{HERE}:NumberLine", {"size": 9})


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"env: 7 is not an environment; give a name, a subclass of sw\.Env"
    ):
        list_object_settings(7, None, None, None)  # type: ignore[arg-type]


def test_a_local_class_and_a_lambda_work_in_this_process() -> None:
    class Local(NumberLine):
        pass

    config = sw.load_config(None, list_object_settings(Local, None, None, [lambda step: 0.0]))
    assert config.env.name.startswith("in-process:Local")
    assert sw.make_env(Local).description.name == "number_line"
    assert config.rewards.parts[0].function.startswith("in-process:lambda")


def test_make_env_takes_a_class_and_a_name() -> None:
    assert sw.make_env(NumberLine, {"size": 8}).options.size == 8
    assert sw.make_env("frozenlake", {"size": 3}).options.size == 3


def test_a_recipe_takes_functions_tables_and_slots() -> None:
    chosen = sw.recipe("grpo", credit={"function": centred, "scale": 2.0}, kl_coef=0.0)
    assert chosen.credit == {"function": f"{HERE}:centred", "scale": 2.0} and chosen.kl_coef == 0.0
    assert sw.recipe("steppo", credit={"gamma": 0.9}).credit == {"gamma": 0.9}
    assert sw.recipe("grpo", credit="rloo").credit == {"function": "rloo"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "gpro"}, "did you mean 'grpo'"),
        ({"name": "grpo", "credit": {"gama": 1}}, "has no argument 'gama'"),
        ({"name": "grpo", "credit": brevity}, r"not declared; write @credit"),
        ({"name": "grpo", "kl_coeff": 1}, "kl_coef"),
    ],
)
def test_a_wrong_recipe_is_refused_at_once(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sw.recipe(**given)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sw.train(WRONG["class"]), r"train: NumberLine is not a configuration; .*env=NumberLine"),
        (lambda: sw.train(WRONG["object"]), r"train: NumberLine is not a configuration; .*env=NumberLine"),
        (lambda: sw.train("frozenlake", recipe=WRONG["function"]), r"sw\.recipe\(\"grpo\", credit=centred\)"),
        (lambda: sw.train(env=NumberLine, recipes="grpo"), r"there is no argument 'recipes'; .*'recipe'"),
        (lambda: sw.evaluate("tiny-0.3m", sample=3), r"there is no argument 'sample'; .*'samples'"),
        (lambda: sw.evaluate(object()), r"an object of type object cannot be evaluated; give a run"),  # type: ignore[arg-type]
    ],
)
def test_objects_in_the_wrong_place_are_refused_with_what_to_write(
    call: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


def test_one_reward_needs_no_list() -> None:
    assert list_object_settings(None, None, None, brevity) == list_object_settings(
        None, None, None, [brevity]
    )


def test_a_misspelt_name_of_the_package_is_guessed() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'trian'; did you mean 'train'\?"):
        _ = sw.trian


def test_a_report_of_a_checker_is_shown_as_its_table() -> None:
    report = sw.check_object(centred)
    assert repr(report) == str(report) and "ok      rewards_decide" in repr(report)


def test_a_recipe_object_is_taken_as_it_is() -> None:
    config = sw.load_config(None, list_object_settings(None, None, RECIPES["rloo"], None))
    assert find_object(config.recipe.name, "recipe") is RECIPES["rloo"]


def test_presets_are_listed() -> None:
    assert {"own", "frozenlake"} <= set(sw.list_presets())


def test_an_object_of_another_notebook_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"defined in a notebook or script.*run its cell.*into a module"):
        sw.make_env("__main__:NoSuchEnv")
