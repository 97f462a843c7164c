"""How fast the embedded engine samples, against transformers' batched `generate`, in one run.

Both get the same prompts, the same number of tokens, greedy decoding and no end token;
`generate` gets each turn's full prompts, left-padded into one batch, with its cache on.

CPU: a small Qwen3-style model with random weights.
* multi-turn: conversations whose every turn appends an observation to the history
* single-turn: the same prompts once, nothing shared

CUDA: SmolLM2-135M's architecture in bfloat16, with random weights unless `--model` names a
directory (values do not change the work). `generate` is launch-bound, so it gets fewer
tokens; times are per token step of the whole batch, prompts included and told apart.

In both cases the greedy tokens are compared with `generate`'s, in float32.

    python benchmarks/engine_speed.py --device cpu     # results/engine_speed_cpu.json
    python benchmarks/engine_speed.py --device cuda    # results/engine_speed_h200.json
    python benchmarks/engine_speed.py --small          # a quick look; writes nothing
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from stepwell.config.engine import EngineConfig
from stepwell.core.protocols import Request, SamplingParams
from stepwell.core.step import TokenState
from stepwell.engines.embedded import EmbeddedEngine

RESULTS = Path(__file__).parent / "results"
REPEATS = 3
SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}
Prompts = list[list[int]]


def tiny_model() -> Any:
    """About 2.3 M parameters, the size of policies that train on a laptop."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=2048,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        initializer_range=0.2,
    )
    return endless(Qwen3ForCausalLM(config).eval())


def large_model(directory: str | None, dtype: torch.dtype) -> Any:
    if directory is not None:
        return endless(AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval().cuda())
    torch.manual_seed(0)
    return endless(LlamaForCausalLM(LlamaConfig(**SMOLLM2)).to(dtype).eval().cuda())


def endless(model: Any) -> Any:
    """No end token, so that both sides sample the same number of tokens."""
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def random_prompts(num: int, low: int, high: int, vocab: int, seed: int = 0) -> Prompts:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(low, high + 1, (num,), generator=generator).tolist()
    return [torch.randint(3, vocab, (n,), generator=generator).tolist() for n in lengths]


def by_generate(model: Any, prompts: Prompts, num_tokens: int) -> tuple[Prompts, float]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    start = now()
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=num_tokens, use_cache=True
        )
    seconds = now() - start
    return out[:, width:].tolist(), seconds


def by_engine(
    engine: EmbeddedEngine, prompts: Prompts, num_tokens: int, named: bool, **params: Any
) -> tuple[Prompts, float]:
    params = {"max_tokens": num_tokens, "temperature": 0.0, "ignore_end": True, **params}
    start = now()
    requests = [
        Request(TokenState(p), SamplingParams(**params), f"conversation {i}" if named else None)
        for i, p in enumerate(prompts)
    ]
    samples = engine.generate_blocking(requests)
    return [sample.action.action_ids.tolist() for sample in samples], now() - start


def now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def multi_turn(
    model: Any, conversations: int, turns: int, num_tokens: int, observation: int
) -> dict[str, Any]:
    """Both sides walk the same conversations; each turn is timed on both."""
    vocab = model.config.vocab_size
    config = EngineConfig(max_batch_size=conversations, num_slots=2 * conversations)
    theirs_s = ours_s = 0.0
    equal = total = 0
    with EmbeddedEngine(model, config=config) as engine:
        histories = random_prompts(conversations, 96, 128, vocab)
        for turn in range(turns):
            theirs, seconds = by_generate(model, histories, num_tokens)
            theirs_s += seconds
            ours, seconds = by_engine(engine, histories, num_tokens, named=True)
            ours_s += seconds
            equal += sum(a == b for a, b in zip(ours, theirs, strict=True))
            total += len(ours)
            seen = random_prompts(conversations, observation, observation, vocab, seed=turn + 1)
            histories = [h + a + o for h, a, o in zip(histories, theirs, seen, strict=True)]
    return {
        "setting": f"{conversations} conversations x {turns} turns, {num_tokens} tokens per action",
        "generate_s": theirs_s,
        "engine_s": ours_s,
        "ratio": theirs_s / ours_s,
        "equal_actions": f"{equal}/{total}",
    }


def single_turn(model: Any, batch: int, num_tokens: int) -> dict[str, Any]:
    prompts = random_prompts(batch, 96, 128, model.config.vocab_size)
    theirs, theirs_s = min((by_generate(model, prompts, num_tokens) for _ in range(2)), key=lambda r: r[1])
    runs = []
    for _ in range(2):
        with EmbeddedEngine(model, config=EngineConfig(max_batch_size=batch)) as engine:
            runs.append(by_engine(engine, prompts, num_tokens, named=False))
    ours, ours_s = min(runs, key=lambda r: r[1])
    return {
        "setting": f"{batch} prompts, {num_tokens} tokens per action",
        "generate_s": theirs_s,
        "engine_s": ours_s,
        "ratio": theirs_s / ours_s,
        "equal_actions": f"{sum(a == b for a, b in zip(ours, theirs, strict=True))}/{batch}",
    }


def measure_cpu(small: bool) -> list[dict[str, Any]]:
    model = tiny_model()
    by_generate(model, [[5, 6, 7]], 2)  # imports and allocators
    conversations, turns = (8, 3) if small else (32, 6)
    rows = [
        {"what": "multi-turn", **multi_turn(model, conversations, turns, num_tokens=16, observation=32)},
        {
            "what": "multi-turn, long",
            **multi_turn(model, conversations, turns, num_tokens=32, observation=96),
        },
        {"what": "single-turn", **single_turn(model, 8 if small else 32, 8 if small else 64)},
        {"what": "single request", **single_turn(model, 1, 8 if small else 64)},
    ]
    return rows


def per_step(times: list[tuple[int, float]]) -> float:
    """Seconds per token step from runs of two lengths: what both share, the prompt, drops out."""
    (n1, s1), (n2, s2) = times
    return (s2 - s1) / (n2 - n1)


def measure_cuda(directory: str | None, small: bool) -> list[dict[str, Any]]:
    rows = []
    model = large_model(directory, torch.bfloat16)
    vocab = model.config.vocab_size
    for batch in (64, 256):
        prompts = random_prompts(batch, 96, 160, vocab)
        by_generate(model, prompts, 2)
        lengths = (4, 12) if small else (4, 36)
        theirs = per_step([(n, by_generate(model, prompts, n)[1]) for n in lengths])
        # all prompts in one pass, so that every timed step decodes the whole batch
        config = EngineConfig(
            max_batch_size=batch, num_slots=2 * batch, max_length=1024, prefill_tokens=65536
        )
        with EmbeddedEngine(model, config=config) as engine:
            rows += [
                {
                    "what": f"decoding, {name}",
                    "setting": f"batch {batch}",
                    "generate_ms": 1e3 * theirs,
                    **decoding(engine, batch, vocab, theirs, params),
                }
                for name, params in (
                    ("greedy", {}),
                    ("sampled", {"temperature": 1.0}),
                    ("sampled, top-p 0.95", {"temperature": 1.0, "top_p": 0.95}),
                )
            ]
    rows.append({"what": "equality, float32", **cuda_equality(directory)})
    return rows


def decoding(engine: EmbeddedEngine, batch: int, vocab: int, theirs: float, params: Any) -> dict[str, Any]:
    """Time per step, and tokens per second of whole requests on prompts never seen before.

    The first run of each length warms up (graph capture, kernels for its shapes); medians of the rest.
    """
    runs = []
    for num_tokens in (16, 256):
        seconds = []
        for round_number in range(1 + REPEATS):
            prompts = random_prompts(batch, 96, 160, vocab, seed=1000 * num_tokens + round_number)
            seconds.append(by_engine(engine, prompts, num_tokens, named=False, **params)[1])
        runs.append((num_tokens, statistics.median(seconds[1:])))
    ours = per_step(runs)
    return {
        "engine_ms": 1e3 * ours,
        "ratio": theirs / ours,
        "engine_tokens_per_s": batch / ours,
        "with_prompts_tokens_per_s": batch * runs[1][0] / runs[1][1],
    }


def cuda_equality(directory: str | None) -> dict[str, Any]:
    """Greedy tokens of the captured engine against `generate`, without the tensor cores' rounding."""
    torch.backends.cuda.matmul.allow_tf32 = False
    model = large_model(directory, torch.float32)
    prompts = random_prompts(32, 20, 100, model.config.vocab_size, seed=5)
    theirs, _ = by_generate(model, prompts, 24)
    with EmbeddedEngine(model, config=EngineConfig(max_batch_size=32, max_length=256)) as engine:
        ours, _ = by_engine(engine, prompts, 24, named=False)
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    return {"setting": "32 prompts, 24 tokens per action", "equal_actions": f"{same}/32"}


def machine(device: str) -> str:
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    threads = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads used"
    return f"{platform.machine()}, {threads}, torch {torch.__version__}"


def show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        numbers = [
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in row.items()
            if key not in ("what", "setting")
        ]
        print(f"{row['what']:<28} {row['setting']:<58} " + "  ".join(numbers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", help="a model directory for CUDA, in place of random weights")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = measure_cuda(args.model, args.small) if args.device == "cuda" else measure_cpu(args.small)
    weights = args.model or "random weights"
    name = "SmolLM2-135M's architecture" if args.device == "cuda" else "Qwen3-style, 2.3 M parameters"
    result = {"machine": machine(args.device), "model": f"{name}, {weights}", "rows": rows}
    print(f"{result['machine']}; {result['model']}")
    show(rows)
    if not args.small:
        path = RESULTS / f"engine_speed_{'h200' if args.device == 'cuda' else 'cpu'}.json"
        path.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
