"""WebArena's own evaluators, as the package `libwebarena` carries them, without its browser and its models.

The package's start-up imports agents, tokenizers and clients of models that judging needs nothing of. The
folders between are therefore entered as they are, without their start-up files. What the evaluators call a
model for is answered by a function of the test, which both sides then share.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SITES = {
    "shopping": "http://shop.test:7770",
    "shopping_admin": "http://shop.test:7780/admin",
    "reddit": "http://forum.test:9999",
    "gitlab": "http://code.test:8023",
    "map": "http://map.test:3000",
    "wikipedia": "http://wiki.test:8888",
    "homepage": "http://home.test:4399",
}
NLTK_DATA = "llama_index/core/_static/nltk_cache"  # NLTK's own data, in a package that carries it
_MODEL = "webarena.llms.providers.openai_utils"


class PackageEvaluators:
    """The package's evaluators of answers, URLs and pages, called with plain values."""

    def __init__(self, folder: Path, ask_model: Callable[[str], str]) -> None:
        self.modules = _import_evaluators(ask_model)
        self.folder = folder
        self.written: Mapping[str, Any] = {}

    def judge_answer(self, entry: Mapping[str, Any], answer: str) -> float:
        evaluator = self.modules["evaluators"].StringEvaluator()
        return float(evaluator([{}, {"answer": answer}], self._write_entry(entry), None, None))

    def judge_url(self, entry: Mapping[str, Any], url: str) -> float:
        evaluator = self.modules["evaluators"].URLEvaluator()
        return float(evaluator([], self._write_entry(entry), self._make_page(url), None))

    def judge_page(self, entry: Mapping[str, Any], page: Any) -> float:
        evaluator = self.modules["evaluators"].HTMLContentEvaluator()
        return float(evaluator([], self._write_entry(entry), self._make_page(page.url, page), None))

    def _make_page(self, url: str, page: Any = None) -> Any:
        return self.modules["helper_functions"].PseudoPage(page, url)

    def _write_entry(self, entry: Mapping[str, Any]) -> Path:
        path = self.folder / "task.json"
        if entry is not self.written:
            path.write_text(json.dumps(entry))
            self.written = entry
        return path


def _import_evaluators(ask_model: Callable[[str], str]) -> dict[str, ModuleType]:
    pytest.importorskip("nltk")
    pytest.importorskip("beartype")
    pytest.importorskip("playwright")
    import nltk

    nltk.data.path.insert(0, str(distribution("llama-index-core").locate_file(NLTK_DATA)))
    os.environ.update({name.upper(): url for name, url in SITES.items()})
    root = Path(str(distribution("libwebarena").locate_file("webarena")))
    for name in ("browser_env", "evaluation_harness", "llms", "llms/providers"):
        module = ModuleType(f"webarena.{name.replace('/', '.')}")
        module.__path__ = [str(root / name)]
        sys.modules[module.__name__] = module
    for name, kind in (("actions", "Action"), ("utils", "StateInfo")):  # two names of types
        module = ModuleType(f"webarena.browser_env.{name}")
        setattr(module, kind, dict)
        sys.modules[module.__name__] = module
    model = ModuleType(_MODEL)
    model.generate_from_openai_chat_completion = (  # type: ignore[attr-defined]
        lambda *, messages, **_: ask_model(messages[-1]["content"])
    )
    sys.modules[_MODEL] = model
    from webarena.evaluation_harness import evaluators, helper_functions

    evaluators.time = ModuleType("time")  # it waits three seconds after every page
    evaluators.time.sleep = lambda _: None
    return {"evaluators": evaluators, "helper_functions": helper_functions}
