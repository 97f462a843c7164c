"""SVG reconstruction: rewards by likeness, refusals told, two turns, words that are true."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from stepwell.core import ConfigError, InputError, Split, StateForm, Task
from stepwell.envs import draw_tasks, make_env
from stepwell.envs.check import check_env
from stepwell.envs.svg.env import ASK, Svg
from stepwell.envs.svg.guide import EXAMPLE_ICON, EXAMPLE_SVG
from stepwell.envs.svg.icons import load_icons
from stepwell.envs.svg.markup import read_markup

pytest.importorskip("resvg_py")
SMALL = {"image_size": 48, "measure": "pixels"}
TASK = Task("svg", {"icon": EXAMPLE_ICON, "svg": EXAMPLE_SVG})


def playing(task: Task = TASK, **options: object) -> Svg:
    env = make_env("svg", SMALL | options)
    env.reset(options={"task": task})
    assert isinstance(env, Svg)
    return env


@pytest.mark.slow
def test_the_env_keeps_the_contract() -> None:
    report = check_env("svg", SMALL, num_tasks=10)
    assert report.ok, str(report)


def test_the_icons_own_code_earns_all_points_in_both_turns() -> None:
    env = playing()
    observation, reward, terminated, _, info = env.step(env.oracle())
    assert (reward, terminated, info["success"], info["similarity"]) == (5.0, False, False, 1.0)
    assert info["measure"] == "pixels"
    assert "Similarity 1.000 of 1 (pixels and edges)" in observation.text
    assert len(observation.images) == 2 and (observation.images[0] == observation.images[1]).all()
    _, reward, terminated, truncated, info = env.step(env.oracle())
    assert (reward, terminated, truncated, info["success"]) == (5.0, True, False, True)


def test_random_play_draws_any_icon() -> None:
    env, rng = playing(icons="shapes"), random.Random(0)
    codes = {env.random_action(rng) for _ in range(50)}
    known = {svg for _, svg in load_icons("shapes", env.options.max_icon_chars)}
    assert len(codes) > 30 and {read_markup(code).svg for code in codes} <= known


def test_success_is_the_last_drawings() -> None:
    env = playing()
    env.step(env.oracle())
    _, reward, terminated, _, info = env.step(
        ['<svg viewBox="0 0 100 100"><rect width="9" height="9"/></svg>']
    )
    assert terminated and not info["success"] and 0.0 <= reward < 1.0


def test_half_of_the_icon_earns_some_points() -> None:
    half = EXAMPLE_SVG.replace('<rect x="60" y="60" width="30" height="20" fill="blue"/>', "")
    _, reward, *_ = playing().step([half])
    assert 1.0 < reward < 4.0


def test_points_follow_the_weight() -> None:
    env = playing(similarity_weight=2.0)
    assert env.step(env.oracle())[1] == 2.0


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("I cannot draw.", "there is no complete <svg"),
        ('<svg viewBox="0 0 9 9"><image href="file:///etc/passwd"/></svg>', "<image> is not allowed"),
        ("x" * 20_000, "at most 16384 are read"),
    ],
)
def test_a_refusal_is_told_and_earns_nothing(code: str, reason: str) -> None:
    env = playing()
    observation, reward, terminated, _, info = env.step([code])
    assert (reward, terminated, info["similarity"]) == (0.0, False, 0.0)
    assert reason in observation.text and reason in str(info["refusal"]) and ASK in observation.text
    assert len(observation.images) == 1
    assert json.loads(env.state()[StateForm.STRUCTURED])["refused"] is True
    assert env.step(env.oracle())[4]["success"]


PIECES = [
    "<svg viewBox='0 0 9 9'>",
    "</svg>",
    "<path d='M1 1L8 8' stroke='red'/>",
    "<path d='M1e5 1L8 8A1 1 0 0 1 0 0z' stroke-dasharray='0.001'/>",
    "<circle r='1e6' stroke-width='1e6' stroke='red'/>",
    "<g transform='scale(0) rotate(1e5)'>",
    "</g>",
    "<rect width='-3' height='2' rx='9' fill='hsl(1,2%,3%)'/>",
    "<polygon points='1,2 3'/>",
    "<linearGradient id='a'><stop/></linearGradient><rect fill='url(#a)' width='5' height='5'/>",
    "<!--",
    "-->",
    "&lt;",
    "<image href='x'/>",
]


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=12))
def test_whatever_is_answered_a_turn_is_played(parts: list[str]) -> None:
    env = playing()
    observation, reward, _, _, info = env.step(["".join(parts)])
    assert 0.0 <= reward <= 5.0 and reward == pytest.approx(5.0 * float(info["similarity"]))
    assert ("refusal" in info) == (len(observation.images) == 1)


def test_the_oracle_draws_twenty_icons_and_junk_draws_none() -> None:
    options = {"image_size": 64}  # the best measure that is installed
    env = make_env("svg", options)
    for task in draw_tasks("svg", options, Split.TRAIN, 20, seed=0):
        env.reset(options={"task": task})
        env.step(["<svg viewBox='0 0 9 9'></svg>"])
        assert env.step(env.oracle())[4]["success"]
        env.reset(options={"task": task})
        env.step(env.oracle())
        _, reward, _, _, info = env.step(["<svg viewBox='0 0 9 9'><circle cx='4' cy='5' r='3'/></svg>"])
        assert not info["success"] and reward < 2.5


def test_examples_of_the_guide_are_true() -> None:
    env = playing()
    for form, told in env.description.examples.items():
        assert env.state()[form] == told.observation
    env.step([EXAMPLE_SVG])
    for form, told in env.description.examples.items():
        assert env.state()[form] == told.prediction
        assert told.answer == EXAMPLE_SVG


def test_icons_are_many_distinct_and_drawn_at_random() -> None:
    found = load_icons("lucide", 700)
    assert len(found) > 1000
    assert len({svg for _, svg in found}) == len(found) == len({name for name, _ in found})
    assert all(len(svg) <= 700 for _, svg in found)


def test_single_shapes_are_named_by_what_is_seen_and_one_off_is_half_right() -> None:
    found = load_icons("shapes", 300)
    assert len({svg for _, svg in found}) == len(found) == 2384
    assert {name for name, _ in found} == {
        f"{colour} {kind}" for colour in ("red", "green", "blue", "black") for kind in ("circle", "rect")
    }
    env = playing(Svg.make_task(Svg.Options(icons="shapes"), seed=0), icons="shapes")
    (code,) = env.oracle()
    assert code == '<svg viewBox="0 0 10 10"><rect x="3" y="4" width="4" height="6" fill="green"/></svg>'
    near, far = code.replace('x="3"', 'x="4"'), code.replace("green", "red")
    likeness = [env.step([text])[4]["similarity"] for text in (code, near)]
    assert likeness[0] == 1.0 and 0.3 < likeness[1] < 0.6
    env = playing(Svg.make_task(Svg.Options(icons="shapes"), seed=0), icons="shapes")
    assert env.step([far])[4]["similarity"] < 0.7


def test_icons_of_a_folder(tmp_path) -> None:
    (tmp_path / "dot.svg").write_text('<svg viewBox="0 0 4 4"><circle cx="2" cy="2" r="1"/></svg>')
    (tmp_path / "copy.svg").write_text('<svg viewBox="0 0 4 4"><circle cx="2" cy="2" r="1" /></svg>')
    (tmp_path / "bad.svg").write_text('<svg viewBox="0 0 4 4"><script/></svg>')
    task = Svg.make_task(Svg.Options(icons=str(tmp_path)), seed=3)
    assert task.content["icon"] == "copy" and "<circle" in str(task.content["svg"])
    with pytest.raises(ConfigError, match="max_icon_chars"):
        load_icons(str(tmp_path), 60)
    with pytest.raises(ConfigError, match="or a folder of"):
        load_icons(str(tmp_path / "none"), 700)


def test_a_task_that_holds_no_icon_is_refused() -> None:
    with pytest.raises(InputError, match="'icon' and 'svg'"):
        playing(Task("svg", {"icon": "x"}))


def test_the_size_of_the_image_does_not_change_the_points() -> None:
    code = '<svg viewBox="0 0 100 100"><circle cx="30" cy="25" r="15" fill="red"/></svg>'
    rewards = [playing(image_size=size).step([code])[1] for size in (128, 256)]
    assert rewards[0] == pytest.approx(rewards[1], abs=0.1)
