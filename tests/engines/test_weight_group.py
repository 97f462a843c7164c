"""Weights by collective: broadcast to the workers of a server, without a folder."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engines.served_engines import VLLM_URL, changed_weights, open_engine, serve_models
from tests.engines.served_models import read_tiny
from tests.engines.test_served import ask

from stepwell.core.errors import ConfigError, WeightsError
from stepwell.engines.parity import check_parity
from stepwell.engines.served import weight_group
from stepwell.engines.served.vllm_worker import plan_buckets
from stepwell.policies.causal_lm import CausalLMPolicy

COLLECTIVE = {"weight_transfer": "collective"}


def test_a_server_gets_the_trainers_weights_to_the_last_bit_and_no_folder_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_group, "BUCKET_BYTES", 100_000)
    with (
        serve_models("vllm") as (server,),
        open_engine("vllm", [server.url], tmp_path, server=COLLECTIVE) as engine,
    ):
        groups = set()
        for version in (0, 1, 2):
            new = changed_weights(read_tiny()[0], 0.01 * (version + 1), seed=version)
            engine.load_weights(version, new)
            own = server.model.state_dict()
            assert all(torch.equal(own[name], value) for name, value in new.items())
            groups.add(server.worker.report_stepwell_group()["group"])
        assert len(groups) == 1 and not (tmp_path / "weights").exists()
        (sample,) = engine.generate_blocking([ask()])
        assert sample.policy_version.last == 2 and server.label.endswith("-2")
        server.worker._stepwell_group = None  # its process was restarted
        engine.load_weights(3, read_tiny()[0].state_dict())
        assert server.worker.report_stepwell_group()["group"] not in groups


@pytest.mark.parametrize("fault", ["torn", "ignores_updates", "damaged"])
def test_a_server_that_keeps_other_weights_is_found(fault: str, tmp_path: Path) -> None:
    model = read_tiny()[0]
    with (
        serve_models("vllm") as (server,),
        open_engine("vllm", [server.url], tmp_path, server=COLLECTIVE) as engine,
    ):
        engine.load_weights(0, model.state_dict())
        server.faults.add(fault)
        with pytest.raises(WeightsError, match="weights"):
            engine.load_weights(1, changed_weights(model, 0.05))


class DamagingGroup:
    """A group on a line that flips a bit."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def broadcast(self, raw: torch.Tensor, root: int) -> DamagingGroup:
        self._group.broadcast(raw, root).wait()
        raw[7] ^= 1
        return self

    def wait(self) -> None:
        """It has come already."""


def test_bytes_that_were_damaged_on_their_way_are_found(tmp_path: Path) -> None:
    with (
        serve_models("vllm") as (server,),
        open_engine("vllm", [server.url], tmp_path, server=COLLECTIVE) as engine,
    ):
        engine.load_weights(0, read_tiny()[0].state_dict())
        name, group, store = server.worker._stepwell_group
        server.worker._stepwell_group = name, DamagingGroup(group), store
        with pytest.raises(WeightsError, match="1 of 1 workers received other weights than were sent"):
            engine.load_weights(1, read_tiny()[0].state_dict())


def test_a_server_without_the_extension_is_told_how_to_start(tmp_path: Path) -> None:
    with (
        serve_models("vllm", faults={"no_extension"}) as (server,),
        open_engine("vllm", [server.url], tmp_path, server=COLLECTIVE) as engine,
        pytest.raises(ConfigError, match="--worker-extension-cls stepwell"),
    ):
        engine.load_weights(0, read_tiny()[0].state_dict())
    with pytest.raises(ValueError, match="only vllm does"):
        open_engine("sglang", ["http://127.0.0.1:1"], tmp_path, server=COLLECTIVE)


def test_buckets_hold_every_part_once_and_in_order() -> None:
    parts = [[f"w{i}", "float32", [i % 5, 3]] for i in range(40)]
    buckets = list(plan_buckets(parts, 100))
    assert [part for bucket in buckets for part in bucket] == parts
    assert max(sum(12 * (part[2][0]) for part in bucket) for bucket in buckets) <= 100


@pytest.mark.extra_vllm
@pytest.mark.skipif(not VLLM_URL, reason="run scripts/test_extra_vllm.sh")
def test_real_vllm_takes_weights_by_collective_while_it_serves(tmp_path: Path) -> None:
    model = read_tiny()[0]
    with open_engine("vllm", [VLLM_URL], tmp_path, server=COLLECTIVE) as engine:
        for version in (0, 1, 2):
            new = changed_weights(model, 0.05 * (version + 1), seed=version)
            engine.load_weights(version, new)
            policy = CausalLMPolicy(copy.deepcopy(model))
            policy.model.load_state_dict(new)
            requests = [ask(seed=i) for i in range(4)]
            samples = engine.generate_blocking(requests)
            steps = [one.step(request.state) for one, request in zip(samples, requests, strict=True)]
            assert check_parity(policy, steps).max_abs < 1e-4
            assert {sample.policy_version.last for sample in samples} == {version}
        assert not (tmp_path / "weights").exists()
        times = engine.list_times()[VLLM_URL]
        print(f"paused {times.paused_s:.3f} s, probes {times.probes_s:.3f} s")
