"""Processes forked from a warm one are what a cold start gives, only sooner."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.core import fork_server
from stepwell.core.child_process import ChildProcess
from stepwell.core.fork_server import end_servers, list_servers

LIMIT_S = 60.0
CHILD = """
import json, os, random, sys, tempfile
passed = int(sys.argv[1])
facts = {
    "arguments": sys.argv[1:],
    "folder": os.getcwd(),
    "path": sys.path[0],
    "temporary": tempfile.gettempdir(),
    "environment": dict(os.environ),
    "leads": os.getpid() == os.getpgrp() == os.getsid(0),
    "parent": os.getppid(),
    "given": os.read(passed, 100).decode(),
    "read": sys.stdin.readline(),
    "open": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "random": random.random(),
    "warm": "colorsys" in sys.modules,
}
print(json.dumps(facts), flush=True)
print("to the log", file=sys.stderr, flush=True)
sys.exit(7)
"""


@pytest.fixture(autouse=True)
def own_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins and ends without servers; modules of its folder can be imported."""
    monkeypatch.setattr(fork_server, "_servers", {})  # those of other tests go on
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.chdir(tmp_path)
    Path("child.py").write_text(CHILD)
    Path("sleeper.py").write_text("import sys; print('here', flush=True); sys.stdin.read()")
    yield
    end_servers()


def start(
    module: str, *arguments: str, imports: tuple[str, ...] = ("colorsys",), **more: object
) -> ChildProcess:
    command = [sys.executable, "-m", module, *arguments]
    return ChildProcess(command, imports=imports, **more)  # type: ignore[arg-type]


def learn_facts(imports: tuple[str, ...]) -> dict[str, object]:
    import json

    read, write = os.pipe()
    os.write(write, b"a gift")
    child = start("child", str(read), "é b", imports=imports, pipe_output=True, pass_fds=(read,))
    os.close(write)
    child.send_line("hello")
    assert child.stdout is not None
    facts: dict[str, object] = json.loads(child.stdout.readline())
    assert child.wait(LIMIT_S) and child.exit_code == 7
    assert child.describe_end() == "ended with exit code 7; its log ends with\nto the log"
    assert child.kill() == 7
    os.close(read)
    return facts


def test_a_warm_process_is_what_a_cold_one_is() -> None:
    cold, warm = learn_facts(()), learn_facts(("colorsys",))
    assert not cold.pop("warm") and warm.pop("warm")
    assert cold.pop("random") != warm.pop("random") != learn_facts(("colorsys",))["random"]
    assert cold["parent"] == os.getpid() and cold["leads"]
    assert warm == cold


def test_one_server_serves_many_and_its_end_is_that_of_no_child() -> None:
    first, second = start("sleeper", pipe_output=True), start("sleeper", pipe_output=True)
    (server,) = list_servers()
    for child in (first, second):
        assert child.stdout is not None and child.stdout.readline() == b"here\n"
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait(LIMIT_S) and first.was_killed_by_others()
    os.kill(server, signal.SIGKILL)
    third = start("sleeper", pipe_output=True)  # cold, as the server is gone
    fourth = start("sleeper", pipe_output=True)
    assert list_servers() and list_servers() != [server]
    assert [child.kill() for child in (first, second, third, fourth)] == [-signal.SIGKILL] * 4


def test_what_libraries_read_at_import_has_a_server_of_its_own() -> None:
    for more in ({}, {"COLOUR": "red"}, {"OMP_NUM_THREADS": "3"}):
        start("sleeper", environment={**os.environ, **more}).kill()
    assert len(list_servers()) == 2


@pytest.mark.parametrize(
    "module",
    [
        "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "1 / 0",
    ],
)
def test_imports_that_start_a_thread_or_fail_mean_a_cold_start(module: str) -> None:
    Path("odd.py").write_text(module)
    child = start("sleeper", imports=("odd",), pipe_output=True)
    assert child.stdout is not None and child.stdout.readline() == b"here\n"
    assert child.kill() == -signal.SIGKILL


def _start_here() -> None:
    child = start("sleeper", pipe_output=True)
    assert child.stdout is not None and child.stdout.readline() == b"here\n"
    assert child.exit_code is None and child.kill() == -signal.SIGKILL
    end_servers()


def test_a_fork_of_the_parent_has_servers_of_its_own() -> None:
    kept = start("sleeper")
    before = list_servers()
    forked = multiprocessing.get_context("fork").Process(target=_start_here)
    forked.start()
    forked.join()
    assert forked.exitcode == 0 and list_servers() == before
    assert kept.kill() == -signal.SIGKILL
    _start_here()


NESTED = """
import os, sys
from stepwell.core.child_process import ChildProcess
from stepwell.core.fork_server import list_servers
(server,) = list_servers()
child = ChildProcess([sys.executable, "-m", "sleeper"], imports=["colorsys"], pipe_output=True)
assert child.stdout.readline() == b"here\\n" and list_servers() == [server]
print(server, child.pid, child.kill(), flush=True)
sys.stdin.read()
"""


def test_a_warm_process_may_have_a_server_for_its_own_children() -> None:
    Path("nested.py").write_text(NESTED)
    child = start("nested", pipe_output=True, keeps_server=True)
    assert child.stdout is not None
    server, forked, code = map(int, child.stdout.readline().split())
    assert code == -signal.SIGKILL and not is_there(forked) and is_there(server)
    assert child.kill() == -signal.SIGKILL
    wait_until_gone(server)


def is_there(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def wait_until_gone(pid: int) -> None:
    until = time.monotonic() + LIMIT_S
    while is_there(pid):
        assert time.monotonic() < until, "the server is still there"
        time.sleep(0.01)


def test_a_server_ends_with_its_parent() -> None:
    code = (
        "import sys; from stepwell.core.child_process import ChildProcess\n"
        "from stepwell.core.fork_server import list_servers\n"
        "child = ChildProcess([sys.executable, '-m', 'sleeper'], imports=['colorsys'])\n"
        "print(*list_servers(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        server = int(parent.stdout.readline())
        parent.kill()
    wait_until_gone(server)
