"""One line typed with arrow keys as well as letters, on a terminal.

An arrow types the action it points at; Enter ends the line. Where a turn is one action, an
arrow ends it at once, and a letter that is a command and begins no action ends it too, so
that most play needs no Enter. `edit_line` is free of any terminal; `Keyboard` feeds it keys.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepwell.core.env_description import ActionSpace

ARROWS = {"A": "Up", "B": "Down", "C": "Right", "D": "Left"}
ERASE, ENTER, END = ("\x7f", "\b"), ("\r", "\n"), "\x04"


def edit_line(
    keys: Iterator[str], actions: ActionSpace, commands: str, show: Callable[[str], None]
) -> str | None:
    """The line that `keys` type; None at the end of input. `show` is given the line after every key."""
    at_once = {c for c in commands if not any(name.lower().startswith(c) for name in actions.names)}
    line = ""
    for key in keys:
        if key in ENTER:
            return line
        if key == END:
            return None
        if arrow := _find_arrow_action(key, actions):
            line = f"{line}{actions.separator}{arrow}" if line else arrow
            if actions.max_per_turn == 1:
                return line
        elif key in ERASE:
            line = line[:-1]
        elif not line and key in at_once and not actions.is_text:
            return key
        elif key.isprintable():
            line += key
        show(line)
    return None


class Keyboard:
    """Reads lines from the terminal, key by key. What is typed ahead waits for the next line."""

    def __init__(self) -> None:
        self._stdin = sys.stdin.fileno()
        self._typed = ""

    def read_line(self, prompt: str, actions: ActionSpace, commands: str) -> str | None:
        """One line; None at the end of input."""
        import termios
        import tty

        def show(line: str) -> None:
            print(f"\r\x1b[K{prompt}{line}", end="", flush=True)

        usual = termios.tcgetattr(self._stdin)
        show("")
        try:
            tty.setcbreak(self._stdin, termios.TCSANOW)
            line = edit_line(self._read_keys(), actions, commands, show)
        finally:
            termios.tcsetattr(self._stdin, termios.TCSANOW, usual)
        show(line or "")
        print()
        return line

    def _read_keys(self) -> Iterator[str]:
        """Keys one by one; an arrow's escape sequence comes as one key."""
        while self._typed or self._wait_for_key():
            length = 3 if self._typed.startswith(("\x1b[", "\x1bO")) else 1
            key, self._typed = self._typed[:length], self._typed[length:]
            yield key

    def _wait_for_key(self) -> bool:
        self._typed = os.read(self._stdin, 64).decode(errors="ignore")
        return bool(self._typed)


def _find_arrow_action(key: str, actions: ActionSpace) -> str | None:
    """The action that an arrow key means, if the environment has it."""
    if len(key) != 3 or not key.startswith("\x1b"):
        return None
    pointed = ARROWS.get(key[2], "").casefold()
    return next((name for name in actions.names if name.casefold() == pointed), None)
