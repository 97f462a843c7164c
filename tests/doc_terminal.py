"""A terminal for one command in this process: what is typed, what is printed, how it ended."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
import threading
from collections.abc import Iterator

from stepwell.cli.main import main


@contextlib.contextmanager
def type_in(typed: str, *, at_terminal: bool) -> Iterator[None]:
    """Standard input that holds these keys: a real terminal, or plain text."""
    before = sys.stdin
    with contextlib.ExitStack() as stack:
        if at_terminal:
            keyboard, terminal = os.openpty()
            stack.callback(os.close, keyboard)
            sys.stdin = stack.enter_context(os.fdopen(terminal))
            is_over = threading.Event()
            typing = threading.Thread(target=_press_keys, args=(keyboard, typed, is_over))
            typing.start()
            stack.callback(typing.join)
            stack.callback(is_over.set)
        else:
            sys.stdin = io.StringIO(typed)
        try:
            yield
        finally:
            sys.stdin = before


def _press_keys(keyboard: int, typed: str, is_over: threading.Event) -> None:
    """Again and again: what is typed before the program listens is thrown away."""
    while not is_over.wait(0.05):
        os.write(keyboard, typed.encode())


def run_main(words: list[str], typed: str = "") -> str:
    """The command in this process; what it printed. An assertion with all of it if it did not end with 0."""
    printed = io.StringIO()
    try:
        with (
            type_in(typed, at_terminal=words[0] == "top"),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            code = main(words)
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 0, f"stepwell {shlex.join(words)} ended with {code}:\n{printed.getvalue()}"
    return printed.getvalue()
