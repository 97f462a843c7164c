"""Commands that only look things up answer without torch, whose import alone takes seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stepwell.policies import resolve_model

HEAVY = {"torch", "transformers", "scipy", "sqlalchemy"}
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


def test_recipes_are_listed_without_torch() -> None:
    shown, modules = run_and_list_modules(["recipes"])
    assert "vagen-full" in shown
    assert not HEAVY & modules


def test_a_plan_needs_neither_torch_nor_transformers() -> None:
    resolve_model("tiny-0.3m")  # making its files, once per machine, takes torch
    shown, modules = run_and_list_modules(["train", "frozenlake", "--dry-run", "train.num_tasks=64"])
    assert "301,664 parameters" in shown and "recipe      steppo" in shown
    assert not HEAVY & modules
