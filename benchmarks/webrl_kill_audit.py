"""What two runs of `webrl_kills.py` must have in common, and what became of every task and episode of one."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from kills import list_differences

from stepwell.curriculum import PhaseFiles
from stepwell.monitors.phases import read_phases
from stepwell.pool import Channel, Filter, open_pool
from stepwell.pool.credit_reading import list_credit_updates, read_update_credit
from stepwell.pool.credit_records import encode_record
from stepwell.pool.file_format import to_document, to_json
from stepwell.runs.outcome_model.model import TRAINING  # made from the ids of episodes, which are random

RUN, MODEL = "run", "outcome-model"
UPDATES_PER_PHASE, NUM_PHASES, EPISODES = 2, 4, 16
UPDATES = range(1, UPDATES_PER_PHASE * NUM_PHASES + 1)


def read_episodes(folder: Path) -> list[dict[str, Any]]:
    """The pool in order of creation, without what depends on the clock; ids are those of the groups."""
    found = []
    with closing(open_pool(folder / "pool")) as pool:
        for entry in pool.find(Filter()):
            document = to_document(pool.get(entry.id))
            for name in ("id", "created_s", "finished_s", "timings"):
                del document[name]
            for judged in (*document["outcomes"], *document["rewards"]):
                del judged["created_s"]
            found.append(json.loads(to_json({**document, "state": entry.state})))
    return found


def name_episodes(folder: Path) -> dict[str, str]:
    """The group of each episode by its id, which is random."""
    with closing(open_pool(folder / "pool")) as pool:
        return {entry.id: entry.group for entry in pool.find(Filter())}


def read_credit(folder: Path) -> dict[int, dict[str, bytes]]:
    """What each update made of which episodes, by their groups: its own, and those it replayed."""
    names = name_episodes(folder)
    return {
        update: {names[each.trajectory]: encode_record(each) for each in read_update_credit(folder, update)}
        for update in list_credit_updates(folder)
    }


def read_scores(folder: Path) -> dict[str, list[Any]]:
    """The perplexities of the replay buffer by file, ids replaced by groups."""
    names = name_episodes(folder)
    return {
        path.name: [(names[line["id"]], line["perplexities"]) for line in map(json.loads, path.open())]
        for path in sorted((folder / "replay").glob("*.jsonl"))
    }


def read_bytes(folder: Path, without: str = "") -> dict[str, bytes]:
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and path.name != without)
    return {path.name: path.read_bytes() for path in files}


def compare(one: Path, other: Path) -> dict[str, list[str]]:
    """What differs, by kind; every list should be empty."""
    runs = one / RUN, other / RUN
    pairs: dict[str, tuple[Any, Any]] = {
        "outcome model": (read_bytes(one / MODEL, TRAINING), read_bytes(other / MODEL, TRAINING)),
        "tasks and lineage": (read_bytes(runs[0] / "tasks"), read_bytes(runs[1] / "tasks")),
        "phases": (dict(enumerate(read_phases(runs[0]))), dict(enumerate(read_phases(runs[1])))),
        "episodes and outcomes": tuple(dict(enumerate(read_episodes(run))) for run in runs),  # type: ignore[dict-item]
        "replay scores": (read_scores(runs[0]), read_scores(runs[1])),
        "learnt and replayed episodes": (read_credit(runs[0]), read_credit(runs[1])),
    }
    found = {"weights, optimizer, record": list_differences(*runs)}
    for kind, (a, b) in pairs.items():
        found[kind] = [str(key) for key in sorted({*a, *b}, key=str) if a.get(key) != b.get(key)]
    return found


def audit(folder: Path) -> dict[str, Any]:
    """Count what became of every task and episode; `faults` are those lost or used twice."""
    faults: list[str] = []
    planned = [
        f"{RUN}/{u}-{i}" for u in range(1, UPDATES_PER_PHASE * NUM_PHASES + 1) for i in range(EPISODES)
    ]
    episodes = [each for each in read_episodes(folder) if each["channel"] == Channel.TRAIN]
    counts = Counter(each["group"] for each in episodes)
    faults += [f"episode {name} is stored {counts[name]} times" for name in planned if counts[name] != 1]
    faults += [f"episode {name} was never asked for" for name in counts if name not in set(planned)]
    with closing(sqlite3.connect(folder / "pool" / "pool.db")) as pool:
        for name, state, update in pool.execute("SELECT name, state, checkpoint FROM groups"):
            if (state, f"{RUN}/{update}-") != ("consumed", name[: name.find("-") + 1]):
                faults.append(f"episode {name} is {state} in checkpoint {update}")
    credit, num_replayed = read_credit(folder), 0
    for update in UPDATES:
        own = {name for name in planned if name.startswith(f"{RUN}/{update}-")}
        learnt = set(credit.get(update, {}))
        replayed = learnt - own
        num_replayed += len(replayed)
        faults += [f"update {update} did not learn from {name}" for name in sorted(own - learnt)]
        faults += [
            f"update {update} replayed {name}"
            for name in sorted(replayed)
            if int(name.removeprefix(f"{RUN}/").split("-")[0]) >= update
        ]
    return {"episodes": len(episodes), "replayed": num_replayed, **audit_tasks(folder, episodes, faults)}


def audit_tasks(folder: Path, episodes: Sequence[dict[str, Any]], faults: list[str]) -> dict[str, Any]:
    files, seen, num_evolved = PhaseFiles(folder / "tasks"), set[str](), []
    for phase in range(1, NUM_PHASES + 1):
        tasks = files.read_phase(phase)
        ids = [each.task.id for each in tasks]
        num_evolved.append(sum(bool(each.parents) for each in tasks))
        faults += [f"task {id} of phase {phase} was there before" for id in ids if id in seen]
        faults += [f"task {id} is twice in phase {phase}" for id, count in Counter(ids).items() if count > 1]
        seen |= set(ids)
        played = Counter(each["task"]["id"] for each in episodes if each["source"]["phase"] == phase)
        share = UPDATES_PER_PHASE * EPISODES / len(ids)
        faults += [
            f"task {id} of phase {phase} was played {played[id]} times, not {share:g}"
            for id in {*ids, *played}
            if abs(played[id] - share) >= 1 or id not in ids
        ]
    outcomes = [each["outcomes"] for each in episodes]
    first = UPDATES_PER_PHASE * EPISODES
    faults += [
        f"episode {each['group']} was judged {len(each['outcomes'])} times"
        for number, each in enumerate(episodes)
        if len(each["outcomes"]) != (number >= first)
    ]
    return {
        "tasks": len(seen),
        "evolved": num_evolved,
        "judged": sum(map(bool, outcomes)),
        "successes": sum(each["status"] == "success" for each in episodes),
        "faults": faults,
    }
