"""Ctrl-C ends every command with one line, also while it is still importing what it needs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_IMPORTED = "import time:"


def interrupt_after(module: str, command: list[str], folder: Path) -> tuple[int, list[str]]:
    """Send SIGINT as soon as a module was imported; the exit code and all that the command said."""
    started = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "stepwell", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert started.stderr is not None
    lines: list[str] = []

    def read_lines() -> Iterator[str]:
        for line in started.stderr or ():
            if not line.startswith(_IMPORTED):
                lines.append(line.strip())
            yield line

    with started:
        if not any(line.split("|")[-1].strip() == module for line in read_lines()):
            raise AssertionError(f"{module} was never imported: {lines}")
        started.send_signal(signal.SIGINT)
        for _ in read_lines():
            continue
    return started.returncode, [line for line in lines if line]


# from the first line of ours on: what the parser needs, NumPy in its middle, settings, PyTorch in its middle
@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("argparse", ["train", "frozenlake"]),
        ("numpy._core.multiarray", ["plan", "frozenlake"]),
        ("stepwell.core.errors", ["eval", "runs/none"]),
        ("pydantic_core", ["plan", "frozenlake"]),
        pytest.param("torch._C", ["plan", "frozenlake"], marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_among_the_imports_ends_with_one_line(module: str, command: list[str], tmp_path: Path) -> None:
    code, lines = interrupt_after(module, command, tmp_path)
    assert lines in (["interrupted."], ["interrupted. Nothing was trained yet."])
    # the second: a package swallowed the interrupt, and Python ends as a shell expects it
    assert code in (130, -signal.SIGINT)


def test_a_command_that_was_started_with_ctrl_c_ignored_goes_on(tmp_path: Path) -> None:
    """As shells start what runs in the background."""
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code, _ = interrupt_after("argparse", ["recipes"], tmp_path)
    finally:
        signal.signal(signal.SIGINT, ignored)
    assert code == 0
