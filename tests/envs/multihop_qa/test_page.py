"""The page about multi-hop QA: its code runs, its tables say what there is."""

from __future__ import annotations

import re
from pathlib import Path

from stepwell.envs.multihop_qa.facts import open_collection
from stepwell.envs.multihop_qa.options import MultihopOptions

PAGE = (Path(__file__).parent.parent.parent.parent / "docs" / "multihop_qa.md").read_text()


def test_the_code_of_the_page_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == 2
    for code in blocks:
        exec(code, {"__name__": "page"})


def test_the_table_names_every_option() -> None:
    options = PAGE.split("| option | default | |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", options, flags=re.MULTILINE)) == set(MultihopOptions.model_fields)


def test_the_collections_have_the_sizes_that_are_told() -> None:
    rows = re.findall(
        r"^\| (\w+) \| `\w+`, `\w+` \| .+ \| ([\d,]+) \| ([\d,]+) \|$", PAGE, flags=re.MULTILINE
    )
    assert [name for name, _, _ in rows] == ["atlas", "nuclides", "codes", "marks"]
    for name, passages, questions in rows:
        found = open_collection(name)
        assert (f"{len(found.documents):,}", f"{len(found.questions):,}") == (passages, questions)
