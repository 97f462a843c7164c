"""How fast prompts are made turn by turn, against rendering the whole conversation every turn.

FrozenLake-like dialogues with the tiny tokenizer: a system message of some 200 tokens, boards of 19,
short replies. Ours is a `Conversation` with exact history; the peer is `apply_chat_template` over all
messages so far, as most training loops do. `start` is the first prompt, `extend` any later one,
`record` noting the sampled ids (which the peer need not do). Every board is new; the roles were
seen before, as they are from an update's third episode on. Medians, one thread, in microseconds.

    python benchmarks/render_speed.py            # results/render_speed.json
    python benchmarks/render_speed.py --small    # a quick look; writes nothing
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stepwell.agents import Agent
from stepwell.config.run import AgentConfig
from stepwell.envs.registry import make_env
from stepwell.rendering import Conversation, Message, Renderer
from stepwell.rendering.tiny import build_tokenizer

RESULT = Path(__file__).parent / "results" / "render_speed.json"
REPLY = "<answer>Up,Left</answer>"
Times = dict[str, list[float]]


def boards(count: int, rng: random.Random) -> list[str]:
    rows = [["".join(rng.choices("____O", k=4)) for _ in range(4)] for _ in range(count)]
    return ["\n".join(lines) for lines in rows]


def timed(times: Times, name: str, call: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    value = call()
    times[name].append(time.perf_counter() - start)
    return value


def ours(renderer: Renderer, system: str, texts: list[str], action: list[int], times: Times) -> list[int]:
    first = (Message.system(system), Message.user(texts[0]))
    talk = timed(times, "start", lambda: Conversation(renderer, first))
    for text in texts[1:]:
        timed(times, "record", lambda: talk.record_action(action))
        message = Message.user(text)
        timed(times, "extend", lambda message=message: talk.add(message))
    return list(talk.prompt.prompt_ids.tolist())


def whole(tokenizer: Any, system: str, texts: list[str], times: Times) -> list[int]:
    messages = [{"role": "system", "content": system}]
    ids: list[int] = []
    for index, text in enumerate(texts):
        messages.append({"role": "user", "content": text})
        name = "extend" if index else "start"
        ids = timed(
            times,
            name,
            lambda: tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False),
        )
        messages.append({"role": "assistant", "content": REPLY})
    return ids


def measure(num_turns: int, num_dialogues: int) -> dict[str, Any]:
    tokenizer = build_tokenizer()
    renderer = Renderer(tokenizer)
    system = Agent(make_env("frozenlake", {}).description, AgentConfig()).system_prompt()
    action = tokenizer.encode(f"{REPLY}<|im_end|>", add_special_tokens=False)
    rng = random.Random(0)
    for _ in range(2):
        ours(renderer, system, boards(num_turns, rng), action, defaultdict(list))
    times: dict[str, Times] = {"ours": defaultdict(list), "whole": defaultdict(list)}
    dialogues = [boards(num_turns, rng) for _ in range(num_dialogues)]
    made = [ours(renderer, system, texts, action, times["ours"]) for texts in dialogues]
    expected = [whole(tokenizer, system, texts, times["whole"]) for texts in dialogues]
    assert made == expected, "both must make the same prompts"
    medians = {who: {k: 1e6 * statistics.median(v) for k, v in t.items()} for who, t in times.items()}
    return {"turns": num_turns, "dialogues": num_dialogues, "prompt_tokens": len(made[0]), **medians}


def show(rows: list[dict[str, Any]], cpu: str) -> None:
    table = Table(title=f"median microseconds, one thread, {cpu}")
    for column in ("turns", "last prompt (tokens)", "what", "ours", "whole conversation", "whole / ours"):
        table.add_column(column, justify="right")
    for row in rows:
        for what in ("start", "record", "extend"):
            peer = row["whole"].get(what)
            mine = row["ours"][what]
            cells = (f"{peer:,.0f}", f"{peer / mine:,.1f}×") if peer else ("", "")
            table.add_row(str(row["turns"]), str(row["prompt_tokens"]), what, f"{mine:,.0f}", *cells)
    Console(width=110).print(table)


def cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="few dialogues, for a quick look")
    arguments = parser.parse_args()
    rows = [measure(turns, count // (10 if arguments.small else 1)) for turns, count in ((3, 500), (20, 50))]
    machine = {"cpu": cpu_name(), "python": platform.python_version()}
    show(rows, machine["cpu"])
    if not arguments.small:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
