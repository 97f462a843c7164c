"""The position log keeps what was computed last, also where positions of a prefill arrive later."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
import torch

from stepwell.core import position_marks
from stepwell.core.arrays import AnyArray
from stepwell.core.position_marks import mark_sequence
from stepwell.engines import position_log
from stepwell.engines.position_log import PositionLog


def array(*numbers: int) -> AnyArray:
    return np.array(numbers)


@pytest.fixture
def late_log(monkeypatch: pytest.MonkeyPatch) -> PositionLog:
    """A log of a device that is not the host: its prefills are read when they are needed."""
    monkeypatch.setattr(position_log, "CHECKED_DEVICES", ("meta",))
    return PositionLog(2, torch.device("meta"))


def test_a_prefill_that_was_cancelled_changes_nothing_of_the_next_request_in_its_slot(
    late_log: PositionLog,
) -> None:
    late_log.add_runs(array(0), array(0), array(50), torch.arange(50) + 100)  # nobody waits for this one
    late_log.add_runs(array(0), array(0), array(10), torch.arange(10))
    for place in range(10, 15):
        late_log.add_tokens(array(0), array(place), array(place))
    assert late_log.compute_mark(0, 15) == mark_sequence(np.arange(15))


def test_a_prefix_is_copied_with_what_is_still_arriving(late_log: PositionLog) -> None:
    late_log.add_runs(array(0), array(0), array(10), torch.arange(10) + 3)
    late_log.copy_prefixes([0], [1], 10)
    late_log.add_runs(array(0), array(0), array(10), torch.arange(10))
    assert late_log.compute_mark(1, 10) == mark_sequence(np.arange(10) + 3)
    assert late_log.compute_mark(0, 10) == mark_sequence(np.arange(10))


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
