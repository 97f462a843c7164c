"""Child processes end in every case, and say how."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepwell.core.child_process import ChildProcess, describe_exit

LIMIT_S = 60.0


def start(code: str, **more: object) -> ChildProcess:
    return ChildProcess([sys.executable, "-c", code], **more)  # type: ignore[arg-type]


def is_gone(pid: int) -> bool:
    """Whether no process has this number, except one that waits to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until_gone(pid: int) -> None:
    until = time.monotonic() + LIMIT_S
    while not is_gone(pid):
        assert time.monotonic() < until, f"{pid} is still there"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import sys; print('farewell'); sys.exit(5)", "ended with exit code 5; its log ends with\nfarewell"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "was killed by SIGTERM"),
    ],
)
def test_an_end_is_described_with_the_last_lines_of_the_log(code: str, how: str) -> None:
    child = start(code)
    assert child.wait(LIMIT_S) and child.describe_end() == how
    assert child.kill() == child.kill() == (5 if "5" in how else -signal.SIGTERM)
    assert child.describe_end() == how
    assert child.was_killed_by_others() == ("SIGTERM" in how)


def test_kill_ends_everything_that_the_child_forked() -> None:
    code = "import os, time; pid = os.fork(); pid and print(pid, flush=True); time.sleep(600)"
    child = start(code, pipe_output=True)
    assert child.stdout is not None
    forked = int(child.stdout.readline())
    assert child.exit_code is None
    assert child.kill() == -signal.SIGKILL
    assert child.describe_end() == "was stopped" and not child.was_killed_by_others()
    wait_until_gone(forked)
    assert child.stdin.closed and child.stdout.closed


def test_stop_lets_a_child_end_by_itself() -> None:
    child = start("import sys; sys.stdin.read(); sys.exit(3)")
    assert child.stop(LIMIT_S) == 3 and not child.was_stopped


def test_a_log_is_appended_to_and_only_the_own_part_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    for word in ("first", "second"):
        child = start(f"print({word!r})", log=log)
        assert child.wait(LIMIT_S) and child.log_tail() == word
        child.kill()
    assert log.read_text() == "first\nsecond\n"


def test_a_command_that_is_not_there_leaves_no_file_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        ChildProcess([str(tmp_path / "missing")])
    assert len(os.listdir("/proc/self/fd")) == before


PARENT = """
import sys, time
from stepwell.core.child_process import ChildProcess
child = ChildProcess([sys.executable, "-c", sys.argv[1]], pipe_output=True)
child.stdout.read(1)
print(child.pid, flush=True)
time.sleep(600)
"""
STUCK = (
    "from stepwell.core.child_process import end_with_parent as e; e(); print('.', flush=True); import time; "
)
WATCHING = "from stepwell.core.child_process import call_when_parent_ends as c; import os, time; "


@pytest.mark.parametrize(
    "code",
    [
        STUCK + "exec('while True: pass')",
        WATCHING + "c(lambda: os._exit(0)); print('.', flush=True); time.sleep(600)",
    ],
    ids=["kernel", "thread"],
)
def test_a_child_does_not_outlive_a_parent_that_is_killed(code: str) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        parent.kill()
    wait_until_gone(pid)


def test_exit_codes_in_words() -> None:
    assert describe_exit(2) == "ended with exit code 2"
    assert describe_exit(-9) == "was killed by SIGKILL"
