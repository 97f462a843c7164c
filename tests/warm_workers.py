"""The processes of pytest-xdist, forked from one that has imported torch, transformers and what computes.

Each of them would import that itself, and once more in the server from which its tests fork processes: seven
times the same. execnet has no public call for it; where its functions are other ones, or there is no fork
server, processes start as before.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from execnet import gateway_io
from execnet.gateway_base import Popen2IO

from stepwell.core.fork_server import MODEL_MODULES, start_warm

COLD = gateway_io.Popen2IOMaster


class WarmIO(COLD):
    """A worker's process and its pipes, as execnet sees them."""

    imports: Sequence[str] = MODEL_MODULES

    def __init__(self, args: list[str], execmodel: Any) -> None:
        command = [sys.executable, "-m", "tests.warm_worker"]
        process = start_warm(
            command,
            os.environ,
            self.imports,
            output=subprocess.PIPE,
            errors=2,
            pass_fds=(),
            keeps_server=True,
        )
        if process is None:
            super().__init__(args, execmodel)
            return
        self.popen = process
        self.pid = process.pid
        streams = io.BufferedWriter(process.stdin), io.BufferedReader(process.stdout)
        Popen2IO.__init__(self, *streams, execmodel=execmodel)

    def kill(self) -> None:
        """End the process."""
        os.kill(self.popen.pid, signal.SIGKILL)


def start_workers_warm(config: pytest.Config) -> None:
    """Let the workers be forked if this run is of all tests: a few may need none of those modules.

    Not where lines are counted: those that the server runs are not.
    """
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if is_whole and not getattr(config.option, "cov_source", None):
        gateway_io.Popen2IOMaster = WarmIO
