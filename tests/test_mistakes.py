"""docs/mistakes.md: each command of its tables is run as typed, and must say what the page says."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from stepwell.cli.main import main

PAGE = Path(__file__).parent.parent / "docs" / "mistakes.md"
NUMBER = """
from stepwell.core import ActionSpace, EnvDescription, Observation, Task
from stepwell.envs import Effect, Env

class Number(Env):
    name = "number"
    description = EnvDescription(name, "Count.", ActionSpace(("More", "Less")), max_turns=3)
    @classmethod
    def make_task(cls, options, seed): return Task(cls.name, {"n": seed % 50})
    def begin(self, task, seed): self.n = task.content["n"]
    def act(self, action):
        return Effect(1.0, terminated=True, success=True)
    def observe(self): return Observation(str(self.n))
    def oracle(self): return ["More"]
"""
CREDITS = """
from stepwell.algos import CreditResult, Timeline
from stepwell.algos.declarations import credit, loss

@credit(compares_siblings=True)
def nan(timeline: Timeline):
    return CreditResult.of_trajectories(timeline, timeline.returns * float("nan"))

@credit(compares_siblings=True)
def short(timeline: Timeline):
    return CreditResult.of_trajectories(timeline, timeline.returns[:-1])

@credit(compares_siblings=True)
def none(timeline: Timeline):
    return None

@credit(compares_siblings=True)
def raising(timeline: Timeline):
    return timeline.retruns

@credit(compares_siblings=True)
async def coroutine(timeline: Timeline):
    return None

@loss(needs=("advantages",))
def plain(inputs):
    return inputs.policy_logprobs.mean()
"""
FILES: dict[str, str | bytes] = {
    "bad.toml": "[train\nx = 1\n",
    "twice.toml": "seed = 1\nseed = 2\n",
    "unknown.toml": "[trian]\nnum_updates = 3\n",
    "binary.toml": b"\xff\xfe\x00",
    "not_env.py": "class NotEnv:\n    pass\n",
    "raising_env.py": "raise RuntimeError('no map')\n",
    "syntax_env.py": "def f(:\n",
    "importing_env.py": "import nmpy\n",
    "short_env.py": "from stepwell.envs import Env\n\n\nclass ShortLine(Env):\n    pass\n",
    "agent.py": "async def agent(task, base_url):\n    return 1.0\n\n\nclass Agent:\n    pass\n\n\n"
    "def generate(task):\n    yield 1\n\n\ndef odd(task, thing):\n    return 1\n",
    "empty.jsonl": "",
    "broken.jsonl": '{"question": 1\n',
    "parquet.jsonl": b"PAR1\x00\x01\xff\x00\x00",
    "separators.jsonl": '{"question": "a\u2028b", "split": "train"}\n'
    '{"question": "c", "split": "held_out"}\n',
    **dict.fromkeys(
        ("jsonl_rows.csv", "jsonl_rows.parquet"),
        '{"question": "a, b", "split": "train"}\n{"question": "c", "split": "held_out"}\n',
    ),
    "csv_rows.jsonl": "question,split\na,train\nc,held_out\n",
    "chats.jsonl": '{"messages": [{"role": "assistant", "content": "b"}]}\n',
    "good_chats.jsonl": '{"messages": [{"role": "user", "content": "a"}, '
    '{"role": "assistant", "content": "b"}]}\n',
    "split.jsonl": '{"question": 1, "split": "test"}\n',
    "study.toml": "[study]\nfoo = 1\n",
    "text.db": "this is a text and no database, however long it is made. " * 20,
    "broken_model/config.json": "{not json",
    "no_weights/config.json": '{"model_type": "llama"}',
    "broken_run/config.toml": "[train\n",
    "empty_folder/.keep": "",
    "runs/one/config.toml": "",
    "runs/one/checkpoints/best/config.json": "{}",
    "runs/one/pool/pool.db": "",
    "settings.json": '{"train": {"num_updates": 3}}',
    "quotes.toml": "[policy]\nmodel = ~/models/mine\n",
    "marked.toml": "\ufeff[train]\nnum_updates = 2\n",
    "two_columns.csv": "question,question,split\na,b,train\nc,d,held_out\n",
    "same.jsonl": '{"question": "a", "split": "train"}\n{"question": "a", "split": "held_out"}\n',
    "parts.py": "def text(step):\n    return '1.0'\n\n\nasync def coroutine(step):\n    return 1.0\n",
    "credits.py": CREDITS,
    "settings.yaml": "train:\n  num_updates: 3\n",
    "nan.jsonl": '{"number": NaN}\n',
    "sharegpt.jsonl": '{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}\n',
    "bot.jsonl": '{"messages": [{"role": "bot", "content": "b"}]}\n',
    "only_user.jsonl": '{"messages": [{"role": "user", "content": "a"}]}\n',
    "texts.jsonl": '"a"\n"b"\n',
    "prompts.jsonl": '{"prompt": "hi", "completion": "yo"}\n',
    "number.py": f"{NUMBER}\nmade = Number()\n",
    **{
        f"{name}.py": NUMBER.replace(old, new)
        for name, old, new in (
            ("no_act", "    def act(", "    def play("),
            ("text_observation", "Observation(str(self.n))", "str(self.n)"),
            ("plain_reward", "Effect(1.0, terminated=True, success=True)", "1.0"),
            ("dict_task", 'Task(cls.name, {"n": seed % 50})', '{"n": seed % 50}'),
            ("raising_act", "return Effect(", 'raise KeyError("weather")\n        return Effect('),
            ("own_init", "    def begin(", "    def __init__(self, options): self.n = 0\n    def begin("),
            ("bare_init", "    def begin(", "    def __init__(self): self.n = 0\n    def begin("),
            ("list_actions", 'ActionSpace(("More", "Less"))', '["More", "Less"]'),
            ("dict_description", 'EnvDescription(name, "Count.", ', "dict(name=name, actions="),
            ("wrong_oracle", '["More"]', '["Plus"]'),
            ("no_classmethod", "    @classmethod\n", ""),
            ("set_task", '{"n": seed % 50}', '{"n": {seed % 50}}'),
            ("raising_task", "return Task(", "return Map("),
            ("same_task", "seed % 50", "7"),
            ("no_oracle", 'return ["More"]', "return None"),
            ("nan_reward", "Effect(1.0", 'Effect(float("nan")'),
            (
                "raising_description",
                'description = EnvDescription(name, "Count.", ActionSpace(("More", "Less")), max_turns=3)',
                "description = property(lambda self: self.made)",
            ),
            (
                "raising_close",
                "    def oracle",
                "    def close(self): raise KeyError('window')\n    def oracle",
            ),
            ("async_begin", "    def begin(", "    async def begin("),
            ("yielding_act", "return Effect(", "yield Effect("),
            ("short_begin", "begin(self, task, seed)", "begin(self, task)"),
            ("short_task", "make_task(cls, options, seed)", "make_task(cls, seed)"),
            ("text_reward", "Effect(1.0", 'Effect("1.0"'),
            ("text_success", "success=True", 'success="yes"'),
            ("int_observation", "str(self.n)", "self.n"),
            ("one_action", '("More", "Less")', '("More")'),
            ("text_turns", "max_turns=3", 'max_turns="3"'),
            ("raising_oracle", 'return ["More"]', 'raise KeyError("map")'),
        )
    },
}


def lay_files(folder: Path) -> None:
    """The files that the page's commands name."""
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    tasks = [{"question": "a", "split": "train"}, {"question": "b", "split": "held_out"}]
    pq.write_table(pa.Table.from_pylist(tasks), folder / "whole_parquet.jsonl")


def read_rows(*, are_mistakes: bool = True) -> Iterator[tuple[str, str]]:
    """Command and message of every row; or of those in the last part, which are no mistakes."""
    parts = PAGE.read_text(encoding="utf-8").split("\n## What looks like a mistake and is none\n")
    for line in parts[0 if are_mistakes else 1].splitlines():
        if line.startswith("| `stepwell "):
            command, message, _ = re.split(r"(?<!\\)\|", line.strip("|"))
            is_without_gpu = command.strip().endswith(NO_GPU)
            command, message = (
                c.strip().removesuffix(NO_GPU).strip().strip("`").replace("\\|", "|")
                for c in (command, message)
            )
            if not (is_without_gpu and torch.cuda.is_available()):
                yield command, message


NO_GPU = "(no GPU)"
ROWS = [pytest.param(command, message, id=command) for command, message in read_rows()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path, modules = list(sys.path), set(sys.modules)
    folder = tmp_path_factory.mktemp("mistakes")
    lay_files(folder)
    yield folder
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if f"{name}.py" in FILES:
            del sys.modules[name]


@pytest.mark.parametrize(("command", "message"), ROWS)
def test_a_mistake_is_answered_as_the_page_says(
    command: str,
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    try:
        code = main(shlex.split(command)[1:])
    except SystemExit as ended:  # how argparse refuses
        code = ended.code if isinstance(ended.code, int) else 1
    told = capsys.readouterr().err
    assert code == 2
    assert "Traceback" not in told
    rest = " ".join(told.replace(f"{folder}{os.sep}", "").split())
    for words in filter(None, (part.strip() for part in message.split("…"))):
        assert words in rest, f"{words!r} is not in what was said: {told}"
        rest = rest.partition(words)[2]


@pytest.mark.parametrize(("command", "printed"), list(read_rows(are_mistakes=False)))
def test_what_is_no_mistake_is_done_as_the_page_says(
    command: str,
    printed: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    assert main(shlex.split(command)[1:]) == 0
    told = capsys.readouterr()
    assert not told.err and printed in " ".join(told.out.split())


def test_the_page_holds_the_mistakes_that_people_make() -> None:
    rows = list(read_rows())
    assert len(rows) >= 170
    assert all(len(message) > 20 for _, message in rows)
    assert {command.split()[1] for command, _ in rows} >= {
        "train",
        "eval",
        "play",
        "pool",
        "serve",
        "study",
    }


@pytest.mark.parametrize(
    ("module", "extra", "command"),
    [
        ("psycopg", "postgres", "pool ls postgresql://nobody@127.0.0.1:9/none"),
        ("fastapi", "serve", "serve gateway --model tiny-0.3m"),
        ("fastapi", "serve", "serve envs"),
        ("selectolax", "web", "train web-tiny --dry-run"),
        ("mujoco", "navigation", "train navigation-visual --dry-run"),
        ("peft", "lora", "train frozenlake policy.lora.rank=4 --dry-run"),
        ("psycopg", "postgres", "train frozenlake pool.url=postgresql://127.0.0.1/none --dry-run"),
        ("mlflow", "mlflow", "train frozenlake monitor.mlflow=true --dry-run"),
        ("gymnasium_robotics", "fetch", "envs check fetch"),
        ("scienceworld", "scienceworld", "envs check scienceworld"),
        ("lucide", "svg", "envs check svg"),
    ],
)
def test_a_package_that_is_not_installed_is_one_line_with_its_extra(
    module: str, extra: str, command: str, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    child = multiprocessing.get_context("fork").Process(target=run_without, args=(module, command, told))
    child.start()
    child.join(60)
    child.kill()  # if it serves
    child.join()
    assert child.exitcode == 0
    (line,) = told.read_text().splitlines()
    assert line.startswith("error: ") and "Error" not in line
    assert "not installed" in line and module in line and f"stepwell[{extra}]" in line


def run_without(module: str, command: str, told: Path) -> None:
    """Run a command as where a module is not installed; what it imported before is forgotten."""
    envs = tuple(f"stepwell.envs.{name}" for name in ("web", "navigation", "svg", "registry"))
    forgotten = ("stepwell.services", *envs, f"{module}.")
    for name in [name for name in sys.modules if name.startswith(forgotten)]:
        del sys.modules[name]
    sys.modules[module] = None  # type: ignore[assignment]
    with told.open("w") as file, contextlib.redirect_stderr(file):
        code = main(command.split())
    assert code == 2
