"""Tuning: what the queue shows decides, and what does not help is taken back."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from stepwell.workers.modelled import ModelledHardware, run_modelled
from stepwell.workers.modelled_hardware import Latency
from stepwell.workers.tuning import QueueSettings, QueueWindow, Tuner, tune_queue

MODEL = ModelledHardware(
    trainer=0.0,
    sigma=0.3,
    num_envs=48,
    num_simulators=6,
    env_batches=2,
    num_generators=2,
    generator_fixed=0.8,
    turns=(10, 10),
    global_batch=48,
    max_staleness=50,
)


def tune_by(rate_of: Callable[[QueueSettings], float], start: QueueSettings, busy: float = 0.5) -> Tuner:
    tuner = Tuner(start, num_envs=64, num_generators=1)
    for _ in range(60):
        tuner.record_window(QueueWindow(rate_of(tuner.choose_settings()), generators_busy=busy))
    return tuner


def test_without_anything_better_the_start_stays() -> None:
    start = QueueSettings(16, 4.0)
    tuner = tune_by(lambda settings: 10.0, start)
    assert tuner.best == start and tuner.is_settled and "nothing better" in tuner.describe()


def test_a_better_batch_is_found_and_kept() -> None:
    tuner = tune_by(lambda settings: float(settings.max_batch), QueueSettings(2, 0.0), busy=0.95)
    assert tuner.best.max_batch == 64 and "max_batch=64" in tuner.describe()


def test_long_waits_are_dropped_first_if_generators_idle() -> None:
    tuner = tune_by(lambda settings: 10.0 / (1 + settings.max_wait_ms), QueueSettings(16, 1000.0))
    assert tuner.best.max_wait_ms == 0.0 and tuner.history[1][0].max_wait_ms == 0.0


def test_a_change_that_wins_only_once_is_taken_back() -> None:
    start, seen = QueueSettings(16, 4.0), set()

    def rate(settings: QueueSettings) -> float:
        lucky = settings != start and settings not in seen
        seen.add(settings)
        return 20.0 if lucky else 10.0

    assert tune_by(rate, start).best == start


def test_a_small_gain_is_found_in_windows_that_differ_by_chance() -> None:
    def play(seed: int) -> QueueSettings:
        draw = random.Random(seed)
        return tune_by(
            lambda settings: draw.gauss(10.6 if settings.max_batch == 16 else 10.0, 0.5),
            QueueSettings(8, 4.0),
        ).best

    found = [play(seed).max_batch == 16 for seed in range(100)]
    assert sum(found) > 70  # 6 % more in windows of 5 % deviation; with two windows for each trial 53


def test_a_trial_far_behind_is_hopeless_and_the_best_never_is() -> None:
    tuner = Tuner(QueueSettings(16, 4.0), num_envs=64)
    assert not tuner.is_hopeless(0.0)
    tuner.record_window(QueueWindow(10.0))
    assert tuner.choose_settings() != tuner.best
    assert tuner.is_hopeless(7.9) and not tuner.is_hopeless(8.1)


def test_if_the_work_changes_it_looks_again() -> None:
    start = QueueSettings(16, 4.0)
    tuner = tune_by(lambda settings: 10.0, start)
    for _ in range(8):
        tuner.record_window(QueueWindow(2.0))
    assert not tuner.is_settled


@pytest.mark.parametrize("bad", [{"max_batch": 1}, {"max_batch": 48, "max_wait": 60.0}])
def test_a_modelled_run_recovers_from_bad_settings(bad: dict[str, float]) -> None:
    model = replace(MODEL, **bad)  # type: ignore[arg-type]
    tuner = Tuner(QueueSettings(model.max_batch, 1000.0 * model.max_wait), model.num_envs, 2)
    start = run_modelled(model, "stream", 4).throughput
    run = run_modelled(
        model, "stream", 16, on_start=lambda driver, queue: tune_queue(queue, driver, tuner, poll_s=0.5)
    )
    best = replace(
        model, max_batch=tuner.best.max_batch, max_wait=tuner.best.max_wait_ms / 1000, shard=tuner.best.shard
    )
    good = run_modelled(replace(MODEL, max_batch=16), "stream", 4).throughput
    assert run_modelled(best, "stream", 4).throughput > 0.95 * good > 1.3 * start
    assert run.throughput > start


@dataclass(frozen=True, slots=True)
class FragileHardware(ModelledHardware):
    """Hardware that is right as it was started: any other batch takes `harm` times as long."""

    harm: float = 1.0

    def time_sample(self, count: int, latency: Latency) -> float:
        is_usual = count == self.num_envs // 12
        return ModelledHardware.time_sample(self, count, latency) * (1.0 if is_usual else self.harm)


@pytest.mark.slow
@pytest.mark.parametrize(("harm", "wait"), [(1.5, 0.0), (8.0, 5.0), (40.0, 0.0)])
def test_a_tuned_run_is_never_far_behind_its_start_for_long(harm: float, wait: float) -> None:
    shared = {name: getattr(MODEL, name) for name in MODEL.__dataclass_fields__}
    model = replace(FragileHardware(**shared, harm=harm), max_batch=4, max_wait=wait)
    start = run_modelled(model, "stream", 12)
    tuner = Tuner(QueueSettings(4, 1000.0 * wait), model.num_envs, 2)
    tuned = run_modelled(
        model, "stream", 12, on_start=lambda driver, queue: tune_queue(queue, driver, tuner, poll_s=2.0)
    )
    marks = [(0.0, 0), *tuned.marks]  # after every ten turns of all environments
    for (before_s, before), (after_s, after) in zip(marks, marks[3:], strict=False):
        assert (after - before) / (after_s - before_s) > 0.6 * start.throughput
    assert tuned.throughput > 0.75 * start.throughput
    assert sum(settings != tuner.start for settings, _ in tuner.history) >= 3  # it did try
