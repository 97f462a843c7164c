"""Paper search for language agents: grow a pool of papers by searching and by following citations.

An action is one call, `search(query)` or `expand(paper_id)`; a turn holds several, made in parallel, and an
episode lasts all its turns. What a turn earns is in `pool`, what makes a paper relevant in
`data.papers.selector`, the plan of the oracle in `planner`.

The pool's papers that the selector keeps (score at least 0.5) are compared with the papers that answer the
request: `info` tells F1, recall and precision after every turn, with the numbers of searches, expansions
and penalties so far. An episode succeeds if F1 reaches `success_threshold` at its end.

A task holds the graph's digest, the request in words, the need behind it and the ids of the answers. A
shortest plan is not proven, so there is no number of golden steps: any words may be searched for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from stepwell.config.base import Settings
from stepwell.core import (
    JSON,
    ActionSpace,
    EnvDescription,
    InputError,
    Observation,
    StateForm,
    Task,
    ToolCall,
    problem_with,
    read_call,
)
from stepwell.envs.base import Effect, Env
from stepwell.envs.paper_search import searcher
from stepwell.envs.paper_search.guide import EXPAND, SEARCH, examples, guide, paper_argument, tools
from stepwell.envs.paper_search.library import Library, Request, library_of
from stepwell.envs.paper_search.options import PaperSearchOptions
from stepwell.envs.paper_search.papers import Quality, quality, read_need
from stepwell.envs.paper_search.planner import Planner
from stepwell.envs.paper_search.pool import Pool, asked
from stepwell.envs.paper_search.text import Standing, in_view, in_words, one_line, quoted, structured


class PaperSearch(Env):
    """Collect the papers that answer a request."""

    name: ClassVar[str] = "paper_search"
    Options: ClassVar[type[Settings]] = PaperSearchOptions
    options: PaperSearchOptions

    @cached_property
    def world(self) -> EnvDescription:
        """What agents are told."""
        limits = self.options.limits
        actions = ActionSpace(tools=tools(self.options, limits), max_per_turn=limits.max_calls)
        shown = {} if limits.is_short else examples(limits)
        return EnvDescription(self.name, guide(self.options, limits), actions, limits.max_turns, shown)

    @cached_property
    def library(self) -> Library:
        """The papers."""
        return library_of(self.options)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """A request drawn at random."""
        library = library_of(options)
        request = library.draw(random.Random(seed))
        need: list[JSON] = [list(pair) for pair in request.need.values] if request.need else []
        content: dict[str, JSON] = {
            "graph": library.graph.digest,
            "request": request.text,
            "need": need,
            "answers": [library.graph.ids[paper] for paper in request.answers],
        }
        return Task(cls.name, content, seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        """An empty pool."""
        self.request = self._read(task.content)
        self.selector = self.library.selector(self.request)
        self.pool = Pool(self.selector, self.options.penalty)

    def begin_turn(self) -> None:
        """What is found from here on is new."""
        self.pool.begin_turn()

    def act(self, action: str) -> Effect:
        """Make one call."""
        try:
            call = read_call(action)
        except InputError as error:
            return Effect(
                self.pool.refuse(f"unreadable call: {one_line(str(error), 200)}", is_penalised=False)
            )
        problem = problem_with(self.world.actions.tools, call)
        if problem:
            told = f"refused: {one_line(problem, 200)}"
            return Effect(self.pool.refuse(told, is_penalised=call.name == EXPAND))
        argument = str(next(iter(call.arguments.values())))
        return Effect(self._search(argument) if call.name == SEARCH else self._expand(argument))

    def step(self, actions: Sequence[str]) -> tuple[Observation, float, bool, bool, dict[str, JSON]]:
        """As every world's, with the pool's quality in `info`; success is that of the pool at the end."""
        observation, reward, terminated, truncated, info = super().step(actions)
        now, pool = self.quality, self.pool
        info |= {
            "f1": now.f1,
            "recall": now.recall,
            "precision": now.precision,
            "pool_size": len(pool.papers),
        }
        info |= {
            "num_searches": len(pool.queries),
            "num_expansions": len(pool.expanded),
            "num_penalties": pool.num_penalties,
        }
        info["success"] = terminated and now.f1 >= self.library.limits.success_threshold
        return observation, reward, terminated, truncated, info

    def observe(self) -> Observation:
        """The request, what the last turn brought, and the pool as far as there is room."""
        library = self.library
        return Observation(
            in_view(library.graph, library.limits, self.request.text, self.pool, self.selector)
        )

    def result(self) -> str:
        """How many papers the last turn added; short lists need no count."""
        return "" if self.library.limits.is_short else f"{len(self.pool.new)} new"

    def oracle(self) -> list[str]:
        """Calls for the next turn: the planner's, who knows the answers, or the searcher's."""
        known = self.library, self.request, self.selector, self.pool
        plan = (
            searcher.next_calls(*known) if self.options.oracle == "searcher" else Planner(*known).next_calls()
        )
        return [
            ToolCall(SEARCH, {"query": call}).text if isinstance(call, str) else self._expansion(call)
            for call in plan
        ]

    def golden_steps(self) -> int | None:
        """None: no plan is proven to be shortest."""
        return None

    def random_action(self, rng: random.Random) -> str:
        """Words of a random paper's title, or an expansion of any paper of the pool."""
        graph, papers = self.library.graph, list(self.pool.papers)
        if papers and rng.random() < 0.5:
            return self._expansion(rng.choice(papers))
        words = rng.choice(graph.titles).split()
        start = rng.randrange(len(words))
        return ToolCall(SEARCH, {"query": " ".join(words[start : start + 2])}).text

    def state(self) -> dict[StateForm, str]:
        """Sentences and JSON."""
        request, pool = self.request, self.pool
        counts = len(pool.papers), len(pool.expanded), len(pool.queries)
        now = Standing(request.text, len(request.answers), *counts, self.quality)
        return {StateForm.NATURAL_LANGUAGE: in_words(now), StateForm.STRUCTURED: structured(now)}

    @property
    def quality(self) -> Quality:
        """How good the pool is now."""
        return quality(self.selector, self.pool.papers, self.request.answers)

    def _expansion(self, paper: int) -> str:
        limits, ids = self.library.limits, self.library.graph.ids
        return ToolCall(EXPAND, {paper_argument(limits): ids[paper]}).text

    def _search(self, query: str) -> float:
        told, key = f"search {quoted(query)}", asked(query)
        if not key:
            return self.pool.refuse("refused: search needs words to look for", is_penalised=False)
        if key in self.pool.queries:
            return self.pool.refuse(f"{told}: asked before", is_penalised=True)
        self.pool.queries.add(key)
        return self.pool.add(self.library.search(query), told)

    def _expand(self, paper_id: str) -> float:
        told, paper = f"expand {quoted(paper_id)}", self.library.graph.numbers.get(paper_id.strip())
        if paper is None or paper not in self.pool.papers:
            return self.pool.refuse(f"{told}: no such paper in the pool", is_penalised=True)
        if not self.pool.was_there(paper):
            return self.pool.refuse(f"{told}: not in the pool before this turn", is_penalised=True)
        if paper in self.pool.expanded:
            return self.pool.refuse(f"{told}: expanded before", is_penalised=True)
        self.pool.expanded.add(paper)
        return self.pool.add(self.library.expand(paper), told)

    def _read(self, content: dict[str, JSON]) -> Request:
        graph = self.library.graph
        text, need, answers = (content.get(name) for name in ("request", "need", "answers"))
        if not isinstance(text, str) or not isinstance(need, list) or not isinstance(answers, list):
            raise InputError("a task of paper_search holds 'graph', 'request', 'need' and 'answers'")
        if content.get("graph") != graph.digest:
            raise InputError(
                "the task belongs to another graph of papers; make it with the same env.options "
                "(size, num_papers, graph_seed, snapshot)"
            )
        unknown = [answer for answer in answers if str(answer) not in graph.numbers]
        if unknown or not answers:
            raise InputError(f"the task's answers must be papers of the graph; unknown: {unknown[:3]}")
        numbers = tuple(graph.numbers[str(answer)] for answer in answers)
        return Request(text, numbers, read_need(need, graph) if need else None)
