"""Positions are compared exactly: a shift by one stops a run at once.

No logprob in bfloat16 shows such a shift. Runs in bfloat16 are refused on CPUs; one test lifts the refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest
import torch
from tests.engines.faulty_positions import INDEX_FAULTS, change_frequencies, shift_indices, shift_tables
from tests.runs.small import small_components, small_config

from stepwell.core import ParityError, WeightsError
from stepwell.engines import EmbeddedEngine
from stepwell.monitors import Monitor
from stepwell.policies import causal_lm
from stepwell.pool import Filter, open_pool
from stepwell.runs.loop.sources import PlayedSource
from stepwell.runs.loop.task_feeds import build_feed
from stepwell.runs.loop.training_loop import TrainingLoop
from stepwell.runs.run import train

WRONG_STEPS = r"the engine read [1-4] of 4 steps at other positions than the trainer; the first is .*step 0"
WRONG_TABLES: dict[str, Callable[[EmbeddedEngine], AbstractContextManager[None]]] = {
    r"the engine rotates queries and keys at \d+ of \d+ positions \(from 64 on\) by other": shift_tables,
    "the engine's rotary frequencies .* are not the trainer's": change_frequencies,
}
FAULTS = [*((WRONG_STEPS, plant) for plant in INDEX_FAULTS.values()), *WRONG_TABLES.items()]
SHORT = ("train.tasks_per_update=2", "env.options={size=3, max_turns=1}", "sampling.max_tokens=4")


class Remember(Monitor):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def started(tmp_path: Path, *settings: str) -> TrainingLoop:
    components = small_components("recipe.name=grpo", "recipe.kl_coef=0", *settings)
    loop = TrainingLoop(components.config, tmp_path, components, Remember())
    loop._tasks = components.tasks("train", 8, 0)  # type: ignore[arg-type]
    loop._feed = build_feed(components, loop._tasks, tmp_path, tmp_path.name, print)
    loop._source = loop._make_source()
    loop._publish()
    return loop


def copy_weights(loop: TrainingLoop) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in loop.components.policy.state_dict().items()}


@pytest.fixture
def slow_bfloat16(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lift the refusal of 16 bits on a CPU, which is there for their speed; oneDNN would refuse them too."""
    monkeypatch.setattr(causal_lm, "check_dtype", lambda dtype, device: None)
    with torch.backends.mkldnn.flags(enabled=False):
        yield


@pytest.mark.usefixtures("slow_bfloat16")
@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        ("cpu", "float32"),
        pytest.param("cpu", "bfloat16", marks=pytest.mark.slow),
        pytest.param("cuda", "bfloat16", marks=pytest.mark.gpu),
    ],
)
def test_a_fault_in_positions_stops_the_run_at_once_and_before_any_weight_changes(
    tmp_path: Path, device: str, dtype: str
) -> None:
    loop = started(tmp_path, f"policy.device={device}", f"policy.dtype={dtype}", *SHORT)
    before = copy_weights(loop)
    is_emulated = device == "cpu" and dtype == "bfloat16"  # an update takes seconds
    faults = [FAULTS[0], FAULTS[-2]] if is_emulated else FAULTS
    for place, (words, plant) in enumerate(faults):
        loop._source = PlayedSource(loop.config, loop.components, f"fault-{place}", loop._feed)
        told = rf"update 1: engine and trainer disagree about .*{words}"
        with plant(loop.components.engine), pytest.raises(ParityError, match=told):
            loop._update()
    after = loop.components.policy.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    if not is_emulated:
        loop._source = loop._make_source()
        loop._update()  # the engine is whole again
        assert loop.state.update == 1


def test_other_positions_are_only_noted_where_that_was_asked_for(tmp_path: Path) -> None:
    loop = started(tmp_path, "parity.on_mismatch=warn", *SHORT)
    with shift_indices(loop.components.engine):
        loop._update()
    assert loop.monitor.said[0].startswith(  # type: ignore[attr-defined]
        "update 1: engine and trainer disagree about positions: the engine read 4 of 4 steps "
    )


def test_an_engine_with_wrong_tables_takes_no_new_weights(tmp_path: Path) -> None:
    engine = started(tmp_path).components.engine
    with shift_tables(engine), pytest.raises(WeightsError, match="the engine rotates queries and keys at"):
        engine.load_weights(1, engine.live_weights())
    assert engine.version == 0


@pytest.mark.parametrize(
    "settings",
    [
        ["agent.context=summary", "agent.context_turns=1", "engine.num_slots=3", "engine.max_batch_size=3"],
        ["workers.mode=stream", "workers.processes=false"],
    ],
    ids=str,
)
def test_a_healthy_run_marks_every_step_and_is_never_stopped(tmp_path: Path, settings: list[str]) -> None:
    wish = ("recipe.name=rloo", "recipe.kl_coef=0", "train.num_updates=1", "eval.num_tasks=2", *settings)
    folder = train(small_config(*wish, folder=tmp_path))
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        steps = [
            step
            for entry in pool.find(Filter(channel="train"))
            for step in pool.get(entry.id).trajectory.steps
        ]
    assert steps and all(step.position_mark is not None for step in steps)
