"""Generators in other processes, here and behind HTTP: a fault in one stops the run in the same update."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.engines.models import small_model
from tests.runs.small import small_config, warmed_model
from tests.runs.test_resume import wait_for
from tests.variants import keep_quick
from tests.workers.test_http import served

from stepwell.core import ParityError, WorkerError
from stepwell.policies.rotary import find_other_frequencies, read_frequencies
from stepwell.runs.build import worker_builder
from stepwell.runs.build.components import Components
from stepwell.runs.build.worker_groups import WorkerGroups
from stepwell.runs.run import train
from stepwell.services import worker_checks
from stepwell.workers.clients import GeneratorClient

FAULTS = {
    "build_shifted": "positions: the engine read .* steps at other positions than the trainer",
    "build_with_wrong_tables": "rotary tables: generator 0: the engine rotates queries and keys at",
    "build_with_wrong_frequencies": "rotary tables: generator 0: the engine's rotary frequencies",
    "build_with_wrong_weights": "weights .*: generator 0: version 0: .* weights in the engine are not those",
}
CASES = [(place, mode, fault) for place, mode in (("here", "sync"), ("http", "stream")) for fault in FAULTS]
QUICK = [("here", "sync", "build_with_wrong_tables"), ("http", "stream", "build_shifted")]


@pytest.mark.parametrize(("place", "mode", "fault"), keep_quick(CASES, QUICK.__contains__))
def test_a_fault_in_a_generator_stops_the_run_in_its_first_update(
    place: str, mode: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = warmed_model()
    for module in (worker_builder, worker_checks):
        monkeypatch.setattr(module, "RUN", f"tests.workers.faulty_engines:{fault}")
    serving = served(devices=("cpu",), models={Path(model).name: model}, num_threads=1)
    with serving if place == "http" else nullcontext() as url:
        settings = [
            "recipe.name=rloo",
            "recipe.kl_coef=0",
            f"workers.mode={mode}",
            "workers.simulators.num_workers=1",
            "workers.generators.max_wait_ms=1",
            "eval.num_tasks=0",
        ]
        if place == "http":
            settings += [
                f"workers.hosts={{far='{url}'}}",
                "workers.placement=disaggregated",
                "workers.generators.devices=['far/cpu']",
            ]
        with pytest.raises(ParityError, match=f"(?s)update 1: engine and trainer disagree .*{FAULTS[fault]}"):
            train(small_config(*settings, folder=tmp_path))


def test_a_generator_whose_check_fails_is_not_taken_for_a_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warmed_model()
    monkeypatch.setattr(worker_builder, "RUN", "tests.workers.faulty_engines:build_with_broken_check")
    settings = ("recipe.name=rloo", "recipe.kl_coef=0", "workers.mode=sync", "eval.num_tasks=0")
    with pytest.raises(WorkerError, match="the device is gone"):
        train(small_config(*settings, "train.num_updates=2", folder=tmp_path))


def test_a_check_does_not_wait_for_a_generator_that_is_being_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warmed_model()
    monkeypatch.setattr(worker_builder, "RUN", "tests.workers.faulty_engines:build_slowly_again")
    asked, check = list[str](), GeneratorClient.check_weights

    async def note_check(self: GeneratorClient, frequencies: Mapping[str, Any]) -> None:
        asked.append(self.name)
        if asked.count("generator 0") > 1:  # it would be waited for: let the test fail instead of hang
            (tmp_path / "go").touch()
        await check(self, frequencies)

    monkeypatch.setattr(GeneratorClient, "check_weights", note_check)
    config = small_config("workers.mode=sync", "workers.generators.num_workers=2")
    components = Components(config, tmp_path)
    groups = WorkerGroups.start(config, components)
    try:
        groups.publish(0, components.policy)
        groups.check_weights()
        (tmp_path / "slow").touch()
        killed, other = groups._generators
        pid = killed.read_health().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_for((tmp_path / "building").exists)
        groups.check_weights()
        assert asked == ["generator 0", "generator 1", "generator 1"]
        health = killed.read_health()
        assert health.pid not in (None, pid) and not health.is_alive and other.read_health().is_alive
        (tmp_path / "go").touch()
        wait_for(lambda: killed.read_health().is_alive)
        groups.check_weights()
        assert asked[3:] == ["generator 0", "generator 1"]
    finally:
        groups.close()
        components.close()


def test_frequencies_of_another_processor_may_differ_in_the_last_bits_only() -> None:
    own = read_frequencies(small_model("llama"))
    assert min(own) == "rotary_emb.inv_freq"
    for share, expected in ((1.0, None), (1.0 + 2e-7, None), (1.0 + 1e-6, "rotary_emb.inv_freq")):
        theirs = {name: one * share for name, one in own.items()}
        assert find_other_frequencies(own, theirs) == expected
    assert find_other_frequencies(own, {name: one * (1 + 2e-7) for name, one in own.items()}, 0.0)
    assert find_other_frequencies(own, {"rotary_emb.inv_freq": own["rotary_emb.inv_freq"][1:]})
