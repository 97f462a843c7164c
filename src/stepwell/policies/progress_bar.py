"""The progress bars of transformers, hidden: a run has a console of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_num_inside = 0
_was_on = False


@contextmanager
def hide_progress_bar() -> Iterator[None]:
    """Open or save models without the bar that transformers draws for each of them.

    The switch is one for all threads: the first to enter turns bars off, the last to leave turns them on.
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _num_inside, _was_on
    from transformers.utils import logging

    with _lock:
        if _num_inside == 0:
            _was_on = logging.is_progress_bar_enabled()
            logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        _num_inside += 1


def _leave() -> None:
    global _num_inside
    from transformers.utils import logging

    with _lock:
        _num_inside -= 1
        if _num_inside == 0 and _was_on:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
