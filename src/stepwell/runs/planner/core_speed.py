"""How much work the cores of this machine do when all of them are busy.

A machine says that it has 16 cores, and often means 16 threads of eight: two processes on one core take
almost twice as long. So the same small program runs once alone and once on every core at the same time, and
the work of all is counted in that of one. Work is counted by second of processor, so that time in which
other programs had the cores does not matter.
"""

from __future__ import annotations

import os
import sys
import time

from stepwell.core.child_process import ChildProcess
from stepwell.core.errors import InfraError

_PROGRAM = """
import sys, time
begin, seconds = float(sys.argv[1]), float(sys.argv[2])
count, table = 0, {}
time.sleep(max(0.0, begin - time.time()))
used, end = time.process_time(), time.time() + seconds  # on a busy machine it may begin late
while not count or time.time() < end:
    for i in range(2000):
        table[i & 255] = table.get(i & 127, 0) + i * 3
    count += 1
print(count / max(1e-9, time.process_time() - used))
"""
_START_S = 0.3
"""Seconds that all processes have to start."""


def measure_cores(seconds: float = 0.4) -> float:
    """Count the cores of this machine by the work that they do together; at most as many as there are."""
    num_cores = len(os.sched_getaffinity(0))
    alone = _count_work(1, seconds)
    together = _count_work(num_cores, seconds)
    return round(min(float(num_cores), together / max(1.0, alone)), 1)


def _count_work(num_processes: int, seconds: float) -> float:
    begin = time.time() + _START_S
    command = [sys.executable, "-S", "-c", _PROGRAM, str(begin), str(seconds)]
    processes = [ChildProcess(command, pipe_output=True) for _ in range(num_processes)]
    try:
        return sum(_read_work(process) for process in processes)
    finally:
        for process in processes:
            process.kill()


def _read_work(process: ChildProcess) -> float:
    assert process.stdout is not None
    if not (text := process.stdout.read()):
        process.wait(timeout_s=5.0)
        raise InfraError(f"a process that measures the cores {process.describe_end()}")
    return float(text)
