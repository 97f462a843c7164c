"""The layout holds: a folder imports of ours only what its row in the design names."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Container
from pathlib import Path
from types import ModuleType

import pytest
from tests.sources import ROOT, read_sources

from stepwell.envs.registry import LANGUAGE_ENVS

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
    "services": {"agents", "rendering", "pool", "engines", "envs", "workers"},
    "monitors": {"pool"},
    "contracts": {"algos", "agents", "rewards", "envs", "rollout", "workers"},
    "workers": {"rollout", "engines", "envs"},
    "studies": {"runs", "training", "monitors", "workers"},
    "view": {"monitors", "packing", "pool", "rendering", "runs", "services"},
}
IMPORT_EVERYTHING = {"runs", "api", "cli"}
HEAVY = {"torch", "transformers"}
MAX_CODE_OF_A_RUN = 50_000


def imported_modules(path: Path) -> set[str]:
    """Every absolute module name imported anywhere in a file, also inside functions."""
    return read_sources()[path].imports


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
    "module",
    [
        "stepwell",
        "stepwell.core",
        "stepwell.config",
        "stepwell.pool",
        "stepwell.rendering",
        "stepwell.view.app",
    ],
)
def test_light_modules_load_without_torch_or_transformers(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not HEAVY & set(loaded)


def test_every_folder_of_modules_is_a_package_that_a_wheel_holds() -> None:
    folders = {path.parent for path in ROOT.rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_every_module_says_what_it_is() -> None:
    missing = [str(path.relative_to(ROOT)) for path, file in read_sources().items() if not file.has_docstring]
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


def imports_by_module() -> dict[str, set[str]]:
    """For every module of the package, those that it imports, also inside functions; types apart."""
    paths = {_module_name(path): path for path in ROOT.rglob("*.py")}
    return {
        name: {
            found
            for item in read_sources()[path].imports_at_runtime
            if (found := _known(item, paths)) and found != name
        }
        for name, path in paths.items()
    }


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _known(name: str, modules: Container[str]) -> str | None:
    """The module of a dotted name, which may end with something defined in it."""
    return next((n for n in (name, name.rpartition(".")[0]) if n in modules), None)


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules that import each other, directly or through others."""
    reached: dict[str, set[str]] = {}
    for name in graph:
        found: set[str] = set()
        left = list(graph[name])
        while left:
            if (module := left.pop()) not in found:
                found.add(module)
                left += graph[module]
        reached[name] = found
    mutual = {n: frozenset(m for m in reached[n] if n in reached[m]) for n in graph if n in reached[n]}
    return [set(circle) for circle in dict.fromkeys(mutual.values())]


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert [sorted(circle) for circle in circles(imports_by_module())] == []


def test_a_circle_through_a_function_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]
    assert circles({"a": {"b"}, "b": set()}) == []


def test_only_the_command_line_imports_an_environment() -> None:
    """Everyone else opens it by its name, so the environments could become a package of their own."""
    folders = {path.rpartition(":")[0].rpartition(".")[0] for path in LANGUAGE_ENVS.values()}
    for path in sorted(ROOT.rglob("*.py")):
        name = _module_name(path)
        found = {".".join(imported.split(".")[:3]) for imported in imported_modules(path)} & folders
        is_env = ".".join(name.split(".")[:3]) in folders
        assert not found or is_env or name.startswith("stepwell.cli."), f"{name} imports {found}"


def test_child_processes_are_started_in_one_place() -> None:
    starts = re.compile(
        r"Popen\(|subprocess\.(run|call|check)|os\.(fork|spawn|system)|multiprocessing|create_subprocess"
    )
    found = {str(path.relative_to(ROOT)) for path in read_sources() if starts.search(path.read_text())}
    assert found == {"core/child_process.py", "core/fork_server.py"}


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "count_package", ROOT.parent.parent / "scripts" / "count_package.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_reached_by_a_run() -> set[str]:
    script = load_script()
    sources = {_module_name(path): source for path, source in read_sources().items()}
    named = {name: _names_in_texts(source.path) for name, source in sources.items()}
    imports = {name: source.imports | named[name] for name, source in sources.items()}
    reached: set[str] = script.find_reached(imports, script.list_starts(imports))
    return reached


def test_a_training_run_reaches_less_code_than_the_core_may_have() -> None:
    reached = find_reached_by_a_run()
    assert {"stepwell.training.trainer", "stepwell.runs.loop.training_loop"} <= reached
    sources = {_module_name(path): source for path, source in read_sources().items()}
    core = [name for name in reached if not name.startswith("stepwell.envs")]
    assert sum(sources[name].num_code_lines for name in core) < MAX_CODE_OF_A_RUN


def list_folders(text: str) -> set[str]:
    """The packages in the first cells of tables of folders."""
    cells = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
    return {
        f"stepwell.{name.replace('/', '.')}" for cell in cells for name in re.findall(r"`([\w/]+)/`", cell)
    }


def test_the_structure_page_says_which_folders_no_training_run_imports() -> None:
    page = (ROOT.parent.parent / "docs" / "structure.md").read_text()
    core, around = page.split("\n### Around the core")
    in_core, outside = list_folders(core), list_folders(around.split("\n## ")[0])
    reached = find_reached_by_a_run()
    assert {"stepwell.view", "stepwell.runs.play"} <= outside and not outside & reached
    assert not {name for name in in_core - reached if not name.startswith("stepwell.envs")}


def _names_in_texts(path: Path) -> set[str]:
    return set(re.findall(r"""["'](stepwell\.[\w.]+)""", path.read_text()))


def test_what_is_reached_includes_packages_and_not_the_names_of_the_api() -> None:
    imports = {
        "stepwell": {"stepwell.b"},
        "stepwell.a": {"stepwell.__version__", "stepwell.c.d.Thing"},
        "stepwell.b": set(),
        "stepwell.c": set(),
        "stepwell.c.d": {"stepwell.a"},
    }
    assert load_script().find_reached(imports, ["stepwell.a"]) == {"stepwell.a", "stepwell.c", "stepwell.c.d"}
