"""The benchmark of training speed computes one loss and one gradient in three ways."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))  # as for the script itself
        yield importlib.import_module("training_speed")


@pytest.mark.slow
def test_all_ways_compute_the_same_update(benchmark: ModuleType) -> None:
    (row,) = benchmark.main(["--quick", "--rows", "2", "--repeats", "1", "--no-write"])
    assert row["packed"]["microbatches"] > 1
    assert row["packed"]["tokens"] < row["plain"]["tokens"] < row["replay"]["tokens"]
    for way in ("plain", "replay"):
        assert row[way]["loss"] == pytest.approx(row["packed"]["loss"], rel=1e-4)
    assert row["gradient_gap"]["packed"] < 1e-4


def test_a_dialogue_without_siblings_packs_to_one_sequence(benchmark: ModuleType) -> None:
    row = benchmark.QUICK["6"]
    packed = benchmark.pack(benchmark.Batch.draw(row, benchmark.torch.device("cpu")).steps)
    plain, ours = (benchmark.count_work(way, row, packed) for way in ("plain", "packed"))
    assert ours == plain
