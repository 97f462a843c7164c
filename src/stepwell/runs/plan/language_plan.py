"""The plan of a run with the built-in language agent.

Prompts are rendered and tasks drawn as the run would do it. The model is not loaded; its size is read from
the headers of its files. Typical figures come from a few demonstrated episodes, bounds from the limits of
turns and actions.

An environment that takes seconds to open (`Env.check_unopened`: a browser) is not opened unless asked for
(`opens_env`). Its pages are then taken to be as long as the context allows, and a line says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from stepwell.core import Observation, TokenState
from stepwell.core.text import format_count
from stepwell.packing import pack
from stepwell.runs.build.components import Components
from stepwell.runs.plan.base_plan import TITLE, BasePlan, round_sizes, split_minibatches
from stepwell.runs.plan.memory import MemoryEstimate
from stepwell.runs.plan.model_size import ModelSize
from stepwell.runs.plan.text import format_line, format_sizes

NUM_SHOWN, NUM_SHOWN_SLOW, NUM_SHOWN_IMAGES = 8, 4, 2
"""Demonstrated episodes that a plan plays: enough for a typical length, without waiting for many. Fewer where
the environment waits for a browser or a server, and fewest where images are drawn."""


@dataclass(frozen=True, slots=True)
class EpisodeTokens:
    """How many tokens an episode has. `own` are those it does not share with other tasks."""

    system: int
    first: int
    reply: float
    between: float
    turns: float
    own: float
    widest: int = 0  # the most that any turn was seen to add besides its reply
    largest: int = 0  # the longest prompt seen, where every prompt is made afresh; 0: dialogues grow

    def longest(self, max_turns: int, max_tokens: int) -> int:
        """Tokens of the longest possible sequence."""
        if self.largest:
            return self.largest + max_tokens
        return math.ceil(
            self.first + max_turns * max_tokens + (max_turns - 1) * max(self.between, self.widest)
        )


class LanguagePlan(BasePlan):
    """The figures of a language agent's plan, and its lines."""

    def __init__(self, components: Components, *, opens_env: bool = False) -> None:
        self.unopened = None if opens_env else components.check_unopened()
        observation = components.check_first_observation() if self.unopened is None else Observation("")
        super().__init__(components)
        self.images, self.num_shown = "", 0
        self.language = components.language
        self.env_spec = self.language.agent.description
        lora, max_turns = self.config.policy.lora, self.env_spec.max_turns
        self.size = ModelSize.read(self.language.base_path, 0 if lora is None else lora.rank)
        opened = self.language.player.open_conversation(observation).state
        self.tokens = self._measure_tokens(opened) if self.unopened is None else self._bound_tokens(opened)
        self.longest = self.tokens.longest(max_turns, self.config.sampling.max_tokens)
        own_most = (self.longest - self.tokens.system) * (max_turns if self.tokens.largest else 1)
        self.typical_tokens = self.tokens.system + round(self.num_trajectories * self.tokens.own)
        self.most_tokens = self.tokens.system + self.num_trajectories * own_most
        self.memory = MemoryEstimate(
            self.config,
            self.recipe,
            self.size,
            components.critic_kind,
            self.typical_tokens,
            self.most_tokens,
            self.num_trajectories * self.tokens.turns * self.tokens.reply,
            self.longest,
            self.language.context_limit,
        )
        self.find_problems()

    # --- measuring ------------------------------------------------------------------------

    def _bound_tokens(self, opened: TokenState) -> EpisodeTokens:
        """The most that episodes can have: nothing of the environment was seen but its guide."""
        system, reply = opened.prompt_ids.size, self.config.sampling.max_tokens
        first, turns = self.language.context_limit - reply, self.env_spec.max_turns
        if not self.language.agent.keeps_dialogue:
            return EpisodeTokens(system, first, reply, 0, turns, turns * (first - system + reply), 0, first)
        return EpisodeTokens(system, first, reply, 0, turns, first - system + reply)

    def _measure_tokens(self, opened: TokenState) -> EpisodeTokens:
        """Token counts of a few demonstrated episodes, or of first prompts where there is no oracle."""
        language, config, envs = self.language, self.config, self.components.envs
        first = opened.prompt_ids.size
        if opened.images:
            counts = " + ".join(f"{span.length}" for span in opened.images)
            self.images = f"{format_count(len(opened.images), 'image')} a turn, {counts} of its tokens"
        if not envs.envs[0].has_oracle:
            system = self._count_shared(opened)
            reply, turns = config.sampling.max_tokens / 2, self.env_spec.max_turns / 2
            between = float(first - system)
            own = first - system + turns * reply + (turns - 1) * between
            return EpisodeTokens(system, first, reply, between, turns, own)
        slow = NUM_SHOWN_SLOW if envs.waits else NUM_SHOWN
        self.num_shown = NUM_SHOWN_IMAGES if opened.images else slow
        shown = self.components.play_demonstrations(self.num_shown, 0.3, config.seed)
        if (warning := language.describe_imbalance(shown)) is not None:
            self.warnings.append(warning)
        begun = [t.steps[0].state for t in shown[:2] if t.steps]
        has_two = len(self.tasks) > 1 and len(begun) > 1
        system = count_shared_tokens(*begun) if has_two else 0  # type: ignore[arg-type]
        steps = [step for t in shown for step in t.steps]
        most = config.sampling.max_tokens
        reply = sum(min(step.num_units, most) for step in steps) / len(steps)
        sizes = [[step.state.prompt_ids.size for step in t.steps] for t in shown]  # type: ignore[union-attr]
        grown = [
            b.state.prompt_ids.size - a.state.prompt_ids.size - a.num_units  # type: ignore[union-attr]
            for t in shown
            for a, b in pairwise(t.steps)
        ]
        between = sum(grown) / len(grown) if grown else float(first - system)
        too_long = sum(max(step.num_units - most, 0) for step in steps)  # what a policy could not write
        own = (pack(steps).num_tokens - system - too_long) / len(shown)
        first = max(first, *(row[0] for row in sizes))
        largest = 0 if language.agent.keeps_dialogue else max(max(row) for row in sizes)
        return EpisodeTokens(
            system,
            first,
            reply,
            max(between, 0.0),
            len(steps) / len(shown),
            own,
            max(grown, default=0),
            largest,
        )

    def _count_shared(self, opened: TokenState) -> int:
        """Leading tokens that the first prompts of two tasks have in common."""
        turns = self.components.envs.reset(self.tasks[1:2])
        if not turns or turns[0].error is not None:
            return 0
        return count_shared_tokens(opened, self.language.player.open_conversation(turns[0].observation).state)

    def find_problems(self) -> None:
        super().find_problems()
        limit, budget = self.language.context_limit, self.config.train.token_budget
        if self.longest > limit:
            self.warnings.append(
                f"an episode may grow to {self.longest} tokens, over the limit of {limit}; it is cut there"
            )
        if isinstance(budget, int) and budget < self.longest:
            self.warnings.append(
                f"train.token_budget ({budget}) is below the longest step ({self.longest} tokens), "
                "which then makes a microbatch of its own"
            )
        if self.config.sampling.top_p < 1:
            self.warnings.append("sampling.top_p is below 1: ratios are those of the whole distribution")

    # --- lines ----------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        config, spec = self.config, self.env_spec
        yield TITLE
        yield format_line(
            "env",
            f"{config.env.name}: {self.describe_tasks()}; up to {format_count(spec.max_turns, 'turn')} of "
            f"{format_count(spec.actions.max_per_turn, 'action')}",
        )
        yield format_line("agent", f"{config.agent.strategy}; {self._describe_prompts()}")
        if self.images:
            yield format_line("", self.images)
        if self.unopened is not None:
            yield format_line(
                "not checked",
                f"{self.unopened}: whether first prompts fit, and how long episodes are. Tokens and memory "
                "below are for the longest ones; --open-env looks at the first page and plays",
            )
        yield from self.describe_policy(self.size, self.memory.num_trained, self.language.context_limit)
        yield from self.describe_recipe()
        yield from self._update_lines()
        yield from self.run_lines()
        yield from self.memory.lines()
        yield from (format_line("warning", text) for text in self.warnings)

    def _describe_count(self, typical: float, name: str, most: int) -> str:
        """ "about 5 tokens, at most 9", or "at most 9 tokens" where nothing was measured."""
        if self.unopened is not None:
            return f"at most {most:,} {name}"
        return f"about {typical:,.0f} {name}, at most {most:,}"

    def _describe_prompts(self) -> str:
        tokens, most = self.tokens, self.config.sampling.max_tokens
        if self.unopened is not None:
            return (
                f"first prompt {tokens.system} tokens and what the environment shows, at most {tokens.first} "
                f"(context less sampling.max_tokens); a reply has at most {most}"
            )
        measured = f" ({format_count(self.num_shown, 'episode')} tried)" if self.num_shown else ""
        return (
            f"first prompt {tokens.first} tokens ({tokens.system} the same for every task); a turn adds "
            f"about {tokens.reply + tokens.between:.0f} (reply {tokens.reply:.0f} of at most {most}), "
            f"{tokens.turns:.1f} turns{measured}"
        )

    def _update_lines(self) -> Iterator[str]:
        train = self.config.train
        rounds = round_sizes(self.num_trajectories, len(self.components.envs.envs))
        yield format_line(
            "an update",
            f"{self.num_trajectories} trajectories = {train.tasks_per_update} tasks x {train.group_size}, "
            f"played {format_sizes(rounds)} at a time",
        )
        yield format_line("", f"{self.num_trajectories} trajectories in {self.describe_minibatches()}")
        most = self.num_trajectories * self.env_spec.max_turns * self.config.sampling.max_tokens
        yield format_line("", self._describe_count(self.memory.sampled_tokens, "tokens sampled", most))
        micro, budget = "whole minibatches at once", self.memory.token_budget
        if budget is not None:
            sizes = split_minibatches(train.tasks_per_update, train.group_size, train.minibatches)
            per = self.typical_tokens / len(sizes)
            micro = f"{format_count(math.ceil(per / budget), 'microbatch')} each"
        if train.token_budget == "auto":
            micro += f" (free memory holds {budget:,} tokens)"
        learnt = "tokens learnt from (shared prefixes once)"
        counted = self._describe_count(self.typical_tokens, learnt, self.most_tokens)
        yield format_line("", f"{counted}; {micro}")


def count_shared_tokens(one: TokenState, other: TokenState) -> int:
    """Leading tokens that two prompts have in common, up to the first image that differs."""
    pairs = zip(one.prompt_ids, other.prompt_ids, strict=False)
    shortest = min(one.prompt_ids.size, other.prompt_ids.size)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), shortest)
    shown = zip(one.images, other.images, strict=False)
    return int(min([same, *(a.start for a, b in shown if a != b)]))
