"""The cache of data: built once, whole or absent."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stepwell.core import ConfigError, EncodingError
from stepwell.data.cache import find_data_folder, open_cached


def read(path: Path) -> str:
    text = path.read_text()
    if not text.endswith("."):
        raise EncodingError("it has no end")
    return text


def test_a_product_is_built_once_even_by_many_at_once(tmp_path: Path) -> None:
    built: list[int] = []

    def build(path: Path) -> None:
        built.append(1)
        path.write_text("whole.")

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: open_cached("a/b.txt", build, read, tmp_path), range(16)))
    assert found == ["whole."] * 16
    assert built == [1]


def test_a_damaged_file_is_built_again_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hal")
    with pytest.warns(UserWarning, match=r"damaged \(it has no end\)"):
        assert open_cached("x", lambda path: path.write_text("whole."), read, tmp_path) == "whole."


def test_a_builder_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def build(path: Path) -> None:
        path.write_text("half")
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        open_cached("x", build, read, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".x.lock"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="STEPWELL_CACHE"):
        open_cached("x", lambda path: path.write_text("."), read, tmp_path / "file")


def test_the_cache_is_where_the_variable_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path))
    assert find_data_folder() == tmp_path / "data"
    monkeypatch.delenv("STEPWELL_CACHE")
    assert find_data_folder() == Path.home() / ".cache" / "stepwell" / "data"
