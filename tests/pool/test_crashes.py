"""Processes are killed at random; nothing accepted is lost and nothing is served twice.

`crashing.py` does the killing and the audit, in a process of its own, as it forks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.pool.made import TASK, fill
from tests.pool.postgres import MISSING, binaries, database, server

from stepwell.core import InfraError
from stepwell.pool import open_pool

SCRIPT = Path(__file__).parent / "crashing.py"


def crash(place: str, folder: Path, *options: str) -> dict[str, int]:
    command = [sys.executable, SCRIPT, place, folder, *options]
    log = folder.with_suffix(".log")  # a file: a pipe would be held open by what it forks
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        try:
            assert process.wait(timeout=240) == 0, log.read_text()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return json.loads(log.read_text().splitlines()[-1])


@pytest.mark.slow
def test_killed_writers_and_readers_lose_nothing_and_get_nothing_twice(tmp_path: Path) -> None:
    audited = crash(str(tmp_path / "pool.db"), tmp_path / "notes", "--kills", "55")
    assert audited["kills"] == 55
    assert audited["steps"] > 20 and audited["groups"] > 2


@pytest.mark.slow
def test_nor_with_postgres_and_killed_processes_of_its_server(tmp_path: Path) -> None:
    if binaries() is None:
        pytest.skip(MISSING)
    with server() as url, database(url) as place:  # a server of its own: all its connections are cut
        audited = crash(place, tmp_path / "notes", "--kills", "50", "--kill-server")
    assert (audited["kills"], audited["server_kills"]) == (50, 2)
    assert audited["steps"] > 20 and audited["groups"] > 2


def test_a_server_that_is_not_there_is_one_clear_error() -> None:
    with pytest.raises(InfraError, match=r"the pool's database .*failed: connection failed"):
        open_pool("postgresql://nobody@127.0.0.1:9/nothing")


def test_a_pool_does_not_cross_a_fork(place: str) -> None:
    code = (
        "import os, sys\n"
        "from stepwell.pool import open_pool\n"
        "pool = open_pool(sys.argv[1])\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        "        pool.count()\n"
        "    except ValueError as error:\n"
        "        print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "print(pool.count())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, place], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "a pool cannot be used after a fork; call open_pool again in the new process",
        "0",
    ]


def test_a_closed_pool_says_so(place: str) -> None:
    pool = open_pool(place)
    fill(pool, "g")
    pool.close()
    pool.close()
    with pytest.raises(ValueError, match="this pool is closed"):
        pool.begin(TASK)
    with pytest.raises(ValueError, match="this pool is closed"):
        pool.count()
