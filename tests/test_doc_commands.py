"""Every command that the documentation prints is typed, in the order of its page, and does what it should.

`doc_reader.py` has the rules by which commands are shortened. What is not run at all is listed here, with the
reason. The same run or study is planned once, on the first page that has it.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.doc_pages import DOCS, ROOT, list_pages, read_blocks, split_commands
from tests.doc_reader import Reader, Services, name_plan
from tests.doc_sizes import NEVER_RUN

from stepwell.cli.main import build_parser, main
from stepwell.envs.web.browser import BROWSERS
from stepwell.runs.loop.control_channel import ControlChannel

PAGES = list_pages()
# More than four seconds of processor time
TUTORIALS = ("own_agent", "own_env", "robot", "text_agent", "web_agent")
SLOW = {"cli", "own_agent", *(f"tutorials/{name}" for name in TUTORIALS)}
# What is not run: the command, and why. Where a test of ours does the same in another way, it is named.
NOT_RUN = {
    r"^stepwell demo": "takes minutes; tests/runs/test_demo.py, and scripts/first_hour.sh runs all of it",
    r"^stepwell view .*--do": "needs a run under way; tests/runs/test_control.py",
    r"^stepwell cluster status$|^ray ": "needs a Ray cluster; tests/workers/test_ray.py",
    r"^stepwell cluster status --host": "needs another machine; tests/workers/test_http.py",
    r"^stepwell eval --table vagen": "needs a study, or five environments; tests/runs/test_vagen_table.py",
    r"^stepwell plan ": "measures for 20 s of a core, models for 6 s each; tests/runs/test_planner.py",
    r"observation=camera": "renders for 4 s; tests/runs/test_robots.py",
    r"^stepwell envs check metaworld": "plays for many seconds; tests/envs/robots/test_metaworld.py",
    r"workers\.placement=hybrid|cuda:7": "needs several GPUs; tests/workers/test_placement.py",
    r"^stepwell orm ": "needs more episodes than the small run has; tests/runs/test_outcome_model.py",
    r"^stepwell serve gateway .*--backend": "needs a server of vLLM; tests/engines/test_remote_failures.py",
    r"^stepwell eval smollm2": "135 million weights on a CPU; tests/cli/test_eval.py",
    r"^stepwell eval --endpoint .*web": "pages too long for a tiny model; tests/runs/test_chat_evaluation.py",
    r"^stepwell play .*chromium": "starts a browser; tests/envs/web/test_env.py",
    r"Qwen/Qwen2\.5": "downloads a model; tests/policies/test_hub.py",
    r"vllm serve|sglang\.launch_server": "another program; tests/runs/test_served_runs.py",
    r"^scripts/install_chromium\.sh": "installs packages of the system",
    r"python benchmarks/async_throughput\.py": "minutes on a GPU; tests/runs/test_async_runs.py",
    r"^python benchmarks/peer_trl\.py": "needs TRL in an environment of its own",
}

if not any(map(shutil.which, BROWSERS)):
    NOT_RUN["miniwob-tiny"] = "needs Chromium"


def find_reason(words: list[str]) -> str | None:
    """Why a command is not run."""
    line = shlex.join(words)
    return next((reason for pattern, reason in NOT_RUN.items() if re.search(pattern, line)), None)


def list_commands(page: Path) -> list[list[str]]:
    blocks = [block for block in read_blocks(page) if block.is_shell]
    return [words for block in blocks for words in split_commands(block.text)]


def find_first_plans() -> dict[tuple[str, ...], tuple[Path, int]]:
    """Where each plan is made: the page and the number of the command on it."""
    first: dict[tuple[str, ...], tuple[Path, int]] = {}
    for page in PAGES:
        for number, words in enumerate(list_commands(page)):
            if (plan := name_plan(words)) and find_reason(words) is None:
                first.setdefault(plan, (page, number))
    return first


FIRST_PLANS = find_first_plans()


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    opened = Services(tmp_path_factory.mktemp("services"))
    yield opened
    opened.close()


@pytest.fixture
def reader(tmp_path: Path, services: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    found = Reader(tmp_path, services, monkeypatch)
    yield found
    found.forget_modules()


def name_page(page: Path) -> str:
    return str(page.relative_to(ROOT).with_suffix("")).removeprefix("docs/")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if name_page(page) in SLOW else [], id=name_page(page))
        for page in PAGES
    ],
)
def test_every_command_of_a_page_works(page: Path, reader: Reader) -> None:
    number = -1
    for block in read_blocks(page):
        if block.language == "python" and page.parent.name == "tutorials":
            reader.run_block(block.text, page)
        for words in split_commands(block.text) if block.is_shell else ():
            number += 1
            if find_reason(words) is not None:
                continue
            if FIRST_PLANS.get(name_plan(words), (page, number)) == (page, number):
                reader.type(words)
            else:
                _, rest = build_parser().parse_known_args(words[1:])
                assert not [word for word in rest if word.startswith("-")]  # the plan is made elsewhere


def test_what_is_not_run_is_still_on_a_page() -> None:
    lines = [shlex.join(words) for page in PAGES for words in list_commands(page)]
    assert [pattern for pattern in NOT_RUN if not any(re.search(pattern, line) for line in lines)] == []


def test_what_is_not_run_names_files_that_exist() -> None:
    named = [word for reason in NOT_RUN.values() for word in re.findall(r"[\w/]+\.(?:py|sh)", reason)]
    for page in PAGES:
        for words in list_commands(page):
            if find_reason(words) is not None:
                named += [
                    word for word in words if re.fullmatch(r"(?:scripts|benchmarks)/\w+\.(?:py|sh)", word)
                ]
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_few_commands_are_never_run() -> None:
    lines = {pattern: 0 for pattern in NEVER_RUN}
    for words in (words for page in PAGES for words in list_commands(page)):
        for pattern in NEVER_RUN:
            lines[pattern] += re.search(pattern, shlex.join(words)) is not None
    assert all(lines.values()), lines
    assert sum(lines.values()) <= 15, "run more of them in `make test-docs-commands` (tests/doc_runner.py)"


def read_view_sessions() -> list[tuple[list[str], str]]:
    """The commands of the page about the view, each with what it prints as a pattern."""
    blocks = [block.text for block in read_blocks(DOCS / "view.md") if block.language == "console"]
    sessions = [text.removeprefix("$ ").split("\n", 1) for text in blocks]
    return [(shlex.split(line), re.escape(shown).replace("…", r"\S+")) for line, shown in sessions]


def test_the_view_prints_what_its_page_shows(reader: Reader) -> None:
    (words, shown), _ = read_view_sessions()
    printed = reader.type(words)
    assert re.fullmatch(shown.replace("7860", r"\d+").replace("4", r"\d+", 1), printed), printed


def test_a_paused_run_answers_as_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, (words, shown) = read_view_sessions()
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/NAME")
    folder.mkdir(parents=True)
    channel = ControlChannel(folder, lambda: {"update": 12, "num_updates": 200}, lambda text: None)
    channel.open()
    try:
        assert main(words[1:]) == 0
    finally:
        channel.close()
    assert re.fullmatch(shown, capsys.readouterr().out)


def test_a_command_that_fails_fails_the_test(reader: Reader) -> None:
    with pytest.raises(AssertionError, match="did you mean 'frozenlake'"):
        reader.type(["stepwell", "train", "frozenlak"])
    with pytest.raises(AssertionError, match="unrecognized arguments: --qick"):
        reader.type(["stepwell", "study", "steppo", "--qick"])
    with pytest.raises(AssertionError, match="nothing here runs ray start"):
        reader.type(["ray", "start"])
