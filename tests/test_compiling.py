"""What is compiled ahead is what pytest imports."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from _pytest.assertion import rewrite
from tests.compiling import compile_modules, is_stale


def test_a_module_compiled_ahead_is_imported_without_being_rewritten_again(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "test_made.py"
    path.write_text("def test_it():\n    left = 1\n    assert left == 2\n")
    assert is_stale(path)
    compile_modules(request.config, [path])
    assert not is_stale(path)
    monkeypatch.delattr(rewrite, "_rewrite_test")
    hook = rewrite.AssertionRewritingHook(request.config)
    spec = importlib.util.spec_from_file_location("test_made", path, loader=hook)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    hook.exec_module(module)
    with pytest.raises(AssertionError, match="assert 1 == 2"):
        module.test_it()
