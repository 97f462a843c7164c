"""Multi-hop QA for language agents: search passages several times, then answer a question.

A turn makes up to `max_searches` parallel searches, or answers, which ends the episode. The reward is that of
the paper: 1 for a correct answer by normalised exact match (`facts.answers`), otherwise 0. Searches cost
nothing but turns. The observation holds the question and the passages found in the last `turns_shown` turns.
An impossible call only adds an explanation to the observation.

The task's content is the question, the accepted answers, and the required passages, turn by turn
(`facts.collection`). The oracle searches for these with queries that it has tested on the index, and answers
only after it has seen all of them. Its number of turns is the golden one: every fact is in one passage, and
the next search term is in the passage before.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from stepwell.config.base import Settings
from stepwell.core import (
    JSON,
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
from stepwell.envs.multihop_qa.facts import is_right
from stepwell.envs.multihop_qa.guide import ANSWER, SEARCH, make_action_space, make_examples, write_guide
from stepwell.envs.multihop_qa.options import MultihopOptions
from stepwell.envs.multihop_qa.oracle_queries import find_best_query
from stepwell.envs.multihop_qa.questions import choose_questions, open_index
from stepwell.envs.multihop_qa.text import CallResult, write_observation, write_state
from stepwell.envs.retrieval import SearchIndex


class MultihopQA(Env):
    """Answer questions by searching for passages."""

    name: ClassVar[str] = "multihop_qa"
    Options: ClassVar[type[Settings]] = MultihopOptions
    tells_golden: ClassVar[bool] = True
    options: MultihopOptions

    @cached_property
    def description(self) -> EnvDescription:
        """The description for agents."""
        options = self.options
        shown = {} if options.is_tiny or options.dataset else make_examples()
        return EnvDescription(
            self.name, write_guide(options), make_action_space(options), options.max_turns, shown
        )

    @cached_property
    def index(self) -> SearchIndex:
        """The passages, shared by all copies of the environment in a process."""
        return open_index(self.options)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """A question drawn at random."""
        found = choose_questions(options)
        question = found[random.Random(seed).randrange(len(found))]
        content: dict[str, JSON] = {
            "question": question.text,
            "answers": list(question.answers),
            "plan": [list(turn) for turn in question.plan],
            "is_proven": question.is_proven,
        }
        return Task(cls.name, content, seed=seed, tags=(question.kind,) if question.kind else ())

    def begin(self, task: Task, seed: int) -> None:
        """Start the task's question."""
        content: Any = task.content
        try:
            self.question, self.answers = str(content["question"]), [str(text) for text in content["answers"]]
            self.plan = [[str(id) for id in turn] for turn in content["plan"]]
            self.is_proven = bool(content.get("is_proven", False))
        except (KeyError, TypeError) as error:
            raise InputError(
                "a task of multihop_qa holds the text 'question', the list 'answers' and the list of lists "
                f"'plan'; missing or of another type: {error}"
            ) from error
        unknown = [id for turn in self.plan for id in turn if id not in self.index]
        if unknown:
            raise InputError(
                f"task {task.id} needs the passage {unknown[0]!r}, which the index of these options lacks; "
                "set env.options.size, domain and dataset as they were when the task was made"
            )
        self.turns: list[list[CallResult]] = []
        self.seen: set[str] = set()
        self.answer: str | None = None

    def begin_turn(self) -> None:
        """Start a new list of results."""
        self.turns.append([])

    def act(self, action: str) -> Effect:
        """One search, or the answer."""
        try:
            call = read_call(action)
            problem = find_call_problem((SEARCH, ANSWER), call)
        except InputError as error:
            problem = str(error)
        if problem:
            self.turns[-1].append(CallResult(problem=problem))
            return Effect()
        if call.name == SEARCH.name:
            self._search_passages(str(call.arguments["query"]))
            return Effect()
        self.answer = str(call.arguments["text"])
        right = is_right(self.answer, self.answers)
        return Effect(float(right), terminated=True, success=right)

    def step(self, actions: Sequence[str]) -> tuple[Observation, float, bool, bool, dict[str, JSON]]:
        """Play one turn; `info["result"]` names the first passage of each search."""
        observation, reward, terminated, truncated, info = super().step(actions)
        if actions and not self.options.is_tiny:
            titles = [found.passages[0].title for found in self.turns[-1] if found.passages]
            info["result"] = "; ".join(titles)
        return observation, reward, terminated, truncated, info

    def observe(self) -> Observation:
        """The question and the passages found."""
        shown = self.turns[-self.options.turns_shown :]
        return Observation(write_observation(self.question, shown, self.options))

    def oracle(self) -> list[str]:
        """The searches of the next turn, or the answer once all passages were seen; [] if one is missing."""
        missing = self._list_missing()
        if not missing:
            return [ToolCall(ANSWER.name, {"text": self.answers[0]}).text]
        wanted = missing[0][: self.options.max_searches]
        queries = [
            find_best_query(self.index, id, self.question, self.options.results_per_search) for id in wanted
        ]
        if None in queries:
            return []
        return [ToolCall(SEARCH.name, {"query": query}).text for query in queries]

    def golden_steps(self) -> int | None:
        """Turns of searches that depend on each other, plus the answer; None if this is not proven."""
        if not self.is_proven:
            return None
        most = self.options.max_searches
        return 1 + sum(-(-len(turn) // most) for turn in self._list_missing())

    def random_action(self, rng: random.Random) -> str:
        """A search for a random title, or a random title as the answer."""
        title = rng.choice(self.index.documents).title
        tool, argument = (ANSWER, "text") if rng.random() < 0.25 else (SEARCH, "query")
        return ToolCall(tool.name, {argument: title[:200]}).text

    def state(self) -> dict[StateForm, str]:
        """Sentences."""
        needed = [self.index[id].title for turn in self.plan for id in turn]
        found = [self.index[id].title for turn in self.plan for id in turn if id in self.seen]
        return {StateForm.NATURAL_LANGUAGE: write_state(self.question, needed, found, self.answer)}

    def _search_passages(self, query: str) -> None:
        hits = self.index.search(query, self.options.results_per_search)
        passages = tuple(self.index[hit.id] for hit in hits)
        self.seen.update(passage.id for passage in passages)
        self.turns[-1].append(CallResult(query, passages))

    def _list_missing(self) -> list[list[str]]:
        """The passages not yet seen, turn by turn, without completed turns."""
        left = [[id for id in turn if id not in self.seen] for turn in self.plan]
        return [turn for turn in left if turn]
