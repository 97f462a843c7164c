"""The code in the documentation runs, and does what the text says."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def code_of(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def run(page: str) -> None:
    """In this process, where torch and transformers are at hand: starting takes longer than the examples."""
    blocks = code_of(page)
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), {"__name__": "__main__"})


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What examples write is thrown away."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_the_tour_of_the_core_learns_what_it_promises(capsys: pytest.CaptureFixture[str]) -> None:
    run("docs/core.md")
    assert float(capsys.readouterr().out.split(":")[1]) > 0.85


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/agents.md",
        "docs/asynchronous.md",
        "docs/own_agent.md",
        "docs/configuration.md",
        "docs/curriculum.md",
        "docs/engine.md",
        "docs/env_service.md",
        "docs/gateway.md",
        "docs/judging.md",
        "docs/maths.md",
        "docs/models.md",
        "docs/packing.md",
        "docs/pool.md",
        pytest.param("docs/python.md", marks=pytest.mark.slow),
        "docs/report.md",
        "docs/view.md",
        "docs/vision.md",
        "docs/vla.md",
        "docs/tool_environments.md",
        "docs/web.md",
        "docs/web_sites.md",
        "docs/webarena.md",
        "docs/workers.md",
    ],
)
def test_the_examples_of_a_page_run_in_order(page: str) -> None:
    run(page)


SKETCHES = ("README.md", "docs/judging.md", "docs/python.md", "docs/studies.md")


@pytest.mark.parametrize("page", SKETCHES)
def test_calls_of_a_sketch_exist_and_take_the_arguments_given(page: str) -> None:
    """Blocks marked `py` would train for minutes: their names and arguments are checked instead."""
    blocks = code_of(page, "py")
    assert blocks
    tree = ast.parse("\n".join(blocks))
    known: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([node], []), page, "exec"), known)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    checked = 0
    for call in calls:
        root = ast.unparse(call.func).partition(".")[0]
        if root not in known:
            continue  # a result of an earlier line, or a builtin
        function = eval(ast.unparse(call.func), known)
        signature = inspect.signature(function)
        signature.bind(*call.args, **{str(each.arg): each.value for each in call.keywords})
        checked += 1
    assert checked


def test_every_sketch_is_checked() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert {str(page.relative_to(ROOT)) for page in pages if "```py\n" in page.read_text()} == set(SKETCHES)


def list_headings(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = [re.sub(r"[^\w\- ]", "", heading).lower() for heading in re.findall(r"^#+ (.+)$", text, re.M)]
    return {heading.strip().replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_somewhere() -> None:
    headings: dict[Path, set[str]] = {}
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target, heading in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", page.read_text()):
            there = (page.parent / target).resolve() if target else page
            where = f"{page.relative_to(ROOT)} links to {target}#{heading}"
            assert there.exists(), where
            if heading and there.suffix == ".md":
                found = headings.setdefault(there, list_headings(there))
                assert heading in found, where


def test_every_page_is_in_the_navigation_once() -> None:
    named = re.findall(r"^ +- [^\n]*: ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted(pages)


def test_every_page_with_python_code_is_run_by_a_test() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    pages = [path for path in (ROOT / "docs").rglob("*.md") if code_of(str(path.relative_to(ROOT)))]
    pages = [path for path in pages if path.parent.name != "tutorials"]  # tests/test_doc_commands.py
    assert len(pages) > 20
    assert [page.name for page in pages if page.name not in tests] == []


def find_object(name: str) -> object:
    """What a dotted name of the API pages means: a module, or something in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"there is no {name}")


def test_every_name_of_the_api_pages_exists_and_has_a_docstring() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    names = re.findall(r"^::: ([\w.]+)$", pages, flags=re.MULTILINE)
    assert len(names) > 60 and len(set(names)) == len(names)
    assert [name for name in names if not getattr(find_object(name), "__doc__", None)] == []
