"""The notebooks in examples/ run to their last cell, and are kept with the outputs of a real run."""

from __future__ import annotations

import ast
import base64
import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from tests.sources import read_sources

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SOURCE = Path(__file__).parent.parent.parent / "src"
NOTEBOOKS = {"own_environment": 24, "own_credit_and_reward": 4, "text_agent": 30}
"""Each with the updates of its run."""
MAX_IMAGE_BYTES = 100_000


def read_notebook(name: str) -> Any:
    return nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)  # type: ignore[no-untyped-call]


def outputs_of(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def images_of(notebook: Any) -> list[bytes]:
    data = [output.get("data", {}).get("image/png") for output in outputs_of(notebook)]
    return [base64.b64decode(image) for image in data if image]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_with_the_outputs_of_a_whole_run(name: str) -> None:
    notebook = read_notebook(name)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert [output for output in outputs_of(notebook) if output.output_type == "error"] == []
    images = images_of(notebook)
    assert images and all(len(image) < MAX_IMAGE_BYTES for image in images)
    shown = str(outputs_of(notebook))
    assert f"update {NOTEBOOKS[name]}/{NOTEBOOKS[name]}" in shown


def test_the_notebook_about_credit_shows_a_difference() -> None:
    """Success over the seeds of both credit functions, as the kept outputs print it: the ranges are apart."""
    shown = "".join(output.get("text", "") for output in outputs_of(read_notebook("own_credit_and_reward")))
    line = r"(own credit|GRPO) +success in the last updates ([.\d]+) \(seeds: ([.\d]+) to ([.\d]+)\)"
    ranges = {name: (float(low), float(high)) for name, _, low, high in re.findall(line, shown)}
    assert ranges["own credit"][0] > ranges["GRPO"][1]


def test_the_notebook_about_a_text_agent_shows_one_that_learnt_and_its_credit() -> None:
    """Held-out success rises, and every turn of the trajectory that is read has a value and an advantage."""
    shown = "".join(output.get("text", "") for output in outputs_of(read_notebook("text_agent")))
    (before, after), *_ = re.findall(r"held-out success ([.\d]+) before .* ([.\d]+) after", shown)
    assert float(after) > float(before) + 0.3
    turns = re.findall(r"^ +(\d+) .* {2}(-?[.\d]+) +([+-][.\d]+)$", shown, re.MULTILINE)
    assert [int(turn) for turn, _, _ in turns] == list(range(1, len(turns) + 1)) and len(turns) > 3


@pytest.mark.parametrize("name", ["own_environment", "own_credit_and_reward"])
def test_checks_that_a_notebook_prints_have_the_names_of_today(name: str) -> None:
    texts = "".join(output.get("text", "") for output in outputs_of(read_notebook(name)))
    printed = set(re.findall(r"^ok +(\w+)", texts, re.MULTILINE))
    known = {found.name for file in read_sources().values() for found in file.definitions}
    assert printed and printed <= known, printed - known


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_imports_only_what_everyone_may(name: str) -> None:
    for cell in read_notebook(name).cells:
        if cell.cell_type != "code":
            continue
        for node in ast.walk(ast.parse(cell.source)):
            assert not isinstance(node, ast.ImportFrom), "import stepwell as sw is all a notebook needs"


@pytest.mark.slow
def test_the_notebooks_run_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel for all, as it takes seconds to start; it forgets every name in between."""
    monkeypatch.setenv("STEPWELL_QUICK", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SOURCE), *filter(None, sys.path)]))
    notebooks = [read_notebook(name) for name in NOTEBOOKS]
    whole = nbformat.v4.new_notebook(metadata=notebooks[0].metadata)  # type: ignore[no-untyped-call]
    for notebook in notebooks:
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        forget = nbformat.v4.new_code_cell("%reset -f")  # type: ignore[no-untyped-call]
        whole.cells += [*notebook.cells, forget]
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(whole, timeout=300, kernel_name="python3", resources=resources).execute()
    for notebook in notebooks:  # its cells are those that ran
        assert images_of(notebook), "run.plot() shows itself"
        progress = [output for output in outputs_of(notebook) if "<progress" in str(output.get("data", {}))]
        assert len(progress) == 1  # one display per run, updated in place
        shown = str(outputs_of(notebook))
        assert "FAILED" not in shown and "Warning" not in shown
    assert len(list((tmp_path / "runs").iterdir())) >= len(notebooks)
