"""Objects have names that find them again; installed packages add names by entry points."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stepwell.algos.recipes import RECIPES, find_recipe, list_recipes
from stepwell.cli.main import main
from stepwell.config.loading import dump_config, load_config
from stepwell.config.run import AgentConfig, EnvConfig, RecipeConfig, RunConfig
from stepwell.core.errors import ConfigError
from stepwell.core.user_objects import find_installed, find_object, name_object
from stepwell.envs import find_env_type, list_env_names
from stepwell.envs.frozenlake.env import FrozenLake
from stepwell.runs.build.recipe import resolve_recipe


def a_function() -> None: ...


def test_what_a_module_holds_is_named_by_it() -> None:
    assert name_object(a_function) == f"{__name__}:a_function"
    assert name_object(FrozenLake) == "stepwell.envs.frozenlake.env:FrozenLake"
    assert name_object("grpo") == "grpo" and name_object(None) is None
    assert find_object(name_object(FrozenLake), "env") is FrozenLake


def test_what_no_module_holds_is_found_in_this_process_only() -> None:
    local, other = lambda: 1, lambda: 2
    names = name_object(local), name_object(other)
    assert names[0] != names[1] and name_object(local) == names[0]
    assert find_object(names[0], "x") is local and find_object(names[1], "x") is other
    with pytest.raises(ConfigError, match="was a Python object of another process"):
        find_object("in-process:gone", "recipe")


def test_settings_take_objects_and_hold_names() -> None:
    class Lake(FrozenLake):
        """Another lake."""

    mine = replace(RECIPES["grpo"], name="mine")
    config = RunConfig(env=EnvConfig(name=Lake), recipe=RecipeConfig(name=mine))  # type: ignore[arg-type]
    assert (config.env.name, config.recipe.name) == ("in-process:Lake", "in-process:mine")
    assert find_env_type(config.env.name) is Lake
    assert resolve_recipe(config.recipe) is mine
    assert 'name = "in-process:mine"' in dump_config(config)


def test_a_function_in_place_of_a_table_is_the_function_of_that_slot() -> None:
    from stepwell.algos.credit import rloo

    recipe = resolve_recipe(RecipeConfig(name="grpo", credit=rloo))  # type: ignore[arg-type]
    assert recipe.credit is not None and recipe.credit.name.endswith("rloo:rloo") and recipe.needs_groups


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["recipe.name=json:dumps"], "recipe.name: recipe 'json:dumps' is a function; it must be"),
        (
            ["recipe.name=no_such:RECIPE"],
            "recipe 'no_such:RECIPE': there is no module 'no_such'",
        ),
        (["recipe.credit.function=json:dumps"], "credit: json:dumps is not declared; write @credit"),
        (["recipe.credit.function=rlo"], "credit: 'rlo' is unknown; did you mean 'rloo'"),
        (["recipe.loss.function=stepwell.algos.credit.rloo:rloo"], "is declared as a credit function"),
        (["recipe.credit.function=5"], "recipe.credit.function: 5 is not a name"),
        (["recipe.name=sft", "recipe.credit.gamma=1"], "name one with recipe.credit.function"),
    ],
)
def test_mistakes_are_named(settings: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve_recipe(load_config(None, settings).recipe)


def test_a_prompt_style_must_be_one() -> None:
    from stepwell.agents import Agent

    with pytest.raises(ConfigError, match=r"agent.strategy 'json:dumps' is a function; it must be"):
        Agent(find_env_type("frozenlake")().description, AgentConfig(strategy="json:dumps"))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small package as pip leaves it: its module, and its metadata beside it."""
    (tmp_path / "well_extra.py").write_text(
        "from dataclasses import replace\n"
        "from stepwell.algos.recipes import RECIPES\n"
        "from stepwell.envs.frozenlake.env import FrozenLake\n\n"
        'RECIPE = replace(RECIPES["grpo"], name="quiet", entropy_coef=0.01)\n\n'
        'class Pond(FrozenLake):\n    """A pond."""\n\n    name = "pond"\n'
    )
    envs = "pond = well_extra:Pond\nbroken = well_extra:Gone"
    _write_metadata(tmp_path, "well_extra", envs, "quiet = well_extra:RECIPE")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def _write_metadata(folder: Path, name: str, envs: str, recipes: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[stepwell.envs]\n{envs}\n\n[stepwell.recipes]\n{recipes}\n")


def test_an_installed_package_adds_environments_and_recipes(installed: Path) -> None:
    assert "pond" in list_env_names() and find_env_type("pond").__name__ == "Pond"
    assert list_recipes()["quiet"] == "well_extra:RECIPE" and find_recipe("quiet").entropy_coef == 0.01
    assert resolve_recipe(load_config(None, ["recipe.name=quiet"]).recipe).name == "quiet"
    with pytest.raises(ConfigError, match="there is no recipe 'quite'; did you mean"):
        find_recipe("quite")
    with pytest.raises(ConfigError, match="'well_extra' has no 'Gone'"):
        find_env_type("broken")


def test_a_broken_package_does_not_hide_the_others(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["envs", "list"]) == 0
    printed = capsys.readouterr()
    assert "A pond." in printed.out and "not listed: env 'well_extra:Gone'" in printed.err
    assert main(["recipes"]) == 0
    assert "quiet" in capsys.readouterr().out


def test_built_in_names_win_and_two_packages_may_not_add_the_same(installed: Path) -> None:
    _write_metadata(installed, "rival", "pond = rival:Pond\nfrozenlake = rival:Lake", "grpo = rival:RECIPE")
    sys.path.append(str(installed / "."))  # another path, so that the metadata are read again
    try:
        assert find_env_type("frozenlake") is FrozenLake and find_recipe("grpo") is RECIPES["grpo"]
        with pytest.raises(ConfigError, match="added by two installed packages"):
            find_installed("stepwell.envs", "pond")
    finally:
        sys.path.pop()


@pytest.mark.slow
def test_a_package_that_pip_builds_and_installs_is_found(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "well_built.py").write_text(
        "from dataclasses import replace\nfrom stepwell.algos.recipes import RECIPES\n"
        'RECIPE = replace(RECIPES["rloo"], name="built")\n'
    )
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n\n'
        '[project]\nname = "well-built"\nversion = "1.0"\n\n'
        '[tool.setuptools]\npy-modules = ["well_built"]\n\n'
        '[project.entry-points."stepwell.recipes"]\nbuilt = "well_built:RECIPE"\n'
    )
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    done = subprocess.run([*pip, "--target", str(target), str(source)], capture_output=True, text=True)
    if done.returncode and "No module named pip" in done.stderr:
        pytest.skip("this Python has no pip")
    assert done.returncode == 0, done.stderr
    code = (
        "import sys\nsys.path.insert(0, sys.argv[1])\nfrom stepwell.cli.main import main\nmain(sys.argv[2:])"
    )
    command = [sys.executable, "-c", code, str(target), "recipes", "built"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "rloo()" in shown and "built" in shown
