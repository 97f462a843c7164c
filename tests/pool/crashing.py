"""Kills writers and readers of a pool at random, then audits that nothing was lost or served twice.

    python tests/pool/crashing.py PLACE FOLDER --kills 100

Writers play trajectories, groups of two. A writer notes a step in a side file only after `append`
returned, so the notes are what was accepted. After a kill a new process goes on where the pool says
the old one was. Readers consume groups as a trainer does: take, acknowledge for the next
checkpoint, publish the checkpoint (a file that holds all groups consumed so far, replaced at once).
After a kill a new process resumes from the published checkpoint. At the end what is left is consumed
and everything is compared: the notes with the pool, the checkpoints with each other.

With `--kill-server` it also kills a process of the PostgreSQL server now and then, which makes the
server drop every connection and recover.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepwell.core import Status, Step, Task
from stepwell.pool import Filter, Pool, open_pool

WRITERS, READERS = ("w0", "w1", "w2"), ("r0", "r1")
STEPS = 4
GROUP = 2
LONGEST_PAUSE_S = 0.04
LONGEST_WAIT_S = 0.5


def made_step(id: str, number: int) -> Step:
    """The only step that may ever stand under this number; its prompt continues the one before."""
    ids = [len(id) + 7 * n for n in range(30 + 10 * number)]
    return Step.from_tokens(ids, [number, number + 1], text=f"{id}:{number}")


def write(place: str, folder: Path, name: str, should_stop: Callable[[], bool]) -> None:
    """Play trajectories until told to stop; first go on with the one a killed process left."""
    notes = os.open(folder / f"{name}.notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with open_pool(place) as pool:
        while not should_stop():
            left = next(pool.find(Filter(tags=[name], is_open=True), limit=1), None)
            id = left.id if left is not None else f"{name}-{pool.count(Filter(tags=[name])):06}"
            index = int(id.rsplit("-", 1)[1])
            group = f"{name}-group-{index // GROUP}"
            task = Task("crash", {"writer": name})
            pool.begin(task, id=id, group=group, group_size=GROUP, tags=[name])
            for number in range(left.num_steps if left is not None else 0, STEPS):
                pool.append(id, number, [made_step(id, number)])
                os.write(notes, f"{id} {number}\n".encode())
            pool.reward(id, 1.0)
            pool.finish(id, Status.SUCCESS)
            os.write(notes, f"{id} finished\n".encode())


def find_checkpoint(folder: Path, name: str) -> tuple[int | None, list[str]]:
    file = folder / f"{name}.json"
    if not file.exists():
        return None, []
    number, groups = json.loads(file.read_text())
    return number, groups


def read(place: str, folder: Path, name: str, should_stop: Callable[[], bool]) -> None:
    """Consume as a trainer does, from the last published checkpoint on."""
    number, consumed = find_checkpoint(folder, name)
    with open_pool(place) as pool:
        pool.restore(name, number)
        while not should_stop():
            taken = pool.take(name, 3, wait_s=0.02)
            if not taken:
                continue
            for group in taken:
                check_group(group.group, group.trajectories)
            number = 0 if number is None else number + 1
            groups = [group.group for group in taken]
            pool.acknowledge(name, groups, number)
            consumed = consumed + groups
            part = folder / f"{name}.part"
            part.write_text(json.dumps([number, consumed]))
            part.replace(folder / f"{name}.json")


def check_group(name: str, trajectories: list) -> None:
    assert len(trajectories) == GROUP, f"{name} was served with {len(trajectories)} trajectories"
    for trajectory in trajectories:
        expected = [made_step(trajectory.id, number) for number in range(STEPS)]
        expected[-1].assign_reward({"task": 1.0})
        assert trajectory.steps == expected, f"{trajectory.id} was served with other steps"


def start(place: str, folder: Path, name: str) -> int:
    """A child process that writes or reads; it inherits what is imported, and nothing that is open."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        stop = folder / "stop"
        (write if name in WRITERS else read)(place, folder, name, stop.exists)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def server_process(place: str) -> int:
    """A process of the server that works for somebody else."""
    import psycopg

    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with psycopg.connect(place) as connection:
        return int(random.choice(connection.execute(query).fetchall())[0])


def retry_transient(work: Callable[[], Any]) -> Any:
    """The server may still be recovering from the last kill, and nobody connected yet."""
    for _ in range(200):
        try:
            return work()
        except Exception:
            time.sleep(0.05)
    return work()


def crash(place: str, folder: Path, num_kills: int, kill_server: bool) -> Counter[str]:
    """Start everybody, kill at random, let the rest end in peace; gives the number of kills of each kind."""
    open_pool(place).close()
    running = {name: start(place, folder, name) for name in (*WRITERS, *READERS)}
    try:
        return kill_at_random(place, folder, running, num_kills, kill_server)
    except BaseException:
        for pid in running.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise


def wait_for_progress(folder: Path, num_notes: int) -> None:
    """Let writers note something, so that a busy machine is not only killed while it starts up."""
    until, before = time.monotonic() + LONGEST_WAIT_S, num_bytes(folder)
    while num_bytes(folder) < before + num_notes * len("w0-000000 0\n") and time.monotonic() < until:
        time.sleep(0.002)


def num_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.notes"))


def kill_at_random(
    place: str, folder: Path, running: dict[str, int], num_kills: int, kill_server: bool
) -> Counter[str]:
    killed = Counter(writer_kills=0, reader_kills=0, server_kills=0)
    for count in range(num_kills):
        wait_for_progress(folder, random.randrange(5))
        time.sleep(random.uniform(0, LONGEST_PAUSE_S))
        name = random.choice(list(running))
        os.kill(running[name], signal.SIGKILL)
        _, status = os.waitpid(running[name], 0)
        assert os.WIFSIGNALED(status), f"{name} ended by itself before it could be killed"
        killed["writer_kills" if name in WRITERS else "reader_kills"] += 1
        if kill_server and count % (num_kills // 2) == num_kills // 4:
            os.kill(retry_transient(lambda: server_process(place)), signal.SIGKILL)
            killed["server_kills"] += 1
        running[name] = start(place, folder, name)
    time.sleep(0.5)
    (folder / "stop").touch()
    for name, pid in running.items():
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"{name} failed at the end"
    return killed


def audit(place: str, folder: Path) -> dict[str, int]:
    """Compare what was accepted with what is stored, and what was consumed with what was complete."""
    with open_pool(place) as pool:
        while pool.take("r0", 1):  # something is left; a reader that resumes gets this one back, too
            until = time.monotonic() + 0.3
            read(place, folder, "r0", lambda until=until: time.monotonic() > until)
        num_steps, lost_steps = audit_notes(pool, folder)
        assert not lost_steps, f"accepted and lost: {lost_steps}"
        consumed = Counter(group for name in READERS for group in find_checkpoint(folder, name)[1])
        twice = [group for group, count in consumed.items() if count > 1]
        assert not twice, f"served twice: {twice}"
        states = {entry.group: entry.state for entry in pool.find()}
        never = [group for group, state in states.items() if state in ("ready", "leased")]
        assert not never, f"complete but never consumed: {never}"
        complete = {group for group, state in states.items() if state == "consumed"}
        assert complete == set(consumed), "the pool and the checkpoints disagree"
    return {
        "steps": num_steps,
        "steps_lost": len(lost_steps),
        "groups": len(consumed),
        "groups_never_served": len(never),
        "groups_served_twice": len(twice),
    }


def audit_notes(pool: Pool, folder: Path) -> tuple[int, list[str]]:
    """How many steps were accepted, and which of them the pool does not have."""
    accepted = [
        line.split() for name in WRITERS for line in (folder / f"{name}.notes").read_text().splitlines()
    ]
    by_id: dict[str, set[str]] = {}
    for id, what in accepted:
        by_id.setdefault(id, set()).add(what)
    lost = []
    for id, whats in by_id.items():
        stored = pool.get(id)
        assert not ("finished" in whats and stored.is_open), f"{id} was finished, and is open"
        steps = dict(zip(stored.numbers, stored.trajectory.steps, strict=True))
        for what in whats - {"finished"}:
            number = int(what)
            if number not in steps:
                lost.append(f"step {number} of {id}")
                continue
            assert steps[number].action == made_step(id, number).action
            assert steps[number].state == made_step(id, number).state
    return sum(what != "finished" for _, what in accepted), lost


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("place")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--kill-server", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    args.folder.mkdir(parents=True, exist_ok=True)
    killed = crash(args.place, args.folder, args.kills, args.kill_server)
    print(json.dumps({"kills": args.kills, **killed, **audit(args.place, args.folder)}))


if __name__ == "__main__":
    main()
