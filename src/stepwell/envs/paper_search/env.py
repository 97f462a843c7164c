"""Paper search for language agents: grow a pool of papers by searching and by following citations.

An action is one call, `search(query)` or `expand(paper_id)`. A turn holds several parallel calls, and an
episode always lasts all its turns. The reward of a turn is defined in `pool`, the relevance of a paper in
`papers.selector`, and the oracle's plan in `planner`.

The papers of the pool that the selector keeps (score at least 0.5) are compared with the answers of the
request. After every turn `info` has F1, recall and precision, and the numbers of searches, expansions and
penalties so far. An episode succeeds if F1 reaches `success_threshold` at its end.

A task holds the graph's digest, the text of the request, the need behind it and the ids of the answers. There
are no golden steps: agents may search for any words, so no plan is proven to be shortest.
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
    find_call_problem,
    read_call,
)
from stepwell.envs.base import Effect, Env
from stepwell.envs.paper_search import searcher
from stepwell.envs.paper_search.guide import (
    EXPAND,
    SEARCH,
    make_examples,
    make_tools,
    name_paper_argument,
    write_guide,
)
from stepwell.envs.paper_search.library import Library, PaperRequest, open_library
from stepwell.envs.paper_search.options import PaperSearchOptions
from stepwell.envs.paper_search.papers import Quality, measure_quality, read_need
from stepwell.envs.paper_search.planner import PaperPlanner
from stepwell.envs.paper_search.pool import PaperPool, normalise_query
from stepwell.envs.paper_search.text import (
    EpisodeState,
    quote_text,
    to_one_line,
    write_observation,
    write_sentences,
    write_structured,
)


class PaperSearch(Env):
    """Collect the papers that answer a request."""

    name: ClassVar[str] = "paper_search"
    Options: ClassVar[type[Settings]] = PaperSearchOptions
    options: PaperSearchOptions

    @cached_property
    def description(self) -> EnvDescription:
        """The description for agents."""
        limits = self.options.limits
        actions = ActionSpace(tools=make_tools(self.options, limits), max_per_turn=limits.max_calls)
        shown = {} if limits.is_short else make_examples(limits)
        return EnvDescription(self.name, write_guide(self.options, limits), actions, limits.max_turns, shown)

    @cached_property
    def library(self) -> Library:
        """The papers."""
        return open_library(self.options)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """A request drawn at random."""
        library = open_library(options)
        request = library.draw_request(random.Random(seed))
        need: list[JSON] = [list(pair) for pair in request.need.values] if request.need else []
        content: dict[str, JSON] = {
            "graph": library.graph.digest,
            "request": request.text,
            "need": need,
            "answers": [library.graph.ids[paper] for paper in request.answers],
        }
        return Task(cls.name, content, seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        """Start with an empty pool."""
        self.request = self._read_request(task.content)
        self.selector = self.library.make_selector(self.request)
        self.pool = PaperPool(self.selector, self.options.penalty)

    def begin_turn(self) -> None:
        """Start a turn: papers found from now on are new."""
        self.pool.begin_turn()

    def act(self, action: str) -> Effect:
        """Make one call."""
        try:
            call = read_call(action)
        except InputError as error:
            return Effect(
                self.pool.refuse_call(f"unreadable call: {to_one_line(str(error), 200)}", is_penalised=False)
            )
        problem = find_call_problem(self.description.actions.tools, call)
        if problem:
            reply = f"refused: {to_one_line(problem, 200)}"
            return Effect(self.pool.refuse_call(reply, is_penalised=call.name == EXPAND))
        argument = str(next(iter(call.arguments.values())))
        return Effect(self._search_papers(argument) if call.name == SEARCH else self._expand_paper(argument))

    def step(self, actions: Sequence[str]) -> tuple[Observation, float, bool, bool, dict[str, JSON]]:
        """Play one turn; `info` holds the pool's quality, and success is judged by the final pool."""
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
        """The request, the results of the last turn, and the pool up to a size limit."""
        library = self.library
        return Observation(
            write_observation(library.graph, library.limits, self.request.text, self.pool, self.selector)
        )

    def result(self) -> str:
        """Number of papers that the last turn added; empty for short lists."""
        return "" if self.library.limits.is_short else f"{len(self.pool.new)} new"

    def oracle(self) -> list[str]:
        """Calls for the next turn: from the planner, which knows the answers, or from the searcher."""
        known = self.library, self.request, self.selector, self.pool
        plan = (
            searcher.choose_calls(*known)
            if self.options.oracle == "searcher"
            else PaperPlanner(*known).choose_calls()
        )
        return [
            ToolCall(SEARCH, {"query": call}).text if isinstance(call, str) else self._write_expansion(call)
            for call in plan
        ]

    def golden_steps(self) -> int | None:
        """None: no plan is proven to be shortest."""
        return None

    def random_action(self, rng: random.Random) -> str:
        """Words of a random paper's title, or an expansion of any paper of the pool."""
        graph, papers = self.library.graph, list(self.pool.papers)
        if papers and rng.random() < 0.5:
            return self._write_expansion(rng.choice(papers))
        words = rng.choice(graph.titles).split()
        start = rng.randrange(len(words))
        return ToolCall(SEARCH, {"query": " ".join(words[start : start + 2])}).text

    def state(self) -> dict[StateForm, str]:
        """Sentences and JSON."""
        request, pool = self.request, self.pool
        counts = len(pool.papers), len(pool.expanded), len(pool.queries)
        now = EpisodeState(request.text, len(request.answers), *counts, self.quality)
        return {StateForm.NATURAL_LANGUAGE: write_sentences(now), StateForm.STRUCTURED: write_structured(now)}

    @property
    def quality(self) -> Quality:
        """The current quality of the pool."""
        return measure_quality(self.selector, self.pool.papers, self.request.answers)

    def _write_expansion(self, paper: int) -> str:
        limits, ids = self.library.limits, self.library.graph.ids
        return ToolCall(EXPAND, {name_paper_argument(limits): ids[paper]}).text

    def _search_papers(self, query: str) -> float:
        call_text, key = f"search {quote_text(query)}", normalise_query(query)
        if not key:
            return self.pool.refuse_call("refused: search needs words to look for", is_penalised=False)
        if key in self.pool.queries:
            return self.pool.refuse_call(f"{call_text}: asked before", is_penalised=True)
        self.pool.queries.add(key)
        return self.pool.add_found(self.library.search(query), call_text)

    def _expand_paper(self, paper_id: str) -> float:
        call_text, paper = f"expand {quote_text(paper_id)}", self.library.graph.numbers.get(paper_id.strip())
        if paper is None or paper not in self.pool.papers:
            return self.pool.refuse_call(f"{call_text}: no such paper in the pool", is_penalised=True)
        if not self.pool.was_there(paper):
            return self.pool.refuse_call(f"{call_text}: not in the pool before this turn", is_penalised=True)
        if paper in self.pool.expanded:
            return self.pool.refuse_call(f"{call_text}: expanded before", is_penalised=True)
        self.pool.expanded.add(paper)
        return self.pool.add_found(self.library.expand(paper), call_text)

    def _read_request(self, content: dict[str, JSON]) -> PaperRequest:
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
        return PaperRequest(text, numbers, read_need(need, graph) if need else None)
