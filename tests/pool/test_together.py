"""Many threads and processes at once: commits are shared, groups are not."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.pool.made import TASK, dialogue, fill, step, trajectory

from stepwell.core import InputError, Status
from stepwell.pool import Filter, Pool, open_pool
from stepwell.pool.commits import Committer


def in_threads(work: Callable[[int], object], num: int = 8) -> list[object]:
    with ThreadPoolExecutor(num) as threads:
        return list(threads.map(work, range(num)))


def test_threads_append_to_their_own_trajectories(pool: Pool) -> None:
    turns = [dialogue(5, seed=index) for index in range(8)]

    def play(index: int) -> None:
        id = pool.begin(TASK, id=f"t{index}", group="g", group_size=8)
        for number, each in enumerate(turns[index]):
            pool.append(id, number, [each])
        pool.finish(id, Status.SUCCESS)

    in_threads(play)
    (taken,) = pool.take("me", 2)
    assert {t.id: t.steps for t in taken.trajectories} == {f"t{n}": turns[n] for n in range(8)}


def test_threads_append_to_one_trajectory(pool: Pool) -> None:
    turns = dialogue(16)
    pool.begin(TASK, id="a")
    in_threads(lambda index: [pool.append("a", n, [turns[n]]) for n in (index, index + 8)])
    pool.finish("a", Status.SUCCESS)
    assert pool.get("a").trajectory.steps == turns


def test_each_group_goes_to_one_of_many_consumers(place: str) -> None:
    with open_pool(place) as producer:
        for index in range(30):
            fill(producer, f"g{index}")

    def consume(index: int) -> list[str]:
        found: list[str] = []
        with open_pool(place) as pool:
            while taken := pool.take(f"c{index}", 2):
                found += [group.group for group in taken]
        return found

    counts = Counter(name for names in in_threads(consume, 4) for name in names)  # type: ignore[attr-defined]
    assert counts == {f"g{index}": 1 for index in range(30)}


def test_a_trajectory_is_finished_once_by_whoever_comes_first(place: str) -> None:
    with open_pool(place) as pool, open_pool(place) as other:
        for index in range(10):
            pool.begin(TASK, id=f"t{index}", group=f"g{index}", group_size=2)

        def finish(which: int) -> None:
            for index in range(10):
                (pool, other)[which].finish(f"t{index}", Status.SUCCESS)

        in_threads(finish, 2)
        assert pool.stats().channels[pool.get("t0").channel].groups == {"filling": 10}


def test_a_late_append_is_refused_or_part_of_the_trajectory_but_never_lost(place: str) -> None:
    with open_pool(place) as writer, open_pool(place) as finisher:
        for round in range(10):
            id = writer.begin(TASK, id=f"t{round}")
            barrier = threading.Barrier(2)
            accepted: list[int] = []

            def write(id: str = id, barrier: threading.Barrier = barrier, seen: list[int] = accepted) -> None:
                barrier.wait()
                try:
                    for number in range(5):
                        writer.append(id, number, [step(number)])
                        seen.append(number)
                except InputError as error:
                    assert "is too late" in str(error)

            def finish(id: str = id, barrier: threading.Barrier = barrier) -> None:
                barrier.wait()
                finisher.finish(id, Status.SUCCESS)

            in_threads(lambda index, jobs=(write, finish): jobs[index](), 2)
            assert finisher.get(id).numbers == tuple(accepted)
            assert next(finisher.find(Filter(ids=[id]))).num_steps == len(accepted)


@pytest.mark.slow
def test_processes_write_at_the_same_time(place: str) -> None:
    code = (
        "import sys\n"
        "from stepwell.core import Status, Step, Task\n"
        "from stepwell.pool import open_pool\n"
        "place, name = sys.argv[1:]\n"
        "with open_pool(place) as pool:\n"
        "    for index in range(20):\n"
        "        id = pool.begin(Task('x', {}), id=f'{name}-{index}', group=f'g{index}', group_size=2)\n"
        "        pool.append(id, 0, [Step.from_tokens([1, 2], [index])])\n"
        "        pool.finish(id, Status.SUCCESS)\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", code, place, f"p{n}"]) for n in range(2)]
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    with open_pool(place) as pool:
        taken = pool.take("me", 50)
        assert sorted(group.group for group in taken) == sorted(f"g{index}" for index in range(20))
        for group in taken:
            assert {t.id.split("-")[0] for t in group.trajectories} == {"p0", "p1"}


def test_waiting_threads_share_a_commit_and_a_failing_one_costs_no_other(pool: Pool) -> None:
    committer: Committer = pool._db._committer
    pool.begin(TASK, id="a")
    entered, release = threading.Event(), threading.Event()

    def block(connection: object) -> None:
        entered.set()
        release.wait(20)

    blocker = threading.Thread(target=pool._db.write, args=(block,))
    blocker.start()
    entered.wait(20)
    errors: list[str] = []

    def append(index: int) -> None:
        try:
            pool.append("a" if index else "nobody", index, [step(index)])
        except InputError as error:
            errors.append(str(error))

    before = committer.num_commits
    threads = [threading.Thread(target=append, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    while len(committer._waiting) < 6:
        time.sleep(0.001)
    release.set()
    for thread in (*threads, blocker):
        thread.join()
    assert errors == ["trajectory 'nobody' is not in the pool; begin it first"]
    assert pool.get("a").numbers == (1, 2, 3, 4, 5)
    assert committer.num_commits - before <= 7  # the blocker's, then each alone as one of them failed
    before = committer.num_commits
    entered.clear(), release.clear()
    blocker = threading.Thread(target=pool._db.write, args=(block,))
    blocker.start()
    entered.wait(20)
    threads = [threading.Thread(target=append, args=(index,)) for index in range(6, 12)]
    for thread in threads:
        thread.start()
    while len(committer._waiting) < 6:
        time.sleep(0.001)
    release.set()
    for thread in (*threads, blocker):
        thread.join()
    assert committer.num_commits - before == 2  # the blocker's, and one for all six


def test_an_import_waits_for_nobody_and_readers_see_whole_trajectories(place: str, tmp_path: Path) -> None:
    with open_pool(tmp_path / "source.db") as source:
        source.add([trajectory(f"t{n}", dialogue(4, seed=n)) for n in range(130)])
        source.export(tmp_path / "x.jsonl")
    with open_pool(place) as pool, open_pool(place) as reader:
        running = threading.Thread(target=pool.import_, args=(tmp_path / "x.jsonl",))
        running.start()
        while running.is_alive():
            for found in reader.trajectories():
                assert len(found.steps) == 4
        running.join()
        assert reader.count() == 130


def test_a_write_is_quick_unless_someone_else_writes_or_the_disk_is_waited_for(tmp_path: Path) -> None:
    with open_pool(tmp_path / "pool.db") as pool, open_pool(tmp_path / "pool.db") as other:
        assert pool.is_quick() and other.is_quick()

        def meanwhile(_: object) -> tuple[bool, bool]:
            return pool.is_quick(), other.is_quick()

        assert pool._db.write(meanwhile) == (False, False)
        assert pool.is_quick() and other.is_quick()
    with open_pool(tmp_path / "slow.db", durable="power") as careful:
        assert not careful.is_quick()
