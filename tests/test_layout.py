"""The layout holds: a folder imports of ours only what its row in the design names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stepwell

ROOT = Path(stepwell.__file__).parent
EVERYWHERE = {"core", "config"}
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "config": set(),
    "algos": set(),
    "agents": set(),
    "rendering": {"agents"},
    "rewards": {"agents"},
    "pool": set(),
    "data": set(),
    "curriculum": {"pool"},
    "packing": set(),
    "policies": {"packing", "rendering"},
    "engines": {"policies", "rendering"},
    "envs": {"data"},
    "rollout": {"agents", "rendering", "engines", "envs", "rewards", "pool"},
    "training": {"algos", "packing", "policies", "pool"},
    "services": {"agents", "rendering", "pool", "engines", "envs"},
    "monitors": {"pool"},
    "contracts": {"algos", "agents", "rewards", "envs", "rollout", "workers"},
    "workers": {"rollout", "engines", "envs"},
    "studies": {"runs", "training", "monitors"},
}
IMPORT_EVERYTHING = {"runs", "api", "cli"}
HEAVY = {"torch", "transformers"}


def imported_modules(path: Path) -> set[str]:
    """Every absolute module name imported anywhere in a file, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide what a folder depends on"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def folders() -> list[str]:
    return sorted(path.name for path in ROOT.iterdir() if path.is_dir() and any(path.glob("*.py")))


@pytest.mark.parametrize("folder", folders())
def test_a_folder_imports_only_what_the_design_allows(folder: str) -> None:
    if folder in IMPORT_EVERYTHING:
        return
    assert folder in MAY_IMPORT, f"{folder}/ is not in the design's layout"
    allowed = MAY_IMPORT[folder] | {folder} | ({"core"} if folder == "config" else EVERYWHERE)
    allowed = {"core"} if folder == "core" else allowed
    for path in sorted((ROOT / folder).rglob("*.py")):
        ours = {name.split(".")[1] for name in imported_modules(path) if name.startswith("stepwell.")}
        assert ours - {"__version__"} <= allowed, f"{path.relative_to(ROOT)} imports {ours - allowed}"


def test_core_needs_numpy_and_the_standard_library_only() -> None:
    allowed = sys.stdlib_module_names | {"numpy", "stepwell"}
    for path in (ROOT / "core").rglob("*.py"):
        packages = {name.split(".")[0] for name in imported_modules(path)}
        assert packages <= allowed, f"{path.relative_to(ROOT)} imports {packages - allowed}"


@pytest.mark.parametrize(
    "module", ["stepwell", "stepwell.core", "stepwell.config", "stepwell.pool", "stepwell.rendering"]
)
def test_light_modules_load_without_torch_or_transformers(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not HEAVY & set(loaded)


def test_every_module_says_what_it_is() -> None:
    missing = [
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert missing == []


def test_runs_do_not_know_who_calls_them() -> None:
    for path in sorted((ROOT / "runs").rglob("*.py")):
        ours = {name.split(".")[1] for name in imported_modules(path) if name.startswith("stepwell.")}
        assert not ours & {"studies", "api", "cli"}, f"{path.relative_to(ROOT)} imports {ours}"


def test_the_structure_page_names_every_folder_and_only_files_that_exist() -> None:
    page = (ROOT.parent.parent / "docs" / "structure.md").read_text()
    named = set(re.findall(r"`([\w/]+)/`", page))
    packages = {str(path.parent.relative_to(ROOT)) for path in ROOT.rglob("__init__.py")} - {"."}
    large = {name for name in packages if name.count("/") < 1 or len(list((ROOT / name).glob("*.py"))) > 5}
    assert large <= named, f"not on the page: {large - named}"
    assert all((ROOT / name).is_dir() for name in named), named
    files = set(re.findall(r"`([\w/]+\.py)`", page))
    assert all((ROOT / name).exists() or (ROOT.parent.parent / name).exists() for name in files), files
