"""SVG reconstruction for language agents: see an icon, write its code, see what it draws, improve it.

The reward of a drawing is its likeness to the target (see `similarity`) times `similarity_weight`, plus
the DINO score times `dino_weight` where DINO's weights are given. Code that is refused, or that cannot be
drawn in time, earns 0 and the reason is shown. An episode always lasts `max_turns` turns, so that a good
first drawing loses nothing; it succeeds if the last drawing's likeness reaches `success_threshold`.
`info` says the likeness, its measure and, if any, the DINO score and the refusal.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from stepwell.config.base import Settings
from stepwell.core import JSON, ActionSpace, EnvDescription, InputError, Observation, StateForm, Task
from stepwell.envs.base import Effect, Env
from stepwell.envs.svg.guide import make_examples, write_guide
from stepwell.envs.svg.icons import load_icons
from stepwell.envs.svg.markup import XMLNS, SvgError, read_markup
from stepwell.envs.svg.options import SvgOptions
from stepwell.envs.svg.rasteriser import draw_svg
from stepwell.envs.svg.similarity import TITLES, LikenessJudge, LikenessScore
from stepwell.envs.svg.text import DrawingOutcome, write_sentences, write_structured
from stepwell.envs.tiles import Image

ASK = "Write SVG code that draws this icon."


class Svg(Env):
    """Write the SVG code of the icon in the image."""

    name: ClassVar[str] = "svg"
    Options: ClassVar[type[Settings]] = SvgOptions
    options: SvgOptions

    @cached_property
    def description(self) -> EnvDescription:
        """The description for agents."""
        return EnvDescription(
            self.name, write_guide(self.options), ActionSpace(), self.options.max_turns, make_examples()
        )

    @cached_property
    def judge(self) -> LikenessJudge:
        """Who measures likeness."""
        return LikenessJudge(self.options)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """An icon drawn at random."""
        name, svg = _draw_icon(options, random.Random(seed))
        content: dict[str, JSON] = {"icon": name, "svg": svg}
        return Task(cls.name, content, seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        """Show the task's icon."""
        icon, code = task.content.get("icon"), task.content.get("svg")
        if not isinstance(icon, str) or not isinstance(code, str):
            raise InputError("a task of svg holds the texts 'icon' and 'svg'")
        self.icon = icon
        self.target_svg = read_markup(code, max(len(code), self.options.max_chars)).svg
        self.target = self._draw_svg(self.target_svg)
        self.drawing: Image | None = None
        self.score: LikenessScore | None = None
        self.outcome: DrawingOutcome | None = None

    def act(self, action: str) -> Effect:
        """Draw the code and compare."""
        options = self.options
        self.drawing = self.score = None
        try:
            code = read_markup(action, options.max_chars)
            self.drawing = self._draw_svg(code.svg)
        except SvgError as refusal:
            self.outcome = DrawingOutcome(refusal=str(refusal))
            return Effect(0.0)
        self.score = score = self.judge.score(self.target, self.drawing)
        self.outcome = DrawingOutcome(len(code.shapes), score.value)
        reward = options.similarity_weight * score.value + options.dino_weight * (score.dino or 0.0)
        is_last = self._num_turns + 1 >= options.max_turns
        good = score.value >= options.success_threshold
        return Effect(reward, terminated=is_last, success=is_last and good)

    def step(self, actions: Sequence[str]) -> tuple[Observation, float, bool, bool, dict[str, JSON]]:
        """As every environment's, with the likeness in `info`."""
        observation, reward, terminated, truncated, info = super().step(actions)
        if self.score is not None:
            info |= {"similarity": self.score.value, "measure": self.score.measure}
            if self.score.dino is not None:
                info["dino"] = self.score.dino
        elif self.outcome is not None:
            info |= {"similarity": 0.0, "measure": self.judge.measure, "refusal": self.outcome.refusal}
        return observation, reward, terminated, truncated, info

    def observe(self) -> Observation:
        """The target and, once there is one, the last drawing."""
        if self.outcome is None:
            return Observation(ASK, (self.target,))
        if self.drawing is None:
            return Observation(f"Your code was refused: {self.outcome.refusal}. {ASK}", (self.target,))
        title = TITLES[self.judge.measure]
        text = (
            "The first picture is the target, the second is what your code draws. "
            f"Similarity {self.outcome.similarity:.3f} of 1 ({title})."
        )
        return Observation(text, (self.target, self.drawing))

    def oracle(self) -> list[str]:
        """The code of the icon itself, without the namespace, which every drawing gets anyway."""
        return [_shorten(self.target_svg)]

    def random_action(self, rng: random.Random) -> str:
        """The code of any icon."""
        return _shorten(_draw_icon(self.options, rng)[1])

    def state(self) -> dict[StateForm, str]:
        """Sentences and JSON."""
        return {
            StateForm.NATURAL_LANGUAGE: write_sentences(self.icon, self.target_svg, self.outcome),
            StateForm.STRUCTURED: write_structured(self.icon, self.target_svg, self.outcome),
        }

    def render(self) -> Image:
        """The last drawing, or the target before there is one."""
        return self.target if self.drawing is None else self.drawing

    def _draw_svg(self, svg: str) -> Image:
        return draw_svg(svg, self.options.image_size, self.options.time_limit_s)


def _draw_icon(options: SvgOptions, rng: random.Random) -> tuple[str, str]:
    """Name and code of an icon drawn at random."""
    return rng.choice(load_icons(options.icons, options.max_icon_chars))


def _shorten(svg: str) -> str:
    """Code without the namespace."""
    return svg.replace(f' xmlns="{XMLNS}"', "", 1)
