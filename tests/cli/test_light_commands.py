"""Commands that only look things up answer without torch, whose import alone takes seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.cli.main import COMMANDS

HEAVY = {"torch", "transformers", "scipy", "sqlalchemy"}
SIMULATORS = {"gymnasium", "mujoco", "metaworld"}
WEB = {"playwright", "httpx", "fastapi", "starlette", "uvicorn"}
OTHER_COMMANDS = {f"stepwell.cli.{name}" for name in COMMANDS if name != "train"}
CODE = (
    "import sys\nfrom stepwell.cli.main import main\n"
    "try: code = main(sys.argv[1:])\nexcept SystemExit as end: code = end.code\n"
    "print(*sys.modules, file=sys.stderr)\nsys.exit(code)"
)


def run_and_list_modules(argv: list[str]) -> tuple[str, set[str]]:
    """What a command prints in a fresh process, and which modules that process has imported by then."""
    done = subprocess.run([sys.executable, "-c", CODE, *argv], capture_output=True, text=True, check=True)
    return done.stdout, set(done.stderr.split())


@pytest.mark.parametrize(
    "argv", [["--help"], ["train", "--help"], ["envs", "check", "--help"], ["check", "--help"]]
)
def test_help_imports_neither_settings_nor_tables(argv: list[str]) -> None:
    shown, modules = run_and_list_modules(argv)
    assert shown.startswith("usage: ")
    assert not (HEAVY | {"pydantic", "rich"}) & modules


def test_recipes_are_listed_without_torch_and_other_commands() -> None:
    shown, modules = run_and_list_modules(["recipes"])
    assert "vagen-full" in shown
    assert not HEAVY & modules
    ours = {name.rpartition(".")[2] for name in modules if name.startswith("stepwell.cli.")}
    assert ours == {"main", "command", "recipes"}  # the other commands are not imported


OWN_ENV = f"{Path(__file__).parents[1] / 'runs' / 'own_envs.py'}:ShortLine"


@pytest.mark.parametrize(
    "start", [["frozenlake"], ["web-tiny"], ["--env", OWN_ENV]], ids=["frozenlake", "web-tiny", "own"]
)
def test_a_language_agents_plan_imports_only_what_it_needs(start: list[str]) -> None:
    shown, modules = run_and_list_modules(["train", *start, "--dry-run", "train.num_tasks=64"])
    assert "301,664 parameters" in shown and "recipe      " in shown
    unneeded = HEAVY | SIMULATORS | WEB | OTHER_COMMANDS
    unneeded |= {"PIL", "rich", "stepwell.runs.plan.robot_plan", "stepwell.runs.build.runner"}
    assert not unneeded & modules


def test_a_robots_plan_imports_nothing_of_language_agents() -> None:
    shown, modules = run_and_list_modules(["train", "metaworld-push", "--dry-run"])
    assert "metaworld: " in shown and "(1 episode tried)" in shown
    unneeded = {"torch", "transformers", "tokenizers", "jinja2", "sqlalchemy", "PIL", "rich", "matplotlib"}
    unneeded |= WEB | OTHER_COMMANDS | {"stepwell.rendering", "stepwell.rollout.player"}
    unneeded |= {"stepwell.runs.plan.language_plan", "stepwell.runs.build.runner"}
    assert not unneeded & modules
