"""Placement: the three words mean what they say, and what cannot be held is refused with the reason."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.runs.small import small_config, timeless

from stepwell.config.workers import WorkersConfig
from stepwell.core import ConfigError, WorkerError
from stepwell.runs.build import worker_plan
from stepwell.runs.run import train
from stepwell.training import Trainer
from stepwell.workers.placement import DevicePlacement, list_trainer_devices, resolve_placement

FOUR = ["cpu", "cuda:0", "cuda:1", "cuda:2", "cuda:3"]


def placed(
    kind: str,
    *,
    sims: tuple[str, ...] = (),
    gens: tuple[str, ...] = (),
    trainers: tuple[str, ...] = (),
    policy: str = "cpu",
    available: list[str] = FOUR,
    num_gens: int = 2,
) -> DevicePlacement:
    config = WorkersConfig(
        placement=kind,  # type: ignore[arg-type]
        simulators={"num_workers": 3, "devices": sims},  # type: ignore[arg-type]
        generators={"num_workers": num_gens, "devices": gens},  # type: ignore[arg-type]
        trainers={"devices": trainers},  # type: ignore[arg-type]
    )
    return resolve_placement(config, policy, available)


def test_without_lists_everything_is_where_the_policy_is_and_simulators_are_on_the_cores() -> None:
    found = placed("colocated", policy="cuda")
    assert (found.simulators, found.generators, found.trainers) == (
        ("cpu",) * 3,
        ("cuda:0",) * 2,
        ("cuda:0",),
    )
    assert list(found.describe_devices()) == ["cuda:0: 2 generators, 1 trainer", "cpu: 3 simulators"]


def test_workers_are_dealt_out_to_devices_in_turn() -> None:
    found = placed("disaggregated", sims=("cuda:0", "cuda:1"), gens=("cuda:0",), trainers=("cuda:2",))
    assert found.simulators == ("cuda:0", "cuda:1", "cuda:0")
    assert found.generators == ("cuda:0", "cuda:0") and found.trainers == ("cuda:2",)


def test_hybrid_puts_a_trainer_beside_simulators_or_a_generator() -> None:
    found = placed("hybrid", sims=("cuda:0", "cuda:1", "cuda:2"), gens=("cuda:3",), num_gens=1)
    assert found.trainers == ("cuda:0", "cuda:1", "cuda:2", "cuda:3")


def test_the_words_mean_the_same_on_a_cluster() -> None:
    cluster = ["cpu", "a/cuda:0", "b/cuda:0"]
    found = placed("disaggregated", gens=("a/cuda:0",), trainers=("b/cuda",), available=cluster)
    assert found.generators == ("a/cuda:0",) * 2 and found.trainers == ("b/cuda:0",)
    with pytest.raises(ConfigError, match="a/cuda:0 is named for both"):
        placed("disaggregated", gens=("a/cuda:0",), trainers=("a/cuda:0",), available=cluster)


@pytest.mark.parametrize(
    ("kind", "lists", "reason"),
    [
        (
            "colocated",
            {"gens": ("cuda:7",)},
            r"workers.generators.devices: there is no cuda:7 here; this machine has",
        ),
        ("colocated", {"gens": ("cuda:0", "cuda")}, "names a device twice"),
        ("colocated", {"gens": ("cuda:0",), "trainers": ("cuda:1",)}, "cuda:0 is not named for both"),
        ("colocated", {"sims": ("cuda:1",), "policy": "cuda:0"}, "trainers and simulators"),
        ("hybrid", {"gens": ("cuda:0",)}, "hybrid needs at least two devices"),
        ("hybrid", {"gens": ("cuda:0", "cuda:1")}, "workers.simulators.devices: hybrid places simulators"),
        ("hybrid", {"sims": ("cuda:0", "cuda:1"), "gens": ("cuda:1",)}, "cuda:1 is named for both"),
        (
            "hybrid",
            {"sims": ("cuda:0",), "gens": ("cuda:1",), "trainers": ("cuda:0", "cuda:1", "cuda:2")},
            "cuda:2 has only one of the two",
        ),
        ("disaggregated", {"gens": ("cuda:0",), "trainers": ("cuda:0",)}, "cuda:0 is named for both"),
        ("disaggregated", {}, "cpu is named for both"),
    ],
)
def test_what_cannot_be_held_is_refused_with_the_reason(kind: str, lists: dict, reason: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError, match=reason):
        placed(kind, **lists)


def test_the_cores_may_host_several_ranks_of_the_trainer_and_other_devices_one() -> None:
    found = placed("colocated", trainers=("cpu", "cpu"))
    assert found.trainers == ("cpu", "cpu")
    assert list(found.describe_devices()) == ["cpu: 3 simulators, 2 generators, 2 trainers"]
    with pytest.raises(ConfigError, match=r"workers.trainers.devices names a device twice"):
        placed("colocated", gens=("cuda:0",), trainers=("cuda:0", "cuda:0"))


def test_hybrid_takes_the_cores_for_a_device_where_they_are_named() -> None:
    found = placed("hybrid", sims=("cpu",), gens=("cuda:0",))
    assert found.trainers == ("cpu", "cuda:0")
    with pytest.raises(ConfigError, match="hybrid needs at least two devices"):
        placed("hybrid", sims=("cpu",), gens=("cpu",))


def test_a_run_without_groups_may_name_ranks_too() -> None:
    both = WorkersConfig(trainers={"devices": ("cuda:0", "cuda:1")})  # type: ignore[arg-type]
    assert list_trainer_devices(both, "cpu", FOUR) == ("cuda:0", "cuda:1")
    assert list_trainer_devices(WorkersConfig(), "mps", FOUR) == ("mps",)
    with pytest.raises(ConfigError, match=r"workers.trainers.devices: there is no cuda:1 here"):
        list_trainer_devices(both, "cpu", ["cpu", "cuda:0"])


@pytest.mark.slow
def test_a_hybrid_run_trains_on_every_device_and_goes_on_after_a_rank_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_plan, "list_devices", lambda: ["cpu", "cpu:0", "cpu:1"])
    pids: list[int] = []
    update = Trainer.update

    def watched(self: Trainer, *args: object, **kwargs: object) -> dict[str, float]:
        found = update(self, *args, **kwargs)  # type: ignore[arg-type]
        assert self.devices == ("cpu:0", "cpu:1")
        pids.extend(self.rank_pids[1:])
        if len(pids) == 1:
            os.kill(pids[0], signal.SIGKILL)
        return found

    monkeypatch.setattr(Trainer, "update", watched)
    settings = (
        "recipe.name=rloo",
        "train.num_updates=3",
        "checkpoint.every=1",
        "workers.mode=stream",
        "workers.processes=false",
        "workers.placement=hybrid",
        "workers.simulators.devices=['cpu:0']",
        "workers.generators.devices=['cpu:1']",
        "workers.simulators.num_workers=1",
        "eval.num_tasks=2",
    )
    with pytest.raises(WorkerError, match=r"rank 1 of the trainer .*was killed by SIGKILL"):
        train(small_config(*settings, folder=tmp_path, name="run"))
    folder = train(resume=tmp_path / "run")
    assert [entry.update for entry in timeless(folder) if entry.kind == "update"] == [1, 2, 3]
    assert len(pids) == 3 and pids[0] != pids[1] == pids[2]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
