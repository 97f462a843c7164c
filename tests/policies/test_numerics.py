"""Every process of a run computes with the same switches, and no CPU in half precision."""

from __future__ import annotations

import json
import socket
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runs.small import small_config, warmed_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stepwell.cli import serve
from stepwell.core import ConfigError
from stepwell.engines import EmbeddedEngine
from stepwell.policies import CausalLMPolicy
from stepwell.policies.numerics import set_numerics
from stepwell.pool import open_pool
from stepwell.runs.evaluation.evaluate import evaluate_run
from stepwell.runs.plan.run_plan import plan_run
from stepwell.runs.play.episode import open_live_agent
from stepwell.runs.run import train
from stepwell.runs.sft.sft import train_on_chats
from stepwell.training.rank_link import send_message
from stepwell.training.rank_main import serve_rank
from stepwell.workers.engine_builders import EMBEDDED, RUN
from stepwell.workers.hosts import build_engine


def test_switches_that_something_else_has_turned_are_turned_back() -> None:
    torch.backends.mkldnn.set_flags(False)
    torch.set_float32_matmul_precision("medium")
    threads = torch.get_num_threads()
    set_numerics(threads + 1)
    assert torch.backends.mkldnn.enabled and torch.get_float32_matmul_precision() == "highest"
    assert torch.get_num_threads() == threads + 1
    set_numerics(threads)
    assert torch.get_num_threads() == threads


def spoil_switches() -> None:
    torch.backends.mkldnn.set_flags(False)
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.benchmark = True


def switches() -> tuple[object, ...]:
    """Everything that `set_numerics` sets."""
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    return torch.backends.mkldnn.enabled, precision, threads, torch.backends.cudnn.benchmark


@pytest.mark.slow
def test_a_run_and_what_goes_on_with_it_compute_with_the_same_switches(tmp_path: Path) -> None:
    spoil_switches()
    folder = train(small_config("train.num_updates=1", "eval.num_tasks=0", folder=tmp_path))
    first = switches()
    spoil_switches()
    train(resume=folder)
    assert first == switches() == (True, "highest", 1, False)


@pytest.mark.slow
def test_playing_and_serving_compute_as_runs_do(tmp_path: Path) -> None:
    spoil_switches()
    open_live_agent(warmed_model(), small_config()).close()
    assert switches() == (True, "highest", 1, False)
    spoil_switches()
    args = Namespace(backend=None, model="tiny-0.3m", dtype="float32", device="cpu")
    with open_pool(tmp_path / "pool.db") as pool, ExitStack() as stack:
        serve._open_engine(args, stack, pool)
    assert switches() == (True, "highest", 1, False)


def serve_one_rank(folder: Path) -> None:
    """A rank whose trainer says nothing but how many threads it has."""
    here, there = socket.socketpair()
    with here, there:
        send_message(there, {"is": "start", "num_threads": 1})
        serve_rank(here)


def imitate_chats(folder: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "P _ G"}, {"role": "assistant", "content": "Right"}]}
    (folder / "chats.jsonl").write_text(json.dumps(chat) + "\n")
    train_on_chats("tiny-0.3m", str(folder / "chats.jsonl"), folder / "model", print, epochs=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "compute",
    [
        lambda folder: evaluate_run(warmed_model(), small_config(), num_tasks=1),
        lambda folder: build_engine(
            RUN, {"config": small_config().model_dump(mode="json"), "folder": str(folder)}
        ).close(),
        lambda folder: build_engine(EMBEDDED, {"model": warmed_model()}).close(),
        serve_one_rank,
        imitate_chats,
    ],
    ids=["evaluation", "generator of a run", "generator", "rank", "sft"],
)
def test_whatever_computes_for_a_run_computes_as_the_run_does(
    tmp_path: Path, compute: Callable[[Path], object]
) -> None:
    spoil_switches()
    compute(tmp_path)
    assert switches() == (True, "highest", 1, False)


class RefuseHalf(TorchDispatchMode):
    """Refuses every operation of this thread on half-precision numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        tensors = [item for item in tree_leaves((args, kwargs, found)) if isinstance(item, torch.Tensor)]
        assert not {t.dtype for t in tensors} & {torch.bfloat16, torch.float16}, func
        return found


def test_nothing_of_an_update_with_muon_is_computed_in_half_precision(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    weight.grad = torch.ones(4, 4)
    with RefuseHalf(), pytest.raises(AssertionError, match="aten"):
        torch.optim.Muon([weight]).step()  # torch's own multiplies in bfloat16: the check sees it
    settings = ("train.num_updates=1", "train.optimizer.kind=muon", "recipe.name=steppo", "eval.num_tasks=2")
    config = small_config(*settings, folder=tmp_path)
    with RefuseHalf():
        train(config)


def test_half_precision_on_a_cpu_is_refused_with_what_to_set_instead() -> None:
    with pytest.raises(ConfigError, match=r"bfloat16 needs a GPU.*Set dtype to float32, or device to cuda"):
        CausalLMPolicy.from_pretrained("tiny-0.3m", dtype="bfloat16")
    with pytest.raises(ConfigError, match="needs a GPU"):
        EmbeddedEngine.from_pretrained("tiny-0.3m", dtype="bfloat16")
    with pytest.raises(ConfigError, match="needs a GPU"):
        plan_run(small_config("policy.dtype=bfloat16"))
