"""Training runs, whole, whose samples come from servers that get new weights after every update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.engines.completions_server import serving
from tests.engines.model_server import ModelServer
from tests.runs.small import small_config, timeless, warmed_model

from stepwell.core import ConfigError, WeightsError
from stepwell.engines.runner_factory import open_model
from stepwell.pool import Filter, open_pool
from stepwell.runs.build.worker_builder import share_servers
from stepwell.runs.run import train

PROBES = ("engine.server.num_probes=1", "engine.server.probe_tokens=8")


@pytest.fixture
def servers() -> Iterator[list[ModelServer]]:
    """A vLLM and an SGLang server with the policy's first weights."""
    model, tokenizer = open_model(warmed_model(), "float32")
    other, _ = open_model(warmed_model(), "float32")
    context = model.config.max_position_embeddings
    with (
        serving(ModelServer(model, tokenizer, "processed", context=context)) as vllm,
        serving(ModelServer(other, tokenizer, kind="sglang", context=context)) as sglang,
    ):
        yield [vllm, sglang]


def at(server: ModelServer) -> tuple[str, ...]:
    return (*PROBES, f"engine.backend={server.kind}", f'engine.urls=["{server.url}"]')


def read_versions(folder: Path) -> list[tuple[int, int]]:
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        stored = [pool.get(entry.id).trajectory for entry in pool.find(Filter(channel="train"))]
    return [(s.policy_version.first, s.policy_version.last) for t in stored for s in t.steps]


@pytest.mark.slow
def test_a_run_in_step_learns_from_the_samples_of_a_server_that_gets_every_update(
    servers: list[ModelServer], tmp_path: Path
) -> None:
    settings = ("recipe.name=rloo", "sampling.temperature=0.7", "eval.every=0")
    folder = train(small_config(*settings, *at(servers[0]), folder=tmp_path, name="served"))
    assert set(read_versions(folder)) == {(0, 0), (1, 1)}
    saved = load_file(folder / "checkpoints" / "update-000002" / "model.safetensors")
    own = servers[0].model.state_dict()
    assert all(torch.equal(own[name], value) for name, value in saved.items())
    gaps = [entry.values["parity/mean"] for entry in timeless(folder) if entry.kind == "update"]
    assert len(gaps) == 2 and max(gaps) < 1e-5
    assert not (folder / "served_weights").exists()


@pytest.mark.slow
def test_a_stream_of_episodes_comes_from_a_server_while_weights_change(
    servers: list[ModelServer], tmp_path: Path
) -> None:
    settings = (
        "recipe.name=rloo",
        "workers.mode=stream",
        "workers.processes=false",
        "workers.simulators.num_workers=1",
        "workers.simulators.batch_size=4",
        "train.num_updates=3",
    )
    folder = train(small_config(*settings, *at(servers[1]), folder=tmp_path))
    assert [entry.update for entry in timeless(folder) if entry.kind == "update"] == [1, 2, 3]
    versions = read_versions(folder)
    assert {last for _, last in versions} >= {0, 1} and all(first <= last for first, last in versions)
    saved = load_file(folder / "checkpoints" / "update-000003" / "model.safetensors")
    own = servers[1].model.state_dict()
    assert all(torch.equal(own[name], value) for name, value in saved.items())


@pytest.mark.slow
def test_a_run_stops_before_it_learns_from_a_server_that_keeps_its_old_weights(
    servers: list[ModelServer], tmp_path: Path
) -> None:
    server = servers[0]

    def forget_to_load(path: str, body: dict[str, object]) -> None:
        if path == "/update_weight_version" and str(body["new_version"]).endswith("-0"):
            server.faults.add("ignores_updates")

    server.answers = forget_to_load
    with pytest.raises(WeightsError, match="Its samples were not used"):
        train(small_config("recipe.name=rloo", *at(server), folder=tmp_path, name="stale"))
    assert set(read_versions(tmp_path / "stale")) == {(0, 0)}
    assert len([e for e in timeless(tmp_path / "stale") if e.kind == "update"]) <= 1


def test_what_servers_cannot_do_is_refused_before_a_run_starts(tmp_path: Path) -> None:
    served = (*PROBES, "engine.backend=vllm", 'engine.urls=["http://127.0.0.1:9", "http://127.0.0.1:8"]')
    stream = (*served, "recipe.name=rloo", "workers.mode=stream")
    with pytest.raises(ConfigError, match=r"num_workers \(3\) exceeds the servers in engine.urls \(2\)"):
        train(small_config(*stream, "workers.generators.num_workers=3", folder=tmp_path))
    with pytest.raises(ConfigError, match="generators are on this machine"):
        train(small_config(*stream, 'workers.generators.devices=["far/cpu"]', folder=tmp_path))
    shares = [share_servers(small_config(*served), i, 2).engine.urls for i in range(2)]
    assert shares == [("http://127.0.0.1:9",), ("http://127.0.0.1:8",)]
