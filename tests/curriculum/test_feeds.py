"""Tasks of a run: one list in shuffled epochs, or a stored list per phase that is made once."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core import ConfigError, Split, Task
from stepwell.curriculum import (
    DroppedTask,
    FixedFeed,
    PhasedFeed,
    PhaseFiles,
    PhaseRequest,
    PhaseResults,
    SourcedTask,
)
from stepwell.curriculum.evolver import TaskEvolver
from stepwell.curriculum.phases import take_fresh_tasks

SHARE = 0.2


def make_tasks(count: int, start: int = 0) -> list[Task]:
    """Distinct tasks of the training split."""
    drawn = (Task("lake", {"board": n}, seed=n) for n in range(start, start + 10 * count + 100))
    return [task for task in drawn if task.split(SHARE) is Split.TRAIN][:count]


TASKS = make_tasks(20)


class Harder:
    """Makes a task from every failed one, differently every time it is called."""

    def __init__(self) -> None:
        self.requests: list[PhaseRequest] = []

    def __call__(self, request: PhaseRequest) -> Iterable[SourcedTask]:
        self.requests.append(request)
        rng = random.Random()
        for parent in request.results.failed:
            for task in make_tasks(1, start=rng.randrange(1000, 10**9)):
                yield SourcedTask(task, (parent.id,))
        yield SourcedTask(request.fresh[0], generator="env")


def fail_first(phase: int, tasks: Sequence[Task]) -> PhaseResults:
    return PhaseResults(solved=tuple(tasks[1:]), failed=tuple(tasks[:1]))


def make_feed(
    folder: Path, generate: object = take_fresh_tasks, notes: list[str] | None = None
) -> PhasedFeed:
    return PhasedFeed(
        TASKS,
        PhaseFiles(folder),
        generate,  # type: ignore[arg-type]
        generator="tests:harder",
        tasks_per_update=2,
        updates_per_phase=3,
        seed=5,
        held_out_share=SHARE,
        read_results=fail_first,
        note=([] if notes is None else notes).append,
    )


@given(st.integers(1, 9), st.integers(1, 7), st.integers(0, 3))
def test_a_fixed_feed_goes_through_all_tasks_before_any_comes_again(
    num_tasks: int, per_update: int, seed: int
) -> None:
    feed = FixedFeed(TASKS[:num_tasks], per_update, seed)
    fed = [task.id for update in range(1, 8) for task in feed.list_tasks(update)]
    for start in range(0, len(fed) - num_tasks + 1, num_tasks):
        assert sorted(fed[start : start + num_tasks]) == sorted(task.id for task in TASKS[:num_tasks])
    order = np.random.default_rng([seed, 0, 7]).permutation(num_tasks)
    assert fed[:num_tasks] == [TASKS[i].id for i in order][: len(fed)]
    again = FixedFeed(TASKS[:num_tasks], per_update, seed)
    assert [task.id for task in again.list_tasks(5)] == fed[4 * per_update : 5 * per_update]
    assert feed.find_phase(3) is None and feed.state() == {}


def test_a_phase_is_made_once_and_a_resumed_run_has_the_very_same_tasks(tmp_path: Path) -> None:
    generate = Harder()
    feed = make_feed(tmp_path, generate)
    fed = {update: feed.list_tasks(update) for update in range(1, 10)}
    assert [feed.find_phase(update) for update in range(1, 10)] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert {t.id for u in (1, 2, 3) for t in fed[u]} == {task.id for task in TASKS[:6]}
    assert [request.phase for request in generate.requests] == [2, 3]
    assert generate.requests[0].results.failed == (TASKS[0],) and generate.requests[0].num_tasks == 6
    assert generate.requests[0].fresh == tuple(TASKS[6:12])
    again = make_feed(tmp_path, generate)
    again.restore(feed.state())
    assert {update: again.list_tasks(update) for update in range(9, 0, -1)} == fed
    assert len(generate.requests) == 2
    assert again.state() == feed.state()


def test_lineage_is_stored_with_every_task(tmp_path: Path) -> None:
    feed = make_feed(tmp_path, Harder())
    feed.list_tasks(1), feed.list_tasks(4)
    files = PhaseFiles(tmp_path)
    first, second = files.read_phase(1), files.read_phase(2)
    assert {(each.parents, each.generator) for each in first} == {((), "fresh")}
    assert [(each.parents, each.generator) for each in second] == [
        ((TASKS[0].id,), "tests:harder"),
        ((), "env"),
    ]
    assert {task.id for task in feed.list_tasks(5)} == {each.task.id for each in second}


def test_a_phase_with_few_tasks_plays_them_again(tmp_path: Path) -> None:
    feed = PhasedFeed(
        TASKS,
        PhaseFiles(tmp_path),
        take_fresh_tasks,
        generator="fresh",
        tasks_per_update=2,
        updates_per_phase=3,
        seed=5,
        held_out_share=SHARE,
        read_results=fail_first,
        tasks_per_phase=3,
    )
    fed = [task.id for update in (4, 5, 6) for task in feed.list_tasks(update)]
    assert sorted(fed) == sorted(2 * [task.id for task in TASKS[3:6]])


def test_fresh_tasks_are_the_next_of_the_list_and_begin_again_after_the_last(tmp_path: Path) -> None:
    feed = make_feed(tmp_path)
    phases = [{t.id for u in range(3 * p + 1, 3 * p + 4) for t in feed.list_tasks(u)} for p in range(4)]
    wanted = [TASKS[0:6], TASKS[6:12], TASKS[12:18], [*TASKS[18:20], *TASKS[0:4]]]
    assert phases == [{task.id for task in tasks} for tasks in wanted]


def test_held_out_and_repeated_tasks_are_left_out_and_counted(tmp_path: Path) -> None:
    held_out = next(
        task
        for task in (Task("lake", {"board": n}) for n in range(99))
        if task.split(SHARE) is not Split.TRAIN
    )
    notes: list[str] = []
    made = [SourcedTask(held_out), SourcedTask(TASKS[3]), SourcedTask(TASKS[3], parents=("x",))]
    feed = make_feed(tmp_path, lambda request: made, notes)
    assert {task.id for task in feed.list_tasks(4) + feed.list_tasks(5)} == {TASKS[3].id}
    assert notes[-1] == "phase 2: 1 tasks; 1 left out: of the held-out split; 1 left out: duplicate"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ([], "made no usable task for phase 2"),
        ([TASKS[0]], "needs SourcedTask of environment 'lake'"),
        ([SourcedTask(Task("other", {}))], "needs SourcedTask of environment 'lake'"),
    ],
)
def test_a_generator_that_makes_nothing_usable_is_refused(
    tmp_path: Path, made: list[SourcedTask], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_feed(tmp_path, lambda request: made).list_tasks(4)
    assert not PhaseFiles(tmp_path).has_phase(2)


def test_a_phase_without_usable_tasks_repeats_the_last_one_and_says_so(tmp_path: Path) -> None:
    held_out = [
        SourcedTask(task)
        for task in (Task("lake", {"board": n}) for n in range(99))
        if task.split(SHARE) is not Split.TRAIN
    ]
    notes: list[str] = []
    feed = make_feed(tmp_path, lambda request: held_out, notes)
    first = {task.id for update in (1, 2, 3) for task in feed.list_tasks(update)}
    assert {task.id for task in feed.list_tasks(4)} <= first
    assert notes[-1].endswith("phase 2 has those of the last one")
    again = make_feed(tmp_path, lambda request: held_out)
    assert again.list_tasks(4) == feed.list_tasks(4)


def test_after_a_phase_that_left_nothing_unsolved_tasks_of_the_environment_come_again(tmp_path: Path) -> None:
    notes: list[str] = []
    feed = PhasedFeed(
        TASKS[:6],  # all were played in phase 1
        PhaseFiles(tmp_path),
        TaskEvolver(lambda task, relation, rng: None),
        generator="evolve",
        tasks_per_update=2,
        updates_per_phase=3,
        seed=5,
        held_out_share=SHARE,
        read_results=lambda phase, tasks: PhaseResults(solved=tuple(tasks)),
        screen=lambda tasks: [],
        note=notes.append,
    )
    assert {task.id for update in (4, 5, 6) for task in feed.list_tasks(update)} == {t.id for t in TASKS[:6]}
    assert "phase 1 left no task unsolved: tasks of the environment again" in notes


def test_a_changed_or_missing_phase_is_noticed(tmp_path: Path) -> None:
    feed = make_feed(tmp_path)
    feed.list_tasks(4)
    state = feed.state()
    file = tmp_path / "phase-0002.jsonl"
    text = file.read_text()
    file.write_text(text.replace('"parents": []', '"parents": ["x"]'))
    with pytest.raises(ConfigError, match=r"phase 2 .* were changed"):
        make_feed(tmp_path).restore(state)
    file.write_text(text)
    make_feed(tmp_path).restore(state)
    file.unlink()
    with pytest.raises(ConfigError, match=r"phase 2 .* are missing"):
        make_feed(tmp_path).restore(state)


texts = st.text(max_size=8)


@given(
    st.lists(
        st.builds(
            SourcedTask,
            st.builds(Task, texts.filter(bool), st.dictionaries(texts, texts | st.integers()), texts),
            st.lists(texts, max_size=3).map(tuple),
            texts,
            texts,
            st.none() | st.floats(0, 1),
            st.none() | st.integers(0, 9),
        ),
        max_size=5,
    )
)
def test_stored_tasks_come_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, fed: list[SourcedTask]
) -> None:
    files = PhaseFiles(tmp_path_factory.mktemp("phases"))
    dropped = [DroppedTask(each, "infeasible") for each in fed[:2]]
    files.write_phase(1, fed, dropped)
    assert files.read_phase(1) == fed and files.read_dropped(1) == dropped
