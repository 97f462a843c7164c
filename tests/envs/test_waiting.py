"""Environments that wait: stepped at once, and otherwise as if they had taken turns."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.envs.test_codecs import values_of
from tests.envs.waiting_envs import (
    IN_THREADS,
    IN_TURN,
    ON_LOOP,
    WAITING,
    InThreads,
    InTurn,
    Meeting,
    OnLoop,
)
from tests.properties import examples

from stepwell.core import ConfigError, EnvError, InputError, Split, Task
from stepwell.core.user_objects import name_object
from stepwell.envs import AsyncEnv, EnvBatch, Turn, draw_tasks, find_env_type
from stepwell.envs.async_batch import AsyncEnvBatch
from stepwell.envs.check import check_env
from stepwell.envs.env_loop import run_on_env_loop
from stepwell.envs.registry import LANGUAGE_ENVS
from stepwell.envs.waiting import MAX_THREADS

NAMES = ("go", "raise", "exit")


def walks(*seeds: int) -> list[Task]:
    return [InTurn.make_task(None, seed) for seed in seeds]


def compare(turns: list[Turn], name: str) -> list[Any]:
    """Turns as plain values; errors without the name of the environment."""
    return [(*values_of(turn)[:5], turn.state, str(turn.error).removeprefix(name)) for turn in turns]


def list_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("stepwell-")]


def test_environments_that_do_not_wait_get_no_thread() -> None:
    before = list_threads()
    with EnvBatch(IN_TURN, {}, 8) as batch:
        batch.reset(walks(*range(8)))
        assert not batch.waits and list_threads() == before


@pytest.mark.parametrize("name", WAITING)
def test_all_places_of_a_batch_wait_at_once(name: str) -> None:
    Meeting.expect(6)
    with EnvBatch(name, {}, 8) as batch:
        batch.reset(walks(*range(8)))
        turns = batch.step([7, 5, 3, 1, 2, 0], [("meet",)] * 6)
        assert [turn.error for turn in turns] == [None] * 6


@pytest.mark.parametrize("name", WAITING)
def test_turns_come_in_the_order_of_the_indices(name: str) -> None:
    Meeting.expect(2)
    order = [3, 0, 2, 1]
    with EnvBatch(IN_TURN, {}, 4) as here, EnvBatch(name, {}, 4) as batch:
        found = [envs.reset(walks(*order), order, seeds=order, with_state=True) for envs in (here, batch)]
        assert compare(found[0], IN_TURN) == compare(found[1], name)
        actions = [("go",), ("meet", "go"), ("go", "go"), ("meet",)]  # those that wait end last
        found = [here.step(order, actions, with_state=True), batch.step(order, actions, with_state=True)]
        assert compare(found[0], IN_TURN) == compare(found[1], name)


@pytest.mark.parametrize("name", WAITING)
def test_an_environment_that_raises_costs_its_own_turn_only(name: str) -> None:
    with EnvBatch(name, {}, 6) as batch:
        begun = batch.reset(walks(0, 13, 2, 3, 4, 5))
        assert "environment 1) raised RuntimeError: no such walk" in str(begun[1].error)
        assert [turn.error is None for turn in begun] == [True, False, True, True, True, True]
        actions: list[Any] = [("go",), ("go",), ("raise",), ("exit",), ("cancel",), ("interrupt",)]
        turns = batch.step(range(6), actions)
        words = [
            "None",
            "call reset before step",
            "RuntimeError: the way is closed",
            "SystemExit: 3",
            "Cancel",
            "KeyboardInterrupt: not by a person",
        ]
        assert all(word in str(turn.error) for word, turn in zip(words, turns, strict=True))
        assert isinstance(turns[2].error, EnvError) and isinstance(turns[2].error.__cause__, RuntimeError)
        again = batch.reset(walks(13, 2, 3, 4, 5), [0, 2, 3, 4, 5])
        assert [turn.error is None for turn in again] == [False, True, True, True, True]
        assert [turn.error for turn in batch.step([2, 3, 4, 5], [("go",)] * 4)] == [None] * 4


@pytest.mark.parametrize("name", WAITING)
def test_a_killed_one_fails_alone_and_begins_anew(name: str) -> None:
    with EnvBatch(name, {}, 3) as batch:
        batch.reset(walks(0, 1, 2))
        assert [turn.error for turn in batch.step(range(3), [("talk",)] * 3)] == [None] * 3
        child: Any = batch.envs[1].child  # type: ignore[attr-defined]
        batch.ask(1, lambda env: child.kill())
        turns = batch.step(range(3), [("talk", "talk")] * 3)
        assert [turn.error is None for turn in turns] == [True, False, True]
        assert "its child has died" in str(turns[1].error)
        assert batch.reset(walks(1), [1])[0].error is None
        assert [turn.error for turn in batch.step(range(3), [("talk",)] * 3)] == [None] * 3


def test_an_environment_never_leaves_its_thread() -> None:
    size = MAX_THREADS + 3
    with EnvBatch(IN_THREADS, {}, size) as batch:
        batch.reset(walks(*range(20, 20 + size)), with_state=True)
        for _ in range(2):
            batch.step(range(size), [("go",)] * size, with_state=True)
        batch.ask(4, lambda env: env.state())
        envs = [env for env in batch.envs if isinstance(env, InThreads)]
    assert all(len(set(env.threads)) == 1 for env in envs)
    assert [len(env.threads) for env in envs] == [8 + (number == 4) for number in range(size)]
    owners = [env.threads[0] for env in envs]
    assert threading.get_ident() not in owners
    assert len(set(owners)) == MAX_THREADS and owners[MAX_THREADS:] == owners[:3]


def test_closing_ends_the_threads_and_is_allowed_twice() -> None:
    before = set(list_threads())
    batch = EnvBatch(IN_THREADS, {}, 3)
    started = [thread for thread in list_threads() if thread not in before]
    assert len(started) == 3
    batch.close()
    batch.close()
    for thread in started:
        thread.join(60)
    assert not any(thread.is_alive() for thread in started)
    with pytest.raises(EnvError, match="closed"):
        batch.reset(walks(0))


def test_a_batch_that_cannot_be_made_says_why_and_leaves_no_thread() -> None:
    before = set(list_threads())
    with pytest.raises(ConfigError, match="is not an option"):
        EnvBatch(IN_THREADS, {"colour": "red"}, 3)
    for thread in set(list_threads()) - before:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("name", WAITING)
def test_progress_is_told_once_per_environment_in_the_callers_thread(name: str) -> None:
    told: list[int] = []
    with EnvBatch(name, {}, 4) as batch:
        batch.reset(walks(0, 1, 2, 3), progress=lambda: told.append(threading.get_ident()))
        batch.step([1, 2], [("go",), ("raise",)], progress=lambda: told.append(threading.get_ident()))
    assert told == [threading.get_ident()] * 6


@pytest.mark.parametrize("name", WAITING)
def test_mistakes_about_the_batch_are_raised_before_anything_is_done(name: str) -> None:
    with EnvBatch(name, {}, 2) as batch:
        for call, words in (
            (lambda: batch.step([0], []), "0 action lists"),
            (lambda: batch.step([2], [("go",)]), "numbered 0..1"),
            (lambda: batch.step([0, 0], [("go",)] * 2), "one turn at a time"),
            (lambda: batch.reset(walks(0, 1), seeds=[1]), "1 seeds for 2 tasks"),
        ):
            with pytest.raises(InputError, match=words):
                call()


def test_a_blocking_call_on_the_loop_is_refused() -> None:
    env = OnLoop()

    async def call_itself() -> None:
        env.reset(seed=0)

    with pytest.raises(InputError, match="await its coroutine"):
        run_on_env_loop(call_itself())
    assert env.reset(seed=0)[0] == env.observe()


async def test_awaited_batches_overlap_and_a_cancelled_call_is_played_to_its_end() -> None:
    with EnvBatch(ON_LOOP, {}, 2) as one, EnvBatch(ON_LOOP, {}, 2) as two, EnvBatch(IN_TURN, {}, 1) as three:
        Meeting.expect(3)
        places = [AsyncEnvBatch(one), AsyncEnvBatch(two)]
        for envs in places:
            await envs.reset(walks(0, 1), [0, 1])
        waiting = [asyncio.create_task(envs.step([0], [("meet",)])) for envs in places]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.gather(*waiting[:1], return_exceptions=True)
        after = asyncio.create_task(places[0].step([0], [("go",)]))  # in order, behind the cancelled one
        (turn,) = await places[0].step([1], [("meet",)])
        assert turn.error is None and (await waiting[1])[0].error is None
        with ThreadPoolExecutor(1) as thread:
            alone = AsyncEnvBatch(three, thread)
            await alone.reset(walks(0), [0])
            ((twice,),) = [await alone.step([0], [("go", "go")])]
        assert (await after)[0].observation == twice.observation


play = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.sampled_from(NAMES), max_size=3)),
    max_size=4,
    unique_by=lambda t: t[0],
)


@cache
def open_batch(name: str) -> EnvBatch:
    return EnvBatch(name, {}, 4)


@given(st.lists(st.one_of(play, st.integers(0, 20)), max_size=12), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_any_play_is_the_same_in_turn_in_threads_and_on_the_loop(plays: list[Any], with_state: bool) -> None:
    found = {}
    for name in (IN_TURN, *WAITING):
        batch = open_batch(name)
        turns = [batch.reset(walks(0, 1, 2, 13), seeds=[5, 6, 7, 8], with_state=with_state)]
        for one in plays:
            if isinstance(one, int):
                turns.append(batch.reset(walks(one), [one % 4], [one], with_state=with_state))
            else:
                places, actions = [place for place, _ in one], [acts for _, acts in one]
                turns.append(batch.step(places, actions, with_state=with_state))
        found[name] = [compare(part, name) for part in turns]
    assert found[IN_TURN] == found[IN_THREADS] == found[ON_LOOP]


def wait_in_thread(kind: type) -> str:
    """The name of a kind of environment that says it waits."""
    return str(name_object(type(f"Waiting{kind.__name__}", (kind,), {"waits": True})))


def wait_on_loop(kind: Any) -> str:
    """The name of a kind of environment whose functions are awaited."""

    async def begin_async(self: Any, task: Task, seed: int) -> None:
        await asyncio.sleep(0)
        kind.begin(self, task, seed)

    async def act_async(self: Any, action: str) -> Any:
        await asyncio.sleep(0)
        return kind.act(self, action)

    async def observe_async(self: Any) -> Any:
        return kind.observe(self)

    members = {"begin_async": begin_async, "act_async": act_async, "observe_async": observe_async}
    return str(name_object(type(f"Awaited{kind.__name__}", (AsyncEnv, kind), members)))


def test_the_checker_plays_an_awaited_environment_like_any_other() -> None:
    report = check_env(wait_on_loop(find_env_type("frozenlake")))
    assert report.ok, str(report)


SLOW = {"svg", "multihop_qa", "paper_search"}  # they build their data first


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in LANGUAGE_ENVS]
)
def test_every_built_in_environment_plays_the_same_when_it_waits(name: str) -> None:
    kind = find_env_type(name)
    ways = [name, wait_in_thread(kind)]
    if name in ("courier", "frozenlake", "sokoban", "navigation"):  # others call their own blocking functions
        ways.append(wait_on_loop(kind))
    tasks = draw_tasks(name, {}, Split.TRAIN, 3, seed=0)
    batches = [EnvBatch(way, {}, 3) for way in ways]
    turns = [batch.reset(tasks, with_state=True) for batch in batches]
    for number in range(4):
        values = [compare(part, way) for part, way in zip(turns, ways, strict=True)]
        assert values[1:] == values[:1] * (len(ways) - 1)
        actions = [draw_turn(batches[0], place, number) for place in range(3)]
        turns = [batch.step(range(3), actions, with_state=True) for batch in batches]
    for batch in batches:
        batch.close()


def draw_turn(batch: EnvBatch, place: int, number: int) -> list[str]:
    env, space = batch.envs[place], batch.envs[place].description.actions
    plan = [] if env._is_over else env.oracle()
    if number % 2 and not (space.is_text and not space.tools):
        return [env.random_action(random.Random(place + 10 * number))]
    return list(space.first_turn(plan))
