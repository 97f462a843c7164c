"""The position log knows from which token and where each key was computed, and for this request."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
import torch
from tests.engines.models import prompts_of, small_model

from stepwell.config.engine import EngineConfig
from stepwell.core import Request, SamplingParams, TokenState, position_marks
from stepwell.core.position_marks import mark_sequence
from stepwell.engines import EmbeddedEngine
from stepwell.engines.position_log import PositionLog

IDS = np.arange(100, 115)


def log_of_rows(num_rows: int) -> PositionLog:
    return PositionLog(num_rows, 16, torch.device("cpu"))


def note(log: PositionLog, slot: int, places: range, positions: torch.Tensor) -> None:
    where = torch.tensor(places)
    log.note_tokens(torch.full_like(where, slot), where, torch.from_numpy(IDS)[where], positions)


def test_a_place_that_was_computed_for_an_earlier_request_only_is_no_place_of_this_one() -> None:
    log = log_of_rows(2)
    note(log, 0, range(15), torch.arange(15))
    assert log.compute_mark(0, IDS) == mark_sequence(np.arange(15))
    log.forget_rest([0, 1], [8, 0])
    note(log, 0, range(9, 15), torch.arange(9, 15))  # place 8 is left out
    assert log.compute_mark(0, IDS[:8]) == mark_sequence(np.arange(8))
    assert log.compute_mark(0, IDS) == mark_sequence(np.where(np.arange(15) == 8, -1, np.arange(15)))


def test_a_key_of_another_token_counts_as_never_computed() -> None:
    log = log_of_rows(1)
    note(log, 0, range(15), torch.arange(15))
    asked = np.where(np.arange(15) == 3, 7, IDS)
    assert log.compute_mark(0, asked) == mark_sequence(np.where(np.arange(15) == 3, -1, np.arange(15)))


def test_rows_grow_in_places_and_axes_and_keep_what_they_know() -> None:
    log = log_of_rows(2)
    note(log, 0, range(10), torch.arange(10))
    log.ensure_places(40)
    note(log, 1, range(10), torch.stack([torch.arange(10), torch.arange(10) + 1, torch.arange(10)]))
    note(log, 0, range(10, 15), torch.arange(10, 15))
    assert log.table.shape == (2, 4, 40)
    assert log.compute_mark(0, IDS) == mark_sequence(np.arange(15))
    three = np.stack([np.arange(10), np.arange(10) + 1, np.arange(10)])
    assert log.compute_mark(1, IDS[:10]) == mark_sequence(three)


def test_a_request_that_is_cancelled_in_its_prefill_changes_no_mark_of_the_next_in_its_slot() -> None:
    long, short = prompts_of([60, 20])
    settings = EngineConfig(num_slots=1, max_batch_size=1, prefill_tokens=16)
    params = SamplingParams(max_tokens=5, ignore_end=True)
    with EmbeddedEngine(small_model("llama"), config=settings) as engine:
        core = engine._core
        core.add_request(Request(TokenState(long), params, id="a"))
        core.step()
        core.cancel("a")
        core.add_request(Request(TokenState(short), params, id="b"))
        done = []
        while core.is_busy:
            done += core.step()
    marks = {one.id: one.sampled.position_mark for one in done}
    assert marks == {"a": None, "b": mark_sequence(np.arange(24))}


def test_threads_that_look_up_marks_at_once_disturb_none(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [1 + 7 * i % 400 for i in range(400)]
    expected = [mark_sequence(np.arange(length)) for length in lengths]
    found: dict[int, list[int]] = {}
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            monkeypatch.setattr(position_marks, "_counted", np.zeros(1, dtype=np.int64))

            def look_up(number: int) -> None:
                found[number] = [mark_sequence(np.arange(length)) for length in lengths]

            threads = [threading.Thread(target=look_up, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(found) == 4 and all(marks == expected for marks in found.values())
            found.clear()
    finally:
        sys.setswitchinterval(before)
