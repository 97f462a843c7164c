"""Token faithfulness: are the steps that the gateway records what the engine saw and sampled?

Random conversations are held through the real `openai` and `anthropic` clients over HTTP: chat
completions, responses and messages, streaming and not, with and without tools, several samples at
once, stop strings and limits, and clients that send history back in their own ways (trimmed,
re-serialised, with other ids on tool calls, sometimes rewritten). The policy is the tiny model,
taught for some seconds to think and to call tools, often wrongly.

The engine stands behind a recorder. Afterwards every step of the pool is compared with what went
into the engine and what came out, and the trainer's logprobs with the engine's:

* differing     steps whose prompt ids, action ids or logprobs are not those of their request, or that
                claim to extend a step whose ids they do not begin with
* lost, extra   requests without a step, and steps without a request
* misread       replies whose words, calls or logprobs are not those of the recorded ids
* logprob gap   the largest difference between trainer and engine

Rows: the tiny template, and one that strips <think> from history, in both `history` modes.

    python benchmarks/faithfulness.py                  # 1,000 conversations each; results/faithfulness.json
    python benchmarks/faithfulness.py --conversations 20 --no-write
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from stepwell.config.gateway import GatewayConfig
from stepwell.core import Request, Sampled, Step, TokenAction, TokenState
from stepwell.engines import EmbeddedEngine, check_parity
from stepwell.policies import CausalLMPolicy
from stepwell.pool import Pool, open_pool
from stepwell.rendering import History, Renderer, load_tokenizer, parse_reply
from stepwell.services.gateway.app import create_app
from stepwell.services.gateway.gateway import Gateway
from stepwell.services.http_server import serve_in_thread

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "faithfulness"))

from talks import SAID, Reply, Talk, hold  # noqa: E402

RESULT = HERE / "results" / "faithfulness.json"
MODEL = "tiny-0.3m"

TURNS = (
    "<think>I see a door.</think>Go on.",
    '<think>hm</think><tool_call>{"name": "look", "arguments": {"at": "door"}}</tool_call>',
    'I go.<tool_call>{"name": "go", "arguments": {"steps": 2}}</tool_call>'
    '<tool_call>{"name": "look", "arguments": {}}</tool_call>',
    "A door 🙂",
    "Go up, then down.",
)
TOOLS_END = '</tools>\nCall a tool: <tool_call>{"name": "...", "arguments": {...}}</tool_call><|im_end|>\n'
# The tiny template, except that thoughts before the last question are left out.
STRIPPING = """
{%- set last = namespace(user=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set last.user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if tools -%}
{{- '<|im_start|>system\\n' + (messages[0].content if messages[0].role == 'system' else '') + '<tools>\\n' -}}
{%- for tool in tools -%}{{- tool.function | tojson + '\\n' -}}{%- endfor -%}
{{- '</tools>\\nCall a tool: <tool_call>{"name": "...", "arguments": {...}}</tool_call><|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- set words = message.content or '' -%}
{%- if message.role == 'assistant' and loop.index0 < last.user and '</think>' in words -%}
{%- set words = words.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{%- if message.role != 'system' or not tools -%}
{{- '<|im_start|>' + message.role + '\\n' + words -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>{"name": ' + call.function.name | tojson + ', "arguments": ' -}}
{{- call.function.arguments | tojson + '}</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
""".strip()


@dataclass
class Report:
    """What came of one row."""

    template: str
    history: str
    num_conversations: int
    num_steps: int = 0
    num_action_tokens: int = 0
    num_continued: int = 0
    num_extended: int = 0
    num_tool_calls: int = 0
    num_thinking: int = 0
    num_streamed: int = 0
    branches: dict[str, int] = field(default_factory=dict)
    calls_by_api: dict[str, int] = field(default_factory=dict)
    num_differing: int = 0
    num_lost: int = 0
    num_extra: int = 0
    num_misread: int = 0
    max_logprob_gap: float = 0.0
    seconds: float = 0.0

    @property
    def is_faithful(self) -> bool:
        return not (self.num_differing or self.num_lost or self.num_extra or self.num_misread)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--conversations", type=int, default=1000, help="per row")
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    policy = taught_policy()
    rows = []
    for template, history in (("tiny", "exact"), ("stripping", "exact"), ("stripping", "template")):
        rows.append(measure(policy, args.conversations, template=template, history=history))  # type: ignore[arg-type]
    show(rows)
    if not args.no_write:
        machine = f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
        value = {"machine": machine, "model": MODEL, "rows": [asdict(row) for row in rows]}
        RESULT.write_text(json.dumps(value, indent=2) + "\n")


def show(rows: Sequence[Report]) -> None:
    table = Table(title="steps of the pool against what the engine saw and sampled")
    for column in ("template", "history", "talks", "steps", "extended", "calls", "differing", "lost", "extra",
                   "misread", "logprob gap"):  # fmt: skip
        table.add_column(column, justify="right")
    for row in rows:
        counts = (row.num_conversations, row.num_steps, row.num_extended, row.num_tool_calls)
        wrong = (row.num_differing, row.num_lost, row.num_extra, row.num_misread)
        table.add_row(row.template, row.history, *map(str, (*counts, *wrong)), f"{row.max_logprob_gap:.1e}")
    Console(width=120).print(table)


def measure(
    policy: CausalLMPolicy, num_conversations: int, *, template: str, history: History, seed: int = 0
) -> Report:
    """Hold conversations and compare. Everything but the clients' scheduling follows from the seed."""
    tokenizer = load_tokenizer(policy.source)
    if template == "stripping":
        tokenizer.chat_template = STRIPPING
    renderer = Renderer(tokenizer, history)
    report = Report(template, history, num_conversations)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, EmbeddedEngine(policy.model, tokenizer) as engine:
        recorder, pool = Recorder(engine), open_pool(Path(folder) / "pool.db")
        app = create_app(Gateway(recorder, renderer, pool, GatewayConfig(model_name="policy", seed=seed)))
        url, stop = serve_in_thread(app)
        try:
            talks = [Talk(random.Random(f"{seed}/{i}"), i) for i in range(num_conversations)]
            asyncio.run(hold(url, talks))
        finally:
            stop()
        report.num_streamed = sum(talk.num_streamed for talk in talks)
        audit(report, pool, recorder, [reply for talk in talks for reply in talk.replies], renderer, policy)
        pool.close()
    report.seconds = round(time.perf_counter() - started, 1)
    return report


def taught_policy(num_updates: int = 150, batch: int = 8, seed: int = 0) -> CausalLMPolicy:
    """The tiny model after a short lesson in five turns, which it then mixes up."""
    policy = CausalLMPolicy.from_pretrained(MODEL)
    tokenizer = load_tokenizer(policy.source)
    rng = random.Random(seed)

    def example() -> tuple[list[int], list[int]]:
        before = rng.choice(("", TOOLS_END, f"{rng.choice(TURNS)}<|im_end|>\n")) + "<|im_start|>user\n"
        before += "".join(rng.choices(SAID, k=rng.randrange(1, 4))) + "<|im_end|>\n<|im_start|>assistant\n"
        return tokenizer.encode(before), tokenizer.encode(f"{rng.choice(TURNS)}<|im_end|>")

    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=5e-3, weight_decay=0.0)
    for update in range(num_updates):
        optimizer.param_groups[0]["lr"] = 5e-3 * (1 - update / num_updates)
        examples = [example() for _ in range(batch)]
        length = max(len(prompt) + len(turn) for prompt, turn in examples)
        ids, labels = torch.zeros(batch, length, dtype=torch.long), torch.full((batch, length), -100)
        for row, (prompt, turn) in enumerate(examples):
            ids[row, : len(prompt) + len(turn)] = torch.tensor(prompt + turn)
            labels[row, len(prompt) : len(prompt) + len(turn)] = torch.tensor(turn)
        logits = policy.model(ids).logits[:, :-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy


class Recorder:
    """A sampler that notes, by request, what an engine was given and what it gave."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self.max_length = engine.max_length
        self.seen: dict[str, Step] = {}

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        samples = await self._engine.generate(requests)
        for request, sampled in zip(requests, samples, strict=True):
            self._note(request, sampled)
        return samples

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        async for item in self._engine.stream(request):
            if isinstance(item, Sampled):
                self._note(request, item)
            yield item

    def _note(self, request: Request, sampled: Sampled) -> None:
        self.seen[request.id] = sampled.step(request.state)


def audit(
    report: Report,
    pool: Pool,
    recorder: Recorder,
    replies: Sequence[Reply],
    renderer: Renderer,
    policy: CausalLMPolicy,
) -> None:
    """Compare every step with its request and every reply with its step."""
    steps: dict[str, Step] = {}
    for entry in pool.find():
        stored = pool.get(entry.id, with_branches=True)
        by_number = dict(zip(stored.numbers, stored.trajectory.steps, strict=True))
        report.num_continued += sum(step.info["parent"] is not None for step in by_number.values())
        report.num_differing += sum(not goes_on(step, by_number) for step in by_number.values())
        steps |= {f"{step.info['call']}-{step.info['choice']}": step for step in by_number.values()}
    report.num_lost = len(recorder.seen.keys() - steps.keys())
    report.num_extra = len(steps.keys() - recorder.seen.keys())
    report.num_differing += sum(
        not is_same(step, recorder.seen[name]) for name, step in steps.items() if name in recorder.seen
    )
    report.num_misread = sum(
        not is_shown(reply, steps.get(f"{reply.call}-{reply.choice}"), renderer) for reply in replies
    )
    report.num_steps = len(steps)
    report.num_action_tokens = sum(step.num_units for step in steps.values())
    report.num_extended = sum(bool(step.info.get("extended")) for step in steps.values())
    report.num_tool_calls = sum(len(reply.calls) for reply in replies)
    report.num_thinking = sum("</think>" in reply.text for reply in replies)
    report.branches = dict(Counter(str(s.info["branch"]) for s in steps.values() if "branch" in s.info))
    report.calls_by_api = dict(Counter(reply.call.split("-")[0] for reply in replies))
    report.max_logprob_gap = largest_gap(policy, list(steps.values()))


def is_same(step: Step, seen: Step) -> bool:
    """Bit by bit: ids, logprobs, how it was sampled, and under which weights."""
    return (
        step.state == seen.state
        and step.action == seen.action
        and step.behavior_logprobs.tobytes() == seen.behavior_logprobs.tobytes()
        and (step.sampling, step.policy_version) == (seen.sampling, seen.policy_version)
    )


def goes_on(step: Step, by_number: dict[int, Step]) -> bool:
    """Whether a step that says it extends its parent begins with the parent's very ids."""
    if not step.info.get("extended"):
        return True
    parent: Any = by_number[int(step.info["parent"])]  # type: ignore[arg-type]
    before = [*parent.state.prompt_ids.tolist(), *parent.action.action_ids.tolist()]
    assert isinstance(step.state, TokenState)
    return step.state.prompt_ids[: len(before)].tolist() == before


def is_shown(reply: Reply, step: Step | None, renderer: Renderer) -> bool:
    """Whether a client saw what the recorded ids say."""
    if step is None:
        return False
    assert isinstance(step.state, TokenState) and isinstance(step.action, TokenAction)
    text = renderer.read_text(step.action.action_ids)
    if reply.stop is not None:
        text = text.partition(reply.stop)[0]
    logprobs = step.behavior_logprobs.tolist()
    if reply.logprobs is not None and reply.logprobs != logprobs[: len(reply.logprobs)]:
        return False
    if not reply.calls:
        return reply.text == text
    parsed = parse_reply(text, "hermes")
    shown = [(call.name, call.arguments) for call in parsed.tool_calls]
    return shown == reply.calls and parsed.content.split() == reply.text.split()


def largest_gap(policy: CausalLMPolicy, steps: Sequence[Step], at_once: int = 64) -> float:
    """The largest difference between the trainer's logprobs and the engine's."""
    steps = sorted(steps, key=lambda step: step.info["call"])
    parts = [steps[i : i + at_once] for i in range(0, len(steps), at_once)]
    return max(check_parity(policy, part, strict=False).max_abs for part in parts)


if __name__ == "__main__":
    main()
