"""What asynchrony is worth, as facts: modelled devices, real driver, exact in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepwell.workers.modelled import ModelledHardware, compute_throughput_bound, run_modelled

PAPER = ModelledHardware()
EXACT = replace(PAPER, sigma=0.0)


def test_in_step_a_turn_costs_the_sum_of_all_three() -> None:
    run = run_modelled(EXACT, "sync", 5)
    assert run.throughput == pytest.approx(32 / (22 + 9 + 15))
    assert run.busy == pytest.approx({"simulators": 22 / 46, "generators": 9 / 46, "trainers": 15 / 46})


def test_the_bound_is_the_slowest_group_alone() -> None:
    most, alone = compute_throughput_bound(EXACT, 4)
    assert alone == pytest.approx({"simulators": 32 / 22, "generators": 32 / 9, "trainers": 32 / 15})
    assert most == pytest.approx(32 / 22)


@pytest.mark.slow
def test_streaming_is_at_least_1_85_times_as_fast_and_near_the_bound() -> None:
    model = replace(PAPER, turns=(5, 5))
    sync, stream = (run_modelled(model, mode, 60) for mode in ("sync", "stream"))
    most, _ = compute_throughput_bound(model, 20)
    assert stream.throughput / sync.throughput >= 1.85
    assert stream.throughput / most >= 0.95
    assert max(stream.staleness) <= PAPER.max_staleness


@pytest.mark.slow
def test_without_tails_the_ratio_is_nearly_that_of_the_means() -> None:
    sync, stream = (run_modelled(replace(EXACT, turns=(4, 4)), mode, 40) for mode in ("sync", "stream"))
    assert 0.96 * 46 / 22 <= stream.throughput / sync.throughput <= 46 / 22


@pytest.mark.slow
def test_every_level_of_asynchrony_adds_to_the_one_before() -> None:
    order = ("sync", "rollout_async", "train_async", "stream")
    found = [run_modelled(PAPER, mode, 8).throughput for mode in order]  # type: ignore[arg-type]
    assert found == sorted(found) and found[2] > 1.3 * found[1]


def test_all_modes_learn_from_the_same_number_of_steps_within_the_bound() -> None:
    for mode in ("sync", "rollout_async", "train_async", "stream"):
        run = run_modelled(replace(PAPER, turns=(2, 6), max_staleness=1), mode, 6)  # type: ignore[arg-type]
        assert len(run.staleness) == run.num_env_steps >= 6 * 32 * 2
        assert max(run.staleness) <= 1


def test_one_environment_batch_cannot_hide_generation() -> None:
    one, four = (run_modelled(replace(PAPER, env_batches=n), "stream", 8).throughput for n in (1, 4))
    assert four > 1.2 * one


@pytest.mark.slow
def test_streaming_beats_whole_epochs_where_episodes_end_early() -> None:
    gains = []
    for turns in ((10, 10), (1, 19)):
        model = replace(PAPER, turns=turns, global_batch=16, rollout_epochs=2, max_staleness=4)
        epochs, stream = (run_modelled(model, mode, 16).throughput for mode in ("train_async", "stream"))
        gains.append(stream / epochs)
    assert gains[1] > gains[0] and gains[1] > 1.05


def test_virtual_runs_repeat_exactly() -> None:
    runs = [run_modelled(PAPER, "stream", 5) for _ in range(2)]
    assert runs[0].elapsed == runs[1].elapsed and runs[0].staleness == runs[1].staleness
