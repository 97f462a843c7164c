"""What `make test-fast` runs: the tests that a change reaches, nearest first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import changed_tests  # noqa: E402


def order_names(*changes: str) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in changed_tests.order_tests({ROOT / c for c in changes})]


def test_a_changed_test_comes_first_and_then_the_tests_of_the_changed_folder() -> None:
    names = order_names("tests/engines/test_slots.py", "src/stepwell/pool/blobs.py")
    assert names[0] == "tests/engines/test_slots.py"
    assert names[1] == "tests/pool/test_blobs.py"
    assert {"tests/pool/test_serving.py", "tests/runs/test_resume.py"} <= set(names)
    assert "tests/algos/test_segments.py" not in names


def test_a_page_reaches_the_tests_that_name_it() -> None:
    names = order_names("docs/structure.md")
    assert "tests/test_layout.py" in names and "tests/pool/test_blobs.py" not in names
    assert order_names("nowhere" + ".txt") == []


def test_changes_are_what_differs_from_where_the_branch_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *author, *arguments], check=True, capture_output=True)

    def commit(name: str) -> None:
        (tmp_path / name).write_text(name)
        git("add", ".")
        git("commit", "-m", name)

    git("init", "-b", "main")
    commit("old")
    commit("newer")
    monkeypatch.setattr(changed_tests, "ROOT", tmp_path)
    assert changed_tests.list_changes("main") == {tmp_path / "newer"}  # nothing else differs: the last commit
    git("checkout", "-b", "branch")
    commit("mine")
    (tmp_path / "old").write_text("edited")
    (tmp_path / "unknown").write_text("")
    git("checkout", "main")
    assert changed_tests.list_changes("main") == {tmp_path / "old", tmp_path / "unknown"}
    git("checkout", "branch")
    assert changed_tests.list_changes("main") == {tmp_path / name for name in ("mine", "old", "unknown")}
