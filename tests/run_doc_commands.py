"""Every command of the documentation, really run: `make test-docs-commands`.

A page is one test and one folder. A command that fails does not stop its page: all failures are reported. The
same training, study or forecast is run once, on the first page that has it. Every command prints one line.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.doc_pages import list_pages, read_blocks, split_commands
from tests.doc_runner import Machines, Runner
from tests.doc_sizes import find_lasting_reason
from tests.test_doc_commands import name_page

DONE: dict[str, Path] = {}


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    opened = Machines(tmp_path_factory.mktemp("services"))
    yield opened
    opened.close()


@pytest.fixture
def runner(tmp_path: Path, machines: Machines, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    found = Runner(tmp_path, machines, monkeypatch)
    yield found
    found.forget_modules()


@pytest.mark.parametrize("page", [pytest.param(page, id=name_page(page)) for page in list_pages()])
def test_every_command_of_a_page_runs_to_its_end(page: Path, runner: Runner) -> None:
    failures = []
    for block in read_blocks(page):
        if block.language == "python" and page.parent.name == "tutorials":
            runner.run_block(block.text, page)
        for words in split_commands(block.text) if block.is_shell else ():
            outcome, problem = run_command(words, page, runner)
            print(f"{outcome}  {name_page(page)}  {shlex.join(words)}", flush=True)
            if problem:
                failures.append(problem)
                print(problem, flush=True)
    assert not failures, f"{len(failures)} failed:\n" + "\n\n".join(failures)


def run_command(words: list[str], page: Path, runner: Runner) -> tuple[str, str]:
    """What became of a command, with its seconds, and the problem if there is one."""
    line = shlex.join(words)
    if (reason := find_lasting_reason(words)) is not None:
        return f"listed ({reason})", ""
    is_alike = words[0] == "stepwell" and words[1] in ("train", "study", "plan", "demo")
    if is_alike and "runs/" not in line and line in DONE:
        return f"as on {name_page(DONE[line])}", ""
    DONE[line] = page
    began, cpu_before = time.monotonic(), sum(os.times()[:4])
    try:
        runner.type(words)
    except (Exception, SystemExit) as error:
        return "FAILED", f"{name_page(page)}: {line}\n{type(error).__name__}: {error}"
    return f"ok {time.monotonic() - began:.1f} s, {sum(os.times()[:4]) - cpu_before:.1f} CPU s", ""
