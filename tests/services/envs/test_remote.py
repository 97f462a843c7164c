"""A remote environment equals the local one: the same tasks, turns, states and errors, bit for bit."""

from __future__ import annotations

import copy
import gc
import random
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from stepwell.core import ConfigError, EnvError, InputError
from stepwell.envs import make_env
from stepwell.envs.batch import EnvBatch
from stepwell.envs.check import check_env
from stepwell.envs.registry import find_env_type
from stepwell.envs.remote import wire
from stepwell.envs.remote.servers import Server


def episode(env: Any, task: Any, seed: int) -> list[Any]:
    """Random turns with everything that can be asked after each."""
    rng = random.Random(seed)
    first, info = env.reset(seed=seed, options={"task": task})
    told = [(first, info, env.state(), env.render().tobytes(), env.oracle())]
    names, most = env.description.actions.names, env.description.actions.max_per_turn
    while True:
        turn = env.step([rng.choice(names) for _ in range(rng.randint(0, most))])
        told.append((*turn, env.state(), env.render().tobytes()))
        if turn[2] or turn[3]:
            return told


@pytest.mark.parametrize("scheme", ["http", "ws"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("frozenlake", {}),
        ("frozenlake", {"observation": "image", "is_slippery": True, "size": 5}),
        ("sokoban", {"observation": "both"}),
    ],
)
def test_a_remote_environment_equals_the_local_one(
    url: str, scheme: str, name: str, options: dict[str, Any]
) -> None:
    local = make_env(name, options)
    remote = make_env(f"remote:{url.replace('http', scheme)}#{name}", options)
    assert remote.description == local.description
    assert remote.options.model_dump() == local.options.model_dump(mode="json")
    assert remote.is_deterministic == local.is_deterministic and remote.name == local.name
    for seed in range(3):
        task = local.make_task(local.options, seed)
        assert remote.make_task(remote.options, seed) == task
        assert episode(remote, task, seed) == episode(local, task, seed)
    remote.close()


def test_a_remote_robot_environment_equals_the_local_one(url: str) -> None:
    pytest.importorskip("gymnasium_robotics")
    options = {"max_actions": 6}
    local, remote = make_env("fetch", options), make_env(f"remote:{url}#fetch", options)
    assert remote.description == local.description
    task = local.make_task(local.options, 3)
    assert remote.make_task(remote.options, 3) == task
    shown = [env.reset(options={"task": task})[0] for env in (remote, local)]
    assert shown[0] == shown[1]
    for _ in range(3):
        action = local.oracle()
        assert remote.oracle().tobytes() == action.tobytes()
        chunk = np.stack([action, -action])
        assert remote.step(chunk) == local.step(chunk)
        assert remote.state() == local.state() and remote.facts() == local.facts()
    local.close()
    remote.close()


def test_a_remote_environment_renders_the_same_image(url: str) -> None:
    pytest.importorskip("mujoco")
    options = {"task": "drawer", "observation": "both", "image_size": 64}
    local, remote = make_env("primitive_skill", options), make_env(f"remote:{url}#primitive_skill", options)
    assert remote.reset(seed=2) == local.reset(seed=2)
    plan = local.oracle()
    assert remote.oracle() == plan
    for text in plan:
        assert remote.step((text,)) == local.step((text,))
    assert remote.state() == local.state()
    remote.close()


def test_a_remote_environment_keeps_the_contract(url: str) -> None:
    report = check_env(f"remote:{url}#frozenlake", {}, num_tasks=2)
    assert report.ok, str(report)


def test_a_remote_environment_works_in_a_batch(url: str) -> None:
    local, remote = EnvBatch("frozenlake", {}, 3), EnvBatch(f"remote:{url}#frozenlake", {}, 3)
    tasks = [local.envs[0].make_task(local.envs[0].options, seed) for seed in range(3)]
    assert remote.reset(tasks, with_state=True) == local.reset(tasks, with_state=True)
    actions = [("Up",), ("Left", "Down"), ()]
    assert remote.step([0, 1, 2], actions, with_state=True) == local.step([0, 1, 2], actions, with_state=True)
    remote.close()


def test_a_copy_is_independent(url: str) -> None:
    env = make_env(f"remote:{url}#frozenlake")
    env.reset(seed=1)
    env.step(("Up",))
    ahead = copy.deepcopy(env)
    assert ahead.state() == env.state()
    before = env.state()
    ahead.step(ahead.oracle()[:3])
    assert env.state() == before != ahead.state()
    ahead.close()
    env.close()


def test_copies_that_are_dropped_leave_no_sessions_behind(service: Callable[..., str]) -> None:
    url = service(max_sessions=3)
    env = make_env(f"remote:{url}#frozenlake", {"max_turns": 20})
    env.reset(seed=1)
    for _ in range(8):
        copy.deepcopy(env).step(())
        gc.collect()
    assert httpx.get(f"{url}/envs").json()["num_sessions"] == 2  # this one, and the last copy
    env.close()


def test_mistakes_keep_their_type_and_do_not_change_the_episode(url: str) -> None:
    env = make_env(f"remote:{url}#frozenlake")
    first, _ = env.reset(seed=0)
    with pytest.raises(InputError, match=r"unknown action in .*Sideways.*Up, Down, Left, Right"):
        env.step(("Sideways",))
    assert env.observe() == first
    with pytest.raises(InputError, match="belongs to 'other'"):
        env.reset(options={"task": wire.unpack_tasks({"tasks": [["other", {}, "", 0, []]]})[0]})
    with pytest.raises(ConfigError, match="sizze is not an option of frozenlake; did you mean 'size'"):
        make_env(f"remote:{url}#frozenlake", {"sizze": 5})
    with pytest.raises(ConfigError, match="'chess' is not hosted here; available: courier, frozenlake"):
        make_env(f"remote:{url}#chess")
    with pytest.raises(ConfigError, match=r"write remote:URL\[,URL\.\.\.\]#NAME"):
        find_env_type("remote:http://127.0.0.1:1")
    env.close()


def test_a_turn_sent_twice_is_played_once(url: str) -> None:
    server = Server(url)
    made = server.call("create", {"env": "frozenlake", "options": {}, "count": 2}).header["sessions"]
    server.call("reset", {"sessions": made, "seeds": [5, 6]})
    header, _ = wire.pack_actions([("Up",), ("Down",)])
    once = server.call("step", {**header, "sessions": made, "turns": [1, 1]})
    again = server.call("step", {**header, "sessions": made, "turns": [1, 1]})
    assert again.header == once.header
    late = server.call("step", {**header, "sessions": made, "turns": [3, 2]})
    turns = wire.unpack_turns(late.header, late.arrays)
    assert isinstance(turns[0].error, EnvError) and "at turn 1" in str(turns[0].error)
    assert turns[1].error is None  # the other one was not disturbed
    assert server.call("close", {"sessions": made}).header == {"count": 2}


def test_a_turn_of_text_is_short_for_callers_that_ask_and_as_before_for_others(url: str) -> None:
    server = Server(url)
    asked = {"env": "frozenlake", "options": {}, "count": 2}
    made = server.call("create", asked).header["sessions"]
    server.call("reset", {"sessions": made, "seeds": [5, 5]})
    header, _ = wire.pack_actions([("Up",)])
    short = server.call("step", {**header, "sessions": made[:1], "with_state": True, "plain": True})
    long = server.call("step", {**header, "sessions": made[1:], "with_state": True})
    (turn,) = wire.unpack_turns(long.header, long.arrays)
    assert (short.op, long.op) == ("turn", "turns")
    assert wire.unpack_plain_turn(short.header) == turn and turn.state
    late = server.call("step", {**header, "sessions": made[:1], "turns": [7], "plain": True})
    assert isinstance(wire.unpack_turns(late.header, late.arrays)[0].error, EnvError)
    server.call("close", {"sessions": made})


@pytest.mark.parametrize("observation", ["text", "image"])
def test_a_turn_asked_for_in_few_values_is_that_of_a_step(url: str, observation: str) -> None:
    server = Server(url)
    opened = server.call(
        "create", {"env": "frozenlake", "options": {"observation": observation}, "count": 2}
    ).header
    one, other = opened["sessions"]
    assert opened["takes_turns"] is True
    server.call("reset", {"sessions": [one, other], "seeds": [5, 5]})
    header, _ = wire.pack_actions([("Up",)])
    step = {**header, "sessions": [one], "turns": [1], "with_state": True, "plain": True}
    stepped = server.call("step", step)
    for _ in range(2):  # the second time it is the reply to the first that is given again
        turned = server.send_frame(wire.write_turn_call(other, 1, ["Up"], True))
        assert (turned.op, turned.header) == (stepped.op, stepped.header)
        assert [a.tobytes() for a in turned.arrays] == [a.tobytes() for a in stepped.arrays]
    late = server.send_frame(wire.write_turn_call(other, 7, ["Up"], False))
    assert "at turn 1" in str(wire.unpack_turns(late.header, late.arrays)[0].error)
    server.call("close", {"sessions": [one, other]})


@given(st.text(), st.integers(0, 2**70), st.lists(st.text()), st.booleans())
def test_a_call_for_a_turn_is_read_as_it_was_written(id: str, at: int, names: list[str], yes: bool) -> None:
    frame = wire.decode(wire.write_turn_call(id, at, names, yes))
    assert (frame.op, wire.read_turn_call(frame.header)) == ("turn", (id, at, names, yes))
    assert frame == wire.decode(wire.to_bytes(frame))


def test_png_images_are_smaller_and_equal(url: str) -> None:
    server, sizes, shown = Server(url), {}, {}
    (made,) = server.call("create", {"env": "frozenlake", "options": {"observation": "image"}}).header[
        "sessions"
    ]
    for images in ("raw", "png"):
        before = server.num_received
        frame = server.call("reset", {"sessions": [made], "seeds": [0], "images": images})
        sizes[images] = server.num_received - before
        shown[images] = wire.unpack_turns(frame.header, frame.arrays)[0].observation
    assert shown["png"] == shown["raw"] and shown["raw"].images[0].shape == (128, 128, 3)
    assert sizes["png"] < sizes["raw"] / 10
    server.call("close", {"sessions": [made]})


@given(
    st.lists(
        st_numpy.arrays(np.uint8, st.tuples(st.integers(1, 5), st.integers(1, 5), st.just(3)))
        | st_numpy.arrays(np.float32, st.integers(0, 4)),
        max_size=4,
    )
)
def test_pngs_lose_nothing(arrays: list[Any]) -> None:
    frame = wire.decode_images(wire.encode_images(wire.Frame("turns", {"a": 1}, arrays)))
    assert frame.header == {"a": 1}
    assert [(a.dtype, a.shape, a.tobytes()) for a in frame.arrays] == [
        (a.dtype, a.shape, a.tobytes()) for a in arrays
    ]
