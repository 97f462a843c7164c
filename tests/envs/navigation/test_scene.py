"""Images: what the eye shows is what the state says, pose by pose."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from tests.envs.navigation.rooms import playing, task_of

from stepwell.envs import make_env
from stepwell.envs.navigation.room import NAMES, NavigationRoom
from stepwell.envs.navigation.scene import RenderStage, render_view

pytest.importorskip("mujoco")


def redness(image: np.ndarray) -> np.ndarray:
    channels = image.astype(int)
    return channels[..., 0] > 3 * np.maximum(channels[..., 1], channels[..., 2])


def test_the_red_sofa_ahead_is_in_the_middle_and_moves_with_the_head() -> None:
    env = playing(image_size=64)
    columns = np.flatnonzero(redness(env.render()).any(axis=0))
    assert columns.size and abs(columns.mean() - 31.5) < 2
    rows = np.flatnonzero(redness(env.render()).any(axis=1))
    assert rows.min() > 28  # below eye height
    env.act("lookdown")
    assert np.flatnonzero(redness(env.render()).any(axis=1)).mean() < rows.mean() - 10
    env.act("lookup")
    env.act("rotateright")
    assert not redness(env.render()).any()
    env.act("rotateleft")
    env.act("moveright")
    assert np.flatnonzero(redness(env.render()).any(axis=0)).mean() < 29


def test_nearer_is_larger() -> None:
    env = playing(image_size=64)
    far = redness(env.render()).sum()
    for _ in range(4):
        env.act("moveahead")
    assert redness(env.render()).sum() > 1.5 * far


def test_colours_and_patterns_are_the_tasks() -> None:
    things = [dict(thing, colour="blue") for thing in task_of().content["things"]]
    assert not redness(playing(task_of(things=things), image_size=64).render()).any()
    plain, tiled = (playing(task_of(looks=looks), image_size=64).render() for looks in ([0, 2], [2, 1]))
    assert len(np.unique(tiled.reshape(-1, 3), axis=0)) > len(np.unique(plain.reshape(-1, 3), axis=0))


def test_an_image_depends_on_the_task_and_the_pose_alone() -> None:
    env = make_env("navigation", {"image_size": 32})
    env.reset(seed=1)
    first = env.render()
    env.reset(seed=2)
    assert not np.array_equal(env.render(), first)
    env.reset(seed=1)
    assert np.array_equal(env.render(), first)


@pytest.mark.slow
def test_what_the_state_says_is_in_view_is_what_the_image_shows() -> None:
    """A thing is in the image if taking it away changes pixels."""
    num_agree = num_cases = 0
    env = make_env("navigation", {"image_size": 64})
    rng = random.Random(0)
    for seed in range(12):
        env.reset(seed=seed)
        for _ in range(3):
            for action in rng.choices(NAMES, k=4):
                env.pose = env.room.move(env.pose, action)
            whole = env.render()
            told = {thing.kind.name for thing in env._sight.list_visible_things(env.pose)}
            for thing in env.room.things:
                others = tuple(other for other in env.room.things if other is not thing)
                without = render_view(
                    dataclasses.replace(env.room, things=others), env.pose, 64, env.options.fov
                )
                changed = int((whole != without).any(axis=2).sum())
                if 0 < changed < 12:
                    continue  # a sliver: nobody would call it seen or unseen
                num_cases += 1
                num_agree += (changed > 0) == (thing.kind.name in told)
    assert num_cases > 150
    assert num_agree / num_cases > 0.97, f"{num_agree} of {num_cases}"


def test_images_of_one_room_furnish_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    furnished: list[tuple[RenderStage, NavigationRoom]] = []
    furnish = RenderStage._furnish_room

    def noted(stage: RenderStage, room: NavigationRoom) -> None:
        furnished.append((stage, room))
        furnish(stage, room)

    monkeypatch.setattr(RenderStage, "_furnish_room", noted)
    for seed in range(2):
        env = playing(image_size=32)
        env.reset(seed=seed)
        for _ in range(5):
            env.act("rotateleft")
            env.render()
    assert len(furnished) == 2 and furnished[0][0] is furnished[1][0]  # two rooms, one model
