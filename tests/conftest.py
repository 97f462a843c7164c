"""Shared set-up: one thread, models cached in the checkout, files in memory, GPU tests only on a GPU."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.compiling import compile_test_modules
from tests.properties import IS_THOROUGH

from stepwell.core.child_process import limit_threads

# One thread here and in every process that a test starts: set before torch is imported, which reads it once.
# All that `limit_threads` sets: processes with and without a limit then start from the same fork server.
for name, value in limit_threads(1).items():
    os.environ.setdefault(name, value)
# Threads of a run that has two all the same sleep, not spin, while they wait for each other: other tests need
# the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Models that tests build or convert stay in the checkout, not in the user's own cache.
os.environ.setdefault("STEPWELL_CACHE", str(Path(__file__).parent.parent / ".cache"))
# No test asks the real hub; those about downloads start a small server of their own.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
settings.register_profile("quick", derandomize=True, deadline=None, max_examples=15)
settings.register_profile("thorough", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("thorough" if IS_THOROUGH else "quick")
# What a shell starts in the background ignores Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # nearly all that imports and collection make stays: enabled once tests are collected
# Ray's clusters share one process and mostly wait, others have tests of ten seconds and more: begun last, all
# other processes would wait for them.
LONG = ("ray", "rank_join", "robots", "learning", "async_runs", "restart")
BEGUN_FIRST = {f"test_{name}.py": place for place, name in enumerate(LONG)}
TIME_IS_OVER = "the time budget is over"
# Workers inherit both from the process that starts them.
STARTED_AT = float(os.environ.setdefault("STEPWELL_TESTS_STARTED_AT", repr(time.time())))
IS_FIRST = "STEPWELL_TESTS_SHARED" not in os.environ
MEMORY_DISK = Path("/dev/shm")


def has_memory_disk(least_bytes: int = 4 * 2**30) -> bool:
    """Whether there is a roomy disk in memory from which programs may be started."""
    if not os.access(MEMORY_DISK, os.W_OK):
        return False
    found = os.statvfs(MEMORY_DISK)
    return found.f_bavail * found.f_frsize >= least_bytes and not found.f_flag & os.ST_NOEXEC


if IS_FIRST:
    # Runs flush some eighty files each, 6 ms apiece on a slow disk: in memory that costs nothing.
    if has_memory_disk():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_DISK))
    # what is built once for all workers of this run
    root = os.environ.get("PYTEST_DEBUG_TEMPROOT")
    os.environ["STEPWELL_TESTS_SHARED"] = tempfile.mkdtemp(prefix="stepwell-tests-", dir=root)


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "start no test after this many seconds, and say how many are left"
    parser.addoption("--time-budget", type=float, metavar="SECONDS", help=help_text)


def pytest_sessionstart(session: pytest.Session) -> None:
    if IS_FIRST and session.config.getoption("numprocesses", None):
        from tests.warm_workers import start_workers_warm  # needs pytest-xdist

        compile_test_modules(session.config)
        start_workers_warm(session.config)
        gc.enable()  # this process collects no tests: its workers do


def pytest_unconfigure() -> None:
    if IS_FIRST:
        shutil.rmtree(os.environ.pop("STEPWELL_TESTS_SHARED"), ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.time_budget is None:  # a budget is for what is nearest
        items.sort(key=lambda item: BEGUN_FIRST.get(item.path.name, len(LONG)))
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    import torch  # heavy: only for those who need it

    if not torch.cuda.is_available():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    """Leave a million objects of imports and tests out of every collection from now on.

    Python collects old objects only after their number has grown by a quarter: with all of that counted,
    models that hang in a cycle, such as those of a failed run, would stay for most of the suite.
    """
    gc.collect()
    gc.freeze()
    gc.collect()
    gc.enable()
    gc.set_threshold(20_000)  # not every 700 objects: that took 2 % of the suite's time


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Go back to one thread after every test; after the last one of a module, collect what the module left.

    What is alive then is no garbage and is not looked at again. In the teardown of a fixture the arguments of
    the last test would still be alive, and those that hang in a cycle would stay.
    """
    result = yield
    restore_threads()
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
        give_back_memory()
    return result


def restore_threads() -> None:
    """Undo what a run with threads of its own has set: later tests would all compute with them."""
    torch = sys.modules.get("torch")
    num_threads = int(os.environ["OMP_NUM_THREADS"])
    if torch is not None and torch.get_num_threads() != num_threads:
        torch.set_num_threads(num_threads)


def give_back_memory() -> None:
    """Hand free memory back to the system, where the C library keeps it for later (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def pytest_runtest_setup(item: pytest.Item) -> None:
    budget = item.config.option.time_budget
    if budget is not None and time.time() - STARTED_AT > budget:
        pytest.skip(TIME_IS_OVER)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    left = [report for report in skipped if TIME_IS_OVER in str(report.longrepr)]
    if left:
        budget = config.option.time_budget
        terminalreporter.write_line(
            f"{len(left)} tests were not started: the {budget:g} s are over. `make test` runs them all."
        )
