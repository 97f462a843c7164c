"""Training runs, whole, of a policy that sees, whose samples come from a server: a local one and real vLLM.

`scripts/test_extra_vllm.sh` starts the real one and runs this.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.engines.completions_server import serving
from tests.engines.seeing_server import SeeingServer
from tests.engines.served_models import SEEING, write_seeing
from tests.runs.small import timeless
from tests.runs.test_seeing import config

from stepwell.core import TokenState
from stepwell.engines.runner_factory import open_model
from stepwell.pool import Filter, open_pool
from stepwell.runs.run import train

URL, MODEL = os.environ.get("STEPWELL_VLLM_SEEING", ""), os.environ.get("STEPWELL_VLLM_SEEING_MODEL", "")
REAL = pytest.param(
    "real vllm",
    marks=[pytest.mark.extra_vllm, pytest.mark.skipif(not URL, reason="run scripts/test_extra_vllm.sh")],
)
STREAM = (
    "workers.mode=stream",
    "workers.processes=false",
    "workers.simulators.num_workers=1",
    "workers.simulators.batch_size=4",
    "workers.hang_s=300",
)


@pytest.fixture(params=[*SEEING, REAL])
def served(request: Any, tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """The settings of a run at the server."""
    if request.param == "real vllm":
        yield _name_server(URL, MODEL)
        return
    folder = write_seeing(tmp_path / "model", request.param)
    model, tokenizer = open_model(folder, "float32")
    with serving(SeeingServer(model, tokenizer, "processed", context=512)) as server:
        yield _name_server(server.url, str(folder))


def _name_server(url: str, model: str) -> tuple[str, ...]:
    return (
        *(f"policy.model={model}", "engine.backend=vllm", f'engine.urls=["{url}"]'),
        *("engine.server.num_probes=2", "engine.server.probe_tokens=8"),
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", [(), STREAM], ids=["in step", "stream"])
def test_a_run_that_sees_gets_its_samples_from_a_server_that_gets_every_update(
    served: tuple[str, ...], how: tuple[str, ...], tmp_path: Path
) -> None:
    settings = ("recipe.name=rloo", "sampling.temperature=0.8", "policy.train_vision=all", *how)
    start = ("train.num_updates=3", "warm_start.epochs=2", "eval.num_tasks=2")
    folder = train(config(*served, *settings, *start, folder=tmp_path))
    found = [entry for entry in timeless(folder) if entry.kind == "update"]
    assert [entry.update for entry in found] == [1, 2, 3]
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        played = [pool.get(entry.id).trajectory for entry in pool.find(Filter(channel="train"))]
    steps = [step for trajectory in played for step in trajectory.steps]
    assert all(isinstance(step.state, TokenState) and step.state.images for step in steps)
    versions = {step.policy_version.last for step in steps}
    assert 0 in versions and max(versions) >= 1
    if not how:
        assert versions == {0, 1, 2}
        assert max(entry.values["parity/max"] for entry in found) < 1e-4
