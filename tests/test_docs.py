"""The code in the documentation runs, and does what the text says."""

from __future__ import annotations

import importlib
import re
import runpy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

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


# --- sketches ---------------------------------------------------------------------------------
# Blocks marked `py` use what a page leaves to its reader. The names below stand for it.


def read_own_objects(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A reader's environment, credit function and reward; training is as short as it can be."""
    from tests.api.number_line import QUICK
    from tests.doc_reader import make_own_module

    import stepwell as sw

    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(make_own_module(), "my_module.py", "exec"), names)
    exec(compile(code_of("README.md")[0], "README.md", "exec"), names)
    monkeypatch.setattr(sw, "train", partial(sw.train, **QUICK))
    return names


def read_judged_parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The parts of a run whose rewards need whole batches."""
    from tests.runs.small import small_components

    settings = ("recipe.name=vagen-full", "agent.strategy=grounding_world_modeling")
    components = small_components(*settings, "rewards.judge.repetition_penalty=0.1")
    return {
        "agent": components.language.agent,
        "renderer": components.language.renderer,
        "rewards": components.config.rewards,
        "recipe": components.recipe,
        "trajectories": components.play_demonstrations(3, 0.0, 0),
    }


def write_finished_study(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A study whose runs are done: `run_study` then has only its table to write."""
    from tests.studies.study_files import SMALL, write_run

    from stepwell.studies.folder import adopt_folder
    from stepwell.studies.study import plan_study

    file = Path("studies/recipes.toml")
    file.parent.mkdir()
    file.write_text(SMALL)
    plan = plan_study(file, quick=True)
    plan.folder.mkdir(parents=True)
    adopt_folder(plan.folder, plan.runs, quick=True, restart=False)
    for run in plan.runs:
        write_run(run, [0.25, 0.75])
    return {}


SKETCHES: dict[str, Callable[[pytest.MonkeyPatch], dict[str, Any]]] = {
    "README.md": read_own_objects,
    "docs/judging.md": read_judged_parts,
    "docs/python.md": read_own_objects,
    "docs/studies.md": write_finished_study,
}


@pytest.fixture
def sketched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the blocks of a page have made."""
    page: str = request.param
    names = SKETCHES[page](monkeypatch)
    (block,) = code_of(page, "py")
    exec(compile(block, page, "exec"), names)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("sketched", ["README.md", "docs/python.md"], indirect=True)
def test_the_sketch_of_a_run_trains_and_evaluates(sketched: dict[str, Any]) -> None:
    run = sketched["run"]
    assert run.status == "finished" and run.config.rewards.parts[0].name.startswith("my_reward")
    assert "my_credit" in str(run.config.recipe.credit) and run.policy.critic is None


@pytest.mark.parametrize("sketched", ["docs/judging.md"], indirect=True)
def test_the_sketch_of_a_batch_judge_rewards_a_batch(sketched: dict[str, Any]) -> None:
    assert sketched["metrics"]["repetition/top_share"] > 0
    steps = [step for trajectory in sketched["trajectories"] for step in trajectory.steps]
    assert all("grounding" in step.reward_parts for step in steps)


@pytest.mark.parametrize("sketched", ["docs/studies.md"], indirect=True)
def test_the_sketch_of_a_study_prints_its_table(
    capsys: pytest.CaptureFixture[str], sketched: dict[str, Any]
) -> None:
    session = sketched["session"]
    assert (session.ending, session.num_done, session.num_runs) == ("complete", 1, 1)
    assert "| grpo (baseline) | 1 | 0.250 | 0.750 |" in capsys.readouterr().out


def test_every_sketch_is_run() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert {str(page.relative_to(ROOT)) for page in pages if "```py\n" in page.read_text()} == set(SKETCHES)


# --- other blocks -----------------------------------------------------------------------------

# What runs is `python` and `py` (above), `bash` and `sh` (test_doc_commands.py), `toml` and `console`
# (test_doc_settings.py, cli/test_cli_page.py). The others, and why they do not run:
NOT_RUN = {
    "": "drawings, and what a command prints on one machine",
    "text": "observations, files, help texts that cli/test_commands_page.py compares",
    "nginx": "a file of another program",
}


def test_every_language_of_a_block_is_run_or_has_a_reason() -> None:
    from tests.doc_pages import read_blocks

    run_by_tests = {"python", "py", "bash", "sh", "toml", "console"}
    found = {block.language for page in (ROOT / "docs").rglob("*.md") for block in read_blocks(page)}
    assert found - run_by_tests == set(NOT_RUN)


def test_no_command_hides_in_a_block_that_is_not_run() -> None:
    from tests.doc_pages import read_blocks

    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for block in read_blocks(page):
            if block.language in NOT_RUN:
                assert not re.search(r"^\$ ", block.text, flags=re.MULTILINE), page
                assert not re.search(r"^(import|from) \w+", block.text, flags=re.MULTILINE), page


def test_columns_of_docstrings_are_tables_of_the_site_and_examples_are_code() -> None:
    pytest.importorskip("griffe")
    format_paragraph = runpy.run_path(str(ROOT / "scripts" / "docstring_blocks.py"))["format_paragraph"]
    columns = "config  a preset,\n        or a file\nenv     a | b"
    assert format_paragraph(columns).splitlines()[2:] == [
        "| `config` | a preset, or a file |",
        "| `env` | a \\| b |",
    ]
    assert format_paragraph(">>> 1 + 1\n2") == "```pycon\n>>> 1 + 1\n2\n```"
    for kept in ("One line  with a gap.", "Two lines\nof words.", "    a drawing  ─►  of parts"):
        assert format_paragraph(kept) == kept


def test_the_demo_prints_the_same_on_every_page_that_shows_it() -> None:
    pages = [(ROOT / name).read_text() for name in ("README.md", "docs/start.md")]
    shown = [re.findall(r"```\n(before training: .*?)```", page, re.DOTALL) for page in pages]
    assert len(shown[0]) == 1 and shown[0] == shown[1]


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
