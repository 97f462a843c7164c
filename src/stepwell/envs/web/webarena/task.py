"""One task of WebArena as its JSON states it, checked when it is read.

    {"sites": ["shopping"], "task_id": 118, "start_url": "__SHOPPING__", "intent": "...",
     "require_login": true, "storage_state": "./.auth/shopping_state.json",
     "intent_template": "...", "instantiation_dict": {...}, "intent_template_id": 9,
     "eval": {"eval_types": ["string_match"], "reference_answers": {"exact_match": "..."},
              "reference_url": "", "program_html": []}}

Two dialects share this form. WebArena's own files are judged by its own rules. WebArena-Lite (165 tasks, each
with an `old_task_id`) is judged by the stricter rules that it took over from VisualWebArena. A file of
instructions without evaluators ({"task": "...", "web": "...", "start_url": "..."}) gives tasks that only a
judge of outcomes can judge. They begin at `start_url`, or else at their site.

Invariants
* A `WebArenaTask` is read once and then trusted: every evaluator finds the fields that it needs.
* URLs keep their placeholders (`__SHOPPING__`). The sites' addresses belong to the host, not to the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from stepwell.core import JSON, InputError
from stepwell.envs.web.webarena.sites import SITE_NAMES

Rules = Literal["webarena", "lite"]
OR = " |OR| "
AND = " |AND| "
EVALUATORS = ("string_match", "url_match", "program_html")
ANSWER_RULES = ("exact_match", "must_include", "must_exclude", "one_of", "required_values", "fuzzy_match")
CONTENT_RULES = ("exact_match", "must_include", "must_exclude", "required_values", "fuzzy_match")
URL_RULES = ("GOLD in PRED", "EXACT")
NOT_ACHIEVABLE = "N/A"
OTHER_NAMES = {"oss": "shopping", "cms": "shopping_admin", "forum": "reddit"}
"""Names of sites in the literature, beside those of the options."""


@dataclass(frozen=True, slots=True)
class PageTarget:
    """What a page must contain: which page, which part of it, and which contents."""

    url: str
    locator: str
    required: Mapping[str, Any]
    prep_actions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WebArenaTask:
    """One task: where it begins, what is asked, and how the outcome is judged."""

    task_id: int
    sites: tuple[str, ...]
    start_urls: tuple[str, ...]
    intent: str
    rules: Rules = "webarena"
    require_login: bool = False
    storage_state: str | None = None
    template: str = ""
    template_id: int = -1
    variables: Mapping[str, Any] | None = None
    evaluators: tuple[str, ...] = ()
    reference_answers: Mapping[str, Any] | None = None
    reference_url: str = ""
    url_rule: str = "GOLD in PRED"
    note: str = ""
    targets: tuple[PageTarget, ...] = ()

    @property
    def is_achievable(self) -> bool:
        """Whether the task can be done; if not, the right answer is that it cannot."""
        return (self.reference_answers or {}).get("fuzzy_match") != NOT_ACHIEVABLE


def read_task(entry: Mapping[str, JSON], rules: Rules | None = None) -> WebArenaTask:
    """Read one entry of a file; `rules` follow from the entry if they are not given."""
    where = f"task {entry.get('task_id')!r} of WebArena"
    entry = complete_entry(entry)
    for name in ("task_id", "sites", "start_url", "intent", "eval"):
        if name not in entry:
            raise InputError(f"{where} has no {name!r}; is this a file of WebArena's tasks?")
    judged = entry["eval"]
    if not isinstance(judged, dict):
        raise InputError(f"{where}: 'eval' must be an object")
    known: Rules = rules or ("lite" if "old_task_id" in entry else "webarena")
    task = WebArenaTask(
        task_id=int(str(entry["task_id"])),
        sites=tuple(cast(list[str], entry["sites"])),
        start_urls=tuple(str(entry["start_url"]).split(AND)),
        intent=str(entry["intent"]),
        rules=known,
        require_login=bool(entry.get("require_login")),
        storage_state=cast(str | None, entry.get("storage_state")),
        template=str(entry.get("intent_template") or ""),
        template_id=int(str(entry.get("intent_template_id", -1))),
        variables=cast(dict[str, Any], entry.get("instantiation_dict") or {}),
        evaluators=tuple(cast(list[str], judged.get("eval_types") or ())),
        reference_answers=cast(dict[str, Any] | None, judged.get("reference_answers")),
        reference_url=str(judged.get("reference_url") or ""),
        url_rule=str(judged.get("url_note") or ("EXACT" if known == "lite" else "GOLD in PRED")),
        note=str(judged.get("string_note") or entry.get("string_note") or ""),
        targets=tuple(
            _read_target(item, where) for item in cast(list[Any], judged.get("program_html") or ())
        ),
    )
    _check_task(task, where)
    return task


def complete_entry(entry: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """An entry with all fields: an instruction with its site becomes a task without an evaluator."""
    if "intent" in entry or "task" not in entry:
        return entry
    site = find_site(entry)
    return {
        "task_id": entry.get("task_id", -1),
        "sites": [site],
        "start_url": entry.get("start_url") or f"__{site.upper()}__",
        "intent": " ".join(str(entry["task"]).split()),
        "require_login": True,
        "eval": {"eval_types": []},
    }


def find_site(entry: Mapping[str, JSON]) -> str:
    """The site of an entry: the one that it names, or of several the one where it begins."""
    if "web" in entry or "sites" not in entry:
        name = str(entry.get("web") or "").strip().lower()
        name = OTHER_NAMES.get(name, name)
        if name not in SITE_NAMES:
            raise InputError(
                f"an instruction needs 'web', the site that it belongs to: {', '.join(SITE_NAMES)}"
                + (f"; not {name!r}" if name else "")
            )
        return name
    names = [str(name) for name in cast(list[str], entry["sites"])]
    start = str(entry.get("start_url", ""))
    return next((name for name in names if start.startswith(f"__{name.upper()}__")), names[0])


def fold_words(text: str) -> str:
    """An instruction as it is compared: small letters, single blanks, no mark at the end."""
    return " ".join(text.split()).casefold().rstrip(".!? ")


def _read_target(entry: Any, where: str) -> PageTarget:
    if not isinstance(entry, dict) or not {"url", "locator", "required_contents"} <= set(entry):
        raise InputError(f"{where}: an item of 'program_html' needs url, locator and required_contents")
    required = entry["required_contents"]
    if not isinstance(required, dict) or not any(name in required for name in CONTENT_RULES):
        raise InputError(f"{where}: required_contents holds none of {', '.join(CONTENT_RULES)}")
    steps = tuple(str(step) for step in entry.get("prep_actions") or ())
    return PageTarget(str(entry["url"]), str(entry["locator"]), required, steps)


def _check_task(task: WebArenaTask, where: str) -> None:
    unknown = [name for name in task.evaluators if name not in EVALUATORS]
    if unknown:
        raise InputError(f"{where}: unknown evaluator {unknown[0]!r}; known: {', '.join(EVALUATORS)}")
    if "string_match" in task.evaluators:
        answers = task.reference_answers
        if not answers or not set(answers) <= set(ANSWER_RULES):
            raise InputError(f"{where}: reference_answers must hold some of {', '.join(ANSWER_RULES)}")
    if "url_match" in task.evaluators and task.url_rule not in URL_RULES:
        raise InputError(f"{where}: unknown url_note {task.url_rule!r}; known: {', '.join(URL_RULES)}")
    if "program_html" in task.evaluators and not task.targets:
        raise InputError(f"{where}: program_html without targets")
