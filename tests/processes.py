"""Commands in processes of their own, forked from one that has imported what they need."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stepwell.core.child_process import ChildProcess, limit_threads
from stepwell.core.fork_server import MODEL_MODULES

LIMIT_S = 240.0


def start_module(module: str, *arguments: str, log: Path | None = None) -> ChildProcess:
    """Start `python -m MODULE` in the working folder; its standard error goes to the log."""
    return ChildProcess(
        [sys.executable, "-m", module, *arguments],
        environment=os.environ | limit_threads(1),
        log=log,
        pipe_output=True,
        imports=MODEL_MODULES,
        keeps_server=True,
    )


def await_end(process: ChildProcess) -> tuple[int, str]:
    """Wait for its end; its exit code and the rest of its standard output."""
    assert process.stdout is not None
    output = process.stdout.read().decode()
    assert process.wait(LIMIT_S), "it does not end"
    return process.kill(), output
