"""Every command of the documentation, really run: `make test-docs-commands`.

A page is one test and one folder. A command that fails does not stop its page: all failures are reported. The
same training, study or forecast is run once, on the first page that has it. Every command prints one line.
DOC_COMMANDS_FILE names a file for what became of each; pages that were not run stay in it as they were.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.doc_pages import list_pages, read_blocks, split_commands
from tests.doc_runner import Machines, Runner
from tests.doc_sizes import find_lasting_reason
from tests.test_doc_commands import name_page

from stepwell.runs.machine import describe_machine

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
    outcomes, failures = [], []
    for block in read_blocks(page):
        if block.language == "python" and page.parent.name == "tutorials":
            runner.run_block(block.text, page)
        for words in split_commands(block.text) if block.is_shell else ():
            outcome, problem = run_command(words, page, runner)
            print(f"{outcome['outcome']}  {name_page(page)}  {outcome['command']}", flush=True)
            outcomes.append(outcome)
            if problem:
                failures.append(problem)
                print(problem, flush=True)
    write_outcomes(name_page(page), outcomes)
    assert not failures, f"{len(failures)} failed:\n" + "\n\n".join(failures)


def run_command(words: list[str], page: Path, runner: Runner) -> tuple[dict[str, Any], str]:
    """What became of a command, with its seconds, and the problem if there is one."""
    line = shlex.join(words)
    if (reason := find_lasting_reason(words)) is not None:
        return {"command": line, "outcome": "not run", "why": reason}, ""
    is_alike = words[0] == "stepwell" and words[1] in ("train", "study", "plan", "demo")
    if is_alike and "runs/" not in line and line in DONE:
        return {"command": line, "outcome": f"as on {name_page(DONE[line])}"}, ""
    DONE[line] = page
    began, cpu_before = time.monotonic(), sum(os.times()[:4])
    problem = ""
    try:
        runner.type(words)
    except (Exception, SystemExit) as error:
        problem = f"{name_page(page)}: {line}\n{type(error).__name__}: {error}"
    cpu_s = sum(os.times()[:4]) - cpu_before
    times = {"seconds": round(time.monotonic() - began, 1), "cpu_s": round(cpu_s, 1)}
    return {"command": line, "outcome": "FAILED" if problem else "ran to its end", **times}, problem


def write_outcomes(name: str, outcomes: list[dict[str, Any]]) -> None:
    """Put what became of one page into the file."""
    if not (named := os.environ.get("DOC_COMMANDS_FILE")):
        return
    file = Path(named)
    known = json.loads(file.read_text()) if file.exists() else {"pages": {}}
    pages = known["pages"] | {name: outcomes}
    kept = {page: pages[page] for page in map(name_page, list_pages()) if page in pages}
    counts = Counter(each["outcome"].split(" on ")[0] for page in kept.values() for each in page)
    result = {"machine": describe_machine(), "counts": counts, "pages": kept}
    file.write_text(json.dumps(result, indent=1) + "\n")
