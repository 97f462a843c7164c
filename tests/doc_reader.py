"""A reader of the documentation: types its commands, in order, in one folder, into the real command line.

What takes minutes is shortened by the rules below, and by nothing else. What a page only stands for
(`runs/NAME`, `HOST`, `DIR`) is really there: a small run, services of this process, a built-in model.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.doc_pages import DOCS, ROOT, read_blocks
from tests.doc_terminal import run_main
from tests.runs.small import small_config
from tests.shared import make_once

from stepwell.cli.main import main
from stepwell.policies.model_resolver import resolve_model
from stepwell.services.http_server import serve_in_thread

# --- what is shortened ------------------------------------------------------------------------

# These runs of the tutorials are really trained, for one small update; later blocks look at them.
DEMONSTRATED = ("warm_start.num_demos=8", "warm_start.batch_size=8")
TRAINED = {"name=lake": DEMONSTRATED, "name=numbers": DEMONSTRATED, "name=helper": ()}
ONE_UPDATE = (
    *("train.num_updates=1", "train.tasks_per_update=2", "train.group_size=2", "train.num_tasks=8"),
    *("eval.num_tasks=2", "eval.samples_per_task=1", "warm_start.max_updates=1", "monitor.tensorboard=false"),
)
# Every other `train` and every `study` is planned: real settings, environment and recipe, no update.
PLANNED = ("--dry-run",)
# Later options win over those that the page has.
SHORTER = {
    "eval": ("--num-tasks", "1", "--samples", "2"),
    "serve gateway": ("--port", "0"),
    "serve envs": ("--port", "0"),
    "serve worker": ("--port", "0"),
    "envs serve": ("--port", "0", "--set", "size=tiny"),
    "view": ("--port", "0"),
}
# Keys that a person would type.
TYPED = {"play": "a\nq\n", "top": "q"}
SERVERS = ("serve gateway", "serve envs", "serve worker", "envs serve", "view")

# --- what pages leave open --------------------------------------------------------------------

FOLDERS = ("examples", "studies", "benchmarks", "scripts")  # a checkout has them
RUNS = ("A", "B", "C", "OTHER", "one", "two")  # besides runs/NAME
MODEL = "tiny-0.3m"  # for DIR, /models/qwen
SEEING_MODEL = "tiny-vlm-0.5m"  # for /models/llava
STUDY = "studies/recipes.toml"
# Files of a reader that a page shows: its first block of that language.
SHOWN = {
    "my_agent.py": ("own_agent.md", "python"),
    "tasks.jsonl": ("own_agent.md", "text"),
}
CHAT = '{"messages": [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}]}\n'
# What hours of training would have written, as they wrote it once.
WRITTEN = {
    "runs/study-step-credit-select/selected.json": "benchmarks/results/step-credit/selected.json",
    "A.json": "benchmarks/results/recipes/results.json",
    "B.json": "benchmarks/results/recipes/results.json",
}
# `my_module` of the pages is made of the examples, under the names that pages use.
OWN = {
    "own_credit.py": {"best_of_siblings": "my_credit"},
    "own_loss.py": {"cautious_loss": "my_loss", "pull": "beta"},
    "own_reward.py": {"@reward_part\n": "", "brevity": "my_reward"},
    "own_env.py": {"NumberLine": "MyEnv"},
}


def make_run(folder: Path) -> None:
    """The run that every `runs/NAME` stands for."""
    from stepwell.runs.run import train

    few = ("train.num_updates=1", "train.tasks_per_update=8", "eval.num_tasks=4", "monitor.report=true")
    run = train(small_config("recipe.name=steppo", "policy.critic=shared", *few, folder=folder, name="NAME"))
    last = sorted((run / "checkpoints").glob("update-*"))[-1]
    shutil.copytree(last, last.with_name("update-000050"))
    every, service = str(folder / "all.jsonl"), str(folder / "service.db")
    run_main(["pool", "export", str(run / "pool"), every])
    run_main(["pool", "import", service, every, "--channel", "user"])


class Services:
    """What pages expect to run elsewhere: a chat API and environments. Started when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._stack = folder, contextlib.ExitStack()

    @cached_property
    def gateway(self) -> str:
        return self._serve_gateway(MODEL)

    def _serve_gateway(self, model: str) -> str:
        from stepwell.engines import EmbeddedEngine
        from stepwell.policies import accepts_images
        from stepwell.pool import PoolImageStore, open_pool
        from stepwell.rendering import Renderer
        from stepwell.services.gateway.app import create_app
        from stepwell.services.gateway.gateway import Gateway

        pool = self._stack.enter_context(open_pool(self.folder / f"{model}.db"))
        images = PoolImageStore(pool) if accepts_images(model) else None
        engine = self._stack.enter_context(EmbeddedEngine.from_pretrained(model, image_store=images))
        renderer = Renderer(
            engine.tokenizer,
            context_length=engine.max_length,
            image_format=engine.image_format,
            image_store=images,
        )
        return self._serve(create_app(Gateway(engine, renderer, pool)))

    @cached_property
    def envs(self) -> str:
        from stepwell.config.env_service import EnvServiceConfig
        from stepwell.services.envs.app import create_env_app

        return self._serve(create_env_app(EnvServiceConfig(envs=("frozenlake", "sokoban"))))

    def _serve(self, app: Any) -> str:
        url, stop = serve_in_thread(app)
        self._stack.callback(stop)
        return url

    def close(self) -> None:
        self._stack.close()


class Reader:
    """One reader with one page, in one folder."""

    def __init__(self, folder: Path, services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.services, self.monkeypatch = folder, services, monkeypatch
        self.names: dict[str, Any] = {"__name__": "__main__"}  # of Python blocks
        self.ids: list[str] = []  # of sessions that a service opened
        self._prepare()

    def _prepare(self) -> None:
        for name in FOLDERS:
            (self.folder / name).symlink_to(ROOT / name)
        runs = self.folder / "runs"
        runs.mkdir()
        made = make_once("docs-run", make_run)
        shutil.copytree(made / "NAME", runs / "NAME")
        shutil.copy(made / "service.db", self.folder)
        for name in RUNS:
            (runs / name).symlink_to("NAME")
        for name, file in WRITTEN.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, self.folder / name)
        for name, (page, language) in SHOWN.items():
            text = next(block.text for block in read_blocks(DOCS / page) if block.language == language)
            (self.folder / name).write_text(text)
        (self.folder / "chats.jsonl").write_text(2 * CHAT)
        self.monkeypatch.chdir(self.folder)
        self.monkeypatch.setattr(sys, "path", [*sys.path])
        self.type(["stepwell", "init", "run", "my"])
        (self.folder / "my_module.py").write_text(make_own_module())
        shutil.copytree(ROOT / "examples", self.folder / "folder", ignore=shutil.ignore_patterns("*.ipynb"))
        (self.folder / "folder" / "own_recipe.py").rename(self.folder / "folder" / "my_module.py")

    def type(self, words: list[str]) -> str:
        """One command of a page. What it prints; an assertion if it fails."""
        while re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        program, *rest = words
        if program == "torchrun":
            return self.run_stepwell(words[words.index("stepwell") + 1 :])
        runner: Callable[[list[str]], str] | None = {
            "stepwell": self.run_stepwell,
            "python": self.run_python,
            "curl": self.run_curl,
            "make": self.run_make,
            "pip": self.run_pip,
            "export": self.run_export,
        }.get(program)
        assert runner is not None, f"nothing here runs {shlex.join(words)}: say how, or why not (NOT_RUN)"
        try:
            return runner(rest)
        finally:
            self.forget_modules()  # as a command in a process of its own would

    def run_block(self, text: str, page: Path) -> None:
        """A Python block of a tutorial, in the same folder and after the blocks before it."""
        exec(compile(text, str(page), "exec"), self.names)
        saved = re.search(r"Save it as `([\w.]+)`", page.read_text())
        if saved and "NumberLine(Env)" in text:
            (self.folder / saved[1]).write_text(text)

    def forget_modules(self) -> None:
        """Forget the modules of this folder: another file may have the same name."""
        own = str(self.folder)
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(own):
                del sys.modules[name]

    # --- stepwell -----------------------------------------------------------------------------

    def run_stepwell(self, words: list[str]) -> str:
        words = shorten([self.fill_in(word) for word in words])
        kind = find_kind(words)
        if kind in SERVERS and "--do" not in words:
            return self.serve_until_visited(words)
        return run_main(words, typed=TYPED.get(words[0], ""))

    def fill_in(self, word: str) -> str:
        """The word with what is really there in the place of a name that stands for something."""
        services = self.services
        word = re.sub(r"\bcuda(:\d)?\b", "cpu", word).replace("bfloat16", "float32")  # no GPU is needed
        for pattern, value in (
            (r"^URL$|https?://(?:HOST|host|127\.0\.0\.1:8000)/v1", lambda: f"{services.gateway}/v1"),
            (r"http://(?:HOST|one|two):8090", lambda: services.envs),
            (r"^DIR$|/models/qwen", lambda: str(resolve_model(MODEL))),
            (r"/models/llava", lambda: str(resolve_model(SEEING_MODEL))),
            (r"^STUDY$", lambda: STUDY),
            (r"^(?:traj-4f2a|TRAJECTORY)$", self.find_trajectory),
            (r"^runs/eval-OTHER-sokoban$", self.copy_evaluation),
        ):
            if re.search(pattern, word):
                word = re.sub(pattern, value(), word)
        return word

    def find_trajectory(self) -> str:
        from stepwell.pool import open_pool

        with open_pool(self.folder / "service.db") as pool:
            return str(next(iter(pool.find())).id)

    def copy_evaluation(self) -> str:
        copied = self.folder / "runs/eval-OTHER-sokoban"
        shutil.copytree(self.folder / "runs/eval-NAME-sokoban", copied, dirs_exist_ok=True)
        return str(copied.relative_to(self.folder))

    def serve_until_visited(self, words: list[str]) -> str:
        """Serve in the foreground, as at a terminal, until a visitor got an answer and pressed Ctrl-C."""
        printed, is_over, seen = io.StringIO(), threading.Event(), []

        def visit() -> None:
            while not is_over.is_set():
                if found := re.search(r"http://[^\s:]+(:\d+\S*)\n", printed.getvalue()):
                    reply = httpx.get(f"http://127.0.0.1{found[1]}", timeout=30, follow_redirects=True)
                    seen.append(reply.status_code)
                    os.kill(os.getpid(), signal.SIGINT)
                    return
                time.sleep(0.01)

        visitor = threading.Thread(target=visit)
        visitor.start()
        try:
            with contextlib.redirect_stdout(printed):
                code = main(words)
        finally:
            is_over.set()
            visitor.join()
        assert code == 130 and seen and seen[0] < 500, (shlex.join(words), code, seen, printed.getvalue())
        return printed.getvalue()

    # --- other programs -----------------------------------------------------------------------

    def run_python(self, words: list[str]) -> str:
        """A script of the page or of the checkout, in this process."""
        file = self.folder / words[0]
        self.monkeypatch.syspath_prepend(str(file.parent))
        self.monkeypatch.setattr(sys, "argv", [*words, *SCRIPTS.get(words[0], ())])
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(file), run_name="__main__")
        return printed.getvalue()

    def run_curl(self, words: list[str]) -> str:
        """The same request, sent to the service that stands for the one of the page."""
        address, body = "", None
        rest = iter(words)
        for word in rest:
            if word in ("-d", "--json"):
                body = next(rest)
            elif word in ("-X", "-H"):
                next(rest)
            elif not word.startswith("-"):
                address = word
        assert body is not None
        for open_id in self.ids:
            body = body.replace('"ID"', f'"{open_id}"', 1)
        url = address.replace("localhost:8090", self.services.envs) if "8090" in address else ""
        url = url or address.replace("localhost:8080", self.services.gateway)
        reply = httpx.post(url, content=body, headers={"content-type": "application/json"})
        assert reply.status_code < 300, reply.text
        self.ids = reply.json().get("sessions", self.ids)
        return reply.text

    def run_make(self, words: list[str]) -> str:
        """The target exists, and make knows how: it is not made."""
        done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run_pip(self, words: list[str]) -> str:
        """Nothing is downloaded: every extra that is named exists."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for found in re.findall(r"stepwell\[([\w,]+)\]", " ".join(words)):
            assert set(found.split(",")) <= set(project["optional-dependencies"]), found
        return ""

    def run_export(self, words: list[str]) -> str:
        name, _, value = words[0].partition("=")
        self.monkeypatch.setenv(name, value)
        return ""


SCRIPTS = {"examples/tool_agent_demos.py": ("--rounds", "1")}  # seven demonstrations are enough


def make_own_module() -> str:
    """Credit, loss, reward and environment of a user, in one file."""
    texts = []
    for file, names in OWN.items():
        text = (ROOT / "examples" / file).read_text()
        for old, new in names.items():
            text = text.replace(old, new)
        texts.append(text)
    return "\n\n".join(texts)


def find_kind(words: list[str]) -> str:
    """The command with its action: `serve gateway`, `orm train`, `eval`."""
    two = " ".join(words[:2])
    return two if two in SHORTER or two in SERVERS else words[0]


def name_plan(words: list[str]) -> tuple[str, ...]:
    """What a `train` or `study` would plan, equal for equal plans; empty for every other command.

    The runs of a study do not depend on how many are run at once, where, and for how long.
    """
    if words[:2] == ["stepwell", "train"] and not is_trained(words):
        return tuple(word for word in words if word != "--dry-run")
    if words[:2] == ["stepwell", "study"] and not {"--list", "--join"} & set(words):
        return (*words[:3], *(word for word in ("--quick", "--select", "--gate") if word in words))
    return ()


def is_trained(words: list[str]) -> bool:
    """Whether a `train` is really run."""
    return bool(set(TRAINED) & set(words)) and "--dry-run" not in words


def shorten(words: list[str]) -> list[str]:
    """The command with what makes it short."""
    kind = find_kind(words)
    if kind == "train" and is_trained(words):
        (name,) = set(TRAINED) & set(words)
        return [*words, *ONE_UPDATE, *TRAINED[name]]
    if kind == "train" or (kind == "study" and not {"--list", "--join"} & set(words)):
        return [*words, *START.get(words[1], ()), *(() if "--dry-run" in words else PLANNED)]
    if kind == "eval" and {"--compare", "--table", "--resume"} & set(words):
        return words
    return [*words, *SHORTER.get(kind, ())]


# It starts from a checkpoint that the training before it would have left.
START = {"examples/tool_agent.toml": (f"policy.model={MODEL}",)}
