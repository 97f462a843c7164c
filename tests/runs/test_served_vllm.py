"""Training runs through a real vLLM server; `scripts/test_extra_vllm.sh` starts it and runs this."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from tests.runs.small import SMALL, timeless

from stepwell.config.loading import load_config
from stepwell.pool import Filter, open_pool
from stepwell.runs.run import train

URL, MODEL = os.environ.get("STEPWELL_VLLM_PROCESSED", ""), os.environ.get("STEPWELL_VLLM_MODEL", "")
pytestmark = [
    pytest.mark.extra_vllm,
    pytest.mark.skipif(not (URL and MODEL), reason="run scripts/test_extra_vllm.sh"),
]
SERVED = ("engine.backend=vllm", f'engine.urls=["{URL}"]', "engine.max_length=512", f"policy.model={MODEL}")
STREAM = (
    "workers.mode=stream",
    "workers.simulators.num_workers=1",
    "workers.simulators.batch_size=4",
    "workers.hang_s=300",
    "sampling.temperature=1.0",
)


COLLECTIVE = ("sampling.temperature=0.8", "engine.server.weight_transfer=collective")


@pytest.mark.parametrize(
    "settings",
    [("sampling.temperature=0.8",), COLLECTIVE, STREAM, (*STREAM, COLLECTIVE[1])],
    ids=["in step", "in step, collective", "stream", "stream, collective"],
)
def test_a_run_gets_its_samples_from_vllm_and_gives_it_every_update(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    where = (f"folder={tmp_path}", "name=run", "recipe.name=rloo", "train.num_updates=3")
    folder = train(load_config(None, [*SMALL, *SERVED, *where, *settings]))
    found = [entry for entry in timeless(folder) if entry.kind == "update"]
    assert [entry.update for entry in found] == [1, 2, 3]
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        played = [pool.get(entry.id).trajectory for entry in pool.find(Filter(channel="train"))]
    versions = {step.policy_version.last for trajectory in played for step in trajectory.steps}
    assert 0 in versions and max(versions) >= 1  # in a stream an update may come between two samples
    if "workers.mode=stream" not in settings:
        assert versions == {0, 1, 2}
        assert max(entry.values["parity/max"] for entry in found) < 1e-4
