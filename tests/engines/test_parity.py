"""The parity check: agreement is measured, disagreement is raised with its likeliest cause."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.models import prompts_of, small_model

from stepwell.config.outputs import ParityConfig
from stepwell.core.arrays import FloatArray
from stepwell.core.errors import InputError, ParityError
from stepwell.core.logprob_gaps import LogprobErrors, LogprobGaps, MeasureErrors, step_and_token
from stepwell.core.protocols import Request, SamplingParams
from stepwell.core.step import Step, TokenAction, TokenState
from stepwell.core.versions import VersionSpan
from stepwell.engines.embedded import EmbeddedEngine
from stepwell.engines.parity import ParityMonitor, check_parity
from stepwell.runs.loop.parity_check import ParityCheck


class PlainScorer:
    """A trainer in miniature: one forward pass per step, logits divided by the temperature."""

    def __init__(self, model: Any, ignore_temperature: bool = False, shift: int = 0) -> None:
        self.model, self.ignore_temperature, self.shift = model, ignore_temperature, shift

    def score(self, steps: Sequence[Step]) -> list[FloatArray]:
        return [self._one(step) for step in steps]

    def _one(self, step: Step) -> FloatArray:
        assert isinstance(step.state, TokenState) and isinstance(step.action, TokenAction)
        prompt, action = step.state.prompt_ids.tolist(), step.action.action_ids.tolist()
        with torch.no_grad():
            logits = self.model(torch.tensor([prompt + action])).logits[0, len(prompt) - 1 : -1]
        logits = logits / (1.0 if self.ignore_temperature else step.sampling.logit_temperature)
        scores = torch.log_softmax(logits, dim=-1)[torch.arange(len(action)), torch.tensor(action)]
        values: FloatArray = np.roll(scores.float().numpy(), -self.shift)
        return values


@pytest.fixture(scope="module")
def fresh() -> tuple[Any, list[Step]]:
    model = small_model("qwen3")
    states = [TokenState(p) for p in prompts_of([4, 12, 30, 7])]
    temperatures = (1.0, 0.7, 0.0, 1.3)
    with EmbeddedEngine(model) as engine:
        samples = engine.generate_blocking(
            [
                Request(s, SamplingParams(max_tokens=12, temperature=t, seed=3, ignore_end=True))
                for s, t in zip(states, temperatures, strict=True)
            ]
        )
    return model, [sample.step(state) for sample, state in zip(samples, states, strict=True)]


def test_engine_and_trainer_agree_on_fresh_samples(fresh: tuple[Any, list[Step]]) -> None:
    model, steps = fresh
    report = check_parity(PlainScorer(model), steps, tolerance=2e-5)
    assert report.num_tokens == 48
    assert report.mean_abs <= report.max_abs <= 2e-5


def test_other_weights_are_named_as_such(fresh: tuple[Any, list[Step]]) -> None:
    with pytest.raises(ParityError, match=r"over 48 tokens .* have different weights; compare fingerprints"):
        check_parity(PlainScorer(small_model("qwen3", seed=1)), fresh[1])


def test_a_forgotten_temperature_is_named_as_such(fresh: tuple[Any, list[Step]]) -> None:
    with pytest.raises(ParityError, match=r"Only steps at temperature \[0.7, 1.3\] differ"):
        check_parity(PlainScorer(fresh[0], ignore_temperature=True), fresh[1])


def test_labels_shifted_by_one_are_named_as_such(fresh: tuple[Any, list[Step]]) -> None:
    with pytest.raises(ParityError, match="shifted by one"):
        check_parity(PlainScorer(fresh[0], shift=1), fresh[1])


def test_one_wrong_token_is_found_and_located(fresh: tuple[Any, list[Step]]) -> None:
    model, steps = fresh
    logprobs = steps[2].behavior_logprobs.copy()
    logprobs[5] -= 0.25
    bent = Step(steps[2].state, steps[2].action, logprobs, sampling=steps[2].sampling)
    report = check_parity(PlainScorer(model), [*steps[:2], bent, steps[3]], strict=False)
    assert report.worst == "step 2, token 5 of 12"
    assert report.engine_logprob == pytest.approx(report.trainer_logprob - 0.25, abs=1e-4)
    assert report.max_abs == pytest.approx(0.25, abs=1e-4)
    with pytest.raises(ParityError, match=r"above 0\.1 cannot be rounding in float32.*Few tokens differ"):
        check_parity(PlainScorer(model), [*steps[:2], bent, steps[3]])


def gaps_of(values: FloatArray) -> LogprobGaps:
    return LogprobGaps.compare(np.zeros_like(values), values, str)


def bfloat16_gaps(seed: int, scale: float = 1.0, outliers: Sequence[float] = ()) -> LogprobGaps:
    """Gaps as they were seen in bfloat16: most tokens are certain, a few differ a hundred times as much."""
    rng = np.random.default_rng(seed)
    values = np.where(rng.random(4376) < 0.1, np.abs(rng.standard_t(3, 4376)) * 0.02, 0.0) * scale
    values = np.minimum(values, 0.9)
    values[: len(outliers)] = outliers
    return gaps_of(values)


def errors_of(seed: int, fault: float = 0.0, num_tokens: int = 1600) -> LogprobErrors:
    """Both sides round by as much, token by token; the engine also errs by `fault` times that."""
    rng = np.random.default_rng(seed)
    scale = 0.02 * np.abs(rng.standard_t(2, num_tokens))  # a few tokens round a hundred times as much
    truth = rng.uniform(-9, -1, num_tokens)
    engine, trainer = (truth + scale * rng.normal(size=num_tokens) for _ in range(2))
    return LogprobErrors.against(
        truth,
        engine=engine + fault * scale * rng.normal(size=num_tokens),
        trainer=trainer,
        token_ids=rng.integers(0, 150, num_tokens),
    )


def errors_of_sure_policy(seed: int, fault: float = 0.0) -> LogprobErrors:
    """A policy that is sure of itself writes few words, some of them often; a word errs alike everywhere."""
    rng = np.random.default_rng(seed)
    ids = (rng.random(620) ** 2 * 60).astype(np.int64)
    side = np.clip(rng.normal(0.5, 0.15, 60), 0.02, 0.98)[ids]  # how often the engine is the worse one
    truth, worse, better = rng.uniform(-9, -1, 620), 0.02, 0.01
    is_engine = rng.random(620) < np.clip(side + fault, 0, 0.98)
    return LogprobErrors.against(
        truth,
        engine=truth + np.where(is_engine, worse, better),
        trainer=truth + np.where(is_engine, better, worse),
        token_ids=ids,
    )


def test_one_outlier_of_a_healthy_run_is_reported_and_does_not_stop_it() -> None:
    monitor = ParityMonitor("bfloat16")
    for update in range(500):
        outliers = [1.003] if update % 10 == 9 else []
        gaps = bfloat16_gaps(update, outliers=outliers)
        verdict = monitor.judge_gaps(gaps, lambda share, update=update: errors_of(update))  # type: ignore[misc]
        assert verdict.fault is None
        assert (verdict.outlier is not None) == bool(outliers)


def test_outliers_that_come_too_often_are_a_fault() -> None:
    verdict = ParityMonitor("bfloat16").judge_gaps(
        bfloat16_gaps(0, outliers=[1.5] * 6), lambda share: errors_of(1)
    )
    assert verdict.fault is not None and "6 of the last 4376 tokens differ by more than 1" in verdict.fault


def test_an_engine_that_errs_by_more_than_rounding_is_found_at_once() -> None:
    monitor = ParityMonitor("bfloat16")
    assert monitor.judge_gaps(bfloat16_gaps(0), lambda share: errors_of(1)).fault is None
    errors = errors_of(3, fault=1.5)
    verdict = monitor.judge_gaps(bfloat16_gaps(2, scale=1.5), lambda share: errors)
    assert verdict.fault is not None and "farther from the float32 result than the trainer" in verdict.fault
    assert (
        f"by {errors.engine.mean():.2g} on average, the trainer by {errors.trainer.mean():.2g}"
        in verdict.fault
    )


def test_words_that_round_together_do_not_stop_a_healthy_run_and_do_not_hide_a_fault() -> None:
    monitor = ParityMonitor("bfloat16")
    shares = []
    for update in range(500):
        errors = errors_of_sure_policy(update)
        shares.append(errors.engine_farther)
        assert monitor.judge_gaps(bfloat16_gaps(update), lambda share, errors=errors: errors).fault is None  # type: ignore[misc]
    assert max(shares) > 0.6  # five standard errors of 620 tokens that err on their own
    for seed in range(20):
        faulty = errors_of_sure_policy(seed, fault=0.4)
        verdict = ParityMonitor("bfloat16").judge_gaps(
            bfloat16_gaps(seed),
            lambda share, faulty=faulty: faulty,  # type: ignore[misc]
        )
        assert verdict.fault is not None


def test_one_word_alone_cannot_tell_a_fault() -> None:
    errors = LogprobErrors(np.full(300, 0.02), np.full(300, 0.01), np.zeros(300, np.int64))
    assert errors.engine_farther == 1.0 and errors.engine_bias == 0.0


def test_weights_that_round_more_are_no_fault() -> None:
    monitor = ParityMonitor("bfloat16")
    assert monitor.judge_gaps(bfloat16_gaps(0), lambda share: errors_of(1)).fault is None
    assert monitor.judge_gaps(bfloat16_gaps(2, scale=3.0), lambda share: errors_of(3)).fault is None


def test_a_policy_whose_logits_grow_rounds_more_and_is_not_stopped_for_it() -> None:
    monitor = ParityMonitor("bfloat16")
    gaps = gaps_of(np.concatenate([np.zeros(2600), np.full(133, 0.63)]))  # as a collapsing run had them
    verdict = monitor.judge_gaps(gaps, lambda share: errors_of(3))
    assert verdict.fault is None and "equally far from the float32 result" in str(verdict.outlier)
    for errors in (errors_of(3, fault=1.5), None):  # a faulty engine; no memory for the truth
        verdict = monitor.judge_gaps(gaps, lambda share, errors=errors: errors)  # type: ignore[misc]
        assert verdict.fault is not None and "0.99 quantile is 0.63" in verdict.fault


def test_outliers_of_a_policy_that_fell_apart_stop_it_neither_then_nor_later() -> None:
    monitor = ParityMonitor("bfloat16")
    apart = gaps_of(np.concatenate([np.full(16000, 0.09), np.full(364, 0.63), np.full(20, 1.2)]))
    for seed in range(20):  # 20 of 16,384 tokens differ by more than 1; one in 1000 may
        verdict = monitor.judge_gaps(apart, lambda share, seed=seed: errors_of(seed))  # type: ignore[misc]
        assert verdict.fault is None and verdict.outlier is not None
    assert monitor.judge_gaps(bfloat16_gaps(0, outliers=[1.5]), lambda share: errors_of(1)).fault is None
    assert monitor.judge_gaps(apart, lambda share: errors_of(3, fault=1.5)).fault is not None


def test_large_gaps_by_a_trainer_that_rounds_more_than_the_engine_are_a_fault() -> None:
    errors = errors_of(3, fault=1.5)
    swapped = LogprobErrors(errors.trainer, errors.engine, errors.token_ids)
    gaps = gaps_of(np.concatenate([np.zeros(2600), np.full(133, 0.63)]))
    assert ParityMonitor("bfloat16").judge_gaps(gaps, lambda share: swapped).fault is not None


def test_a_run_in_16_bits_records_how_often_the_engine_was_farther_off_and_how_far_both_were() -> None:
    runner = SimpleNamespace(dtype=torch.bfloat16)
    check = ParityCheck(ParityConfig(), lambda: runner, pytest.fail)  # type: ignore[arg-type, return-value]
    assert check.read_figures() == {}
    check.judge_gaps("update 1", bfloat16_gaps(1), lambda share: errors_of(1))
    errors = errors_of(1)
    assert check.read_figures() == {
        "parity/engine_farther": errors.engine_farther,
        "parity/engine_error": pytest.approx(errors.engine.mean()),
        "parity/trainer_error": pytest.approx(errors.trainer.mean()),
    }
    check.judge_gaps("update 2", bfloat16_gaps(2), lambda share: None)  # no memory for the truth
    assert check.read_figures() == {}


def test_a_quarter_of_the_tokens_is_measured_and_all_of_them_when_that_is_suspicious() -> None:
    shares: list[float] = []

    def measure(fault: float) -> MeasureErrors:
        def measure_share(share: float) -> LogprobErrors:
            shares.append(share)
            return errors_of(7, fault, num_tokens=int(1600 * share))

        return measure_share

    monitor = ParityMonitor("bfloat16")
    assert monitor.judge_gaps(bfloat16_gaps(1), measure(0.0)).fault is None
    assert shares == [0.25]
    assert monitor.judge_gaps(bfloat16_gaps(1), measure(1.0)).fault is not None
    assert shares == [0.25, 0.25, 1.0]


def test_a_fault_too_small_for_one_update_is_found_over_the_last_ones() -> None:
    monitor = ParityMonitor("bfloat16")
    faults = []
    for update in range(12):
        small = errors_of(update, fault=0.9, num_tokens=100)
        faults.append(monitor.judge_gaps(bfloat16_gaps(update), lambda share, small=small: small).fault)  # type: ignore[misc]
    found = next(fault for fault in faults if fault is not None)
    assert faults[0] is None and "in the last" in found and "updates, the engine is farther" in found


def test_a_small_fault_that_begins_late_is_not_hidden_by_the_healthy_updates_before() -> None:
    monitor = ParityMonitor("bfloat16")

    def judge(update: int, fault: float) -> str | None:
        errors = errors_of(update, fault=fault, num_tokens=100)
        return monitor.judge_gaps(bfloat16_gaps(update), lambda _: errors).fault

    assert [judge(update, 0.0) for update in range(16)] == [None] * 16
    assert any(judge(update, 0.9) is not None for update in range(16, 20))


def test_after_memory_was_too_small_the_truth_waits_ten_updates() -> None:
    tried: list[int] = []

    def measure(share: float) -> None:
        tried.append(update)

    monitor = ParityMonitor("bfloat16")
    for update in range(23):
        assert monitor.judge_gaps(bfloat16_gaps(update), measure).fault is None
    assert tried == [0, 11, 22]


def test_tokens_that_siblings_repeat_count_once_and_certain_ones_not_at_all() -> None:
    truth = np.array([-1.0, -1.0, -1.0, -2.0, -3.0])
    ids = np.arange(5)
    errors = LogprobErrors.against(
        truth, engine=truth + 0.2, trainer=truth + np.array([0.1, 0.1, 0.1, 0.3, 0.2]), token_ids=ids
    )
    assert errors.num_tokens == 3 and errors.engine_farther == pytest.approx(0.5)
    assert LogprobErrors.against(truth, engine=truth, trainer=truth + 1e-5, token_ids=ids).num_tokens == 0
    assert LogprobErrors.against(truth, engine=truth, trainer=truth, token_ids=ids).engine_farther == 0.5


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([0.0] * 99 + [float("nan")], "not finite"),
        ([0.2] * 100, "typical mean is 0.2, above 0.1"),
        ([0.0] * 95 + [0.6] * 5, "0.99 quantile is 0.6, above 0.5"),
        ([0.0] * 997 + [1.1] * 3, "3 of the last 1000 tokens"),
    ],
)
def test_each_limit_of_bfloat16_names_what_was_exceeded(values: list[float], told: str) -> None:
    verdict = ParityMonitor("bfloat16").judge_gaps(gaps_of(np.array(values)))
    assert verdict.fault is not None and told in verdict.fault


def test_a_single_token_is_never_judged_by_its_mean_alone() -> None:
    assert ParityMonitor("bfloat16").judge_gaps(gaps_of(np.array([0.05]))).fault is None
    assert ParityMonitor("float32").judge_gaps(gaps_of(np.array([0.05]))).fault is not None


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(InputError, match="no parity limits for dtype int8"):
        ParityMonitor("int8")


def test_mixed_versions_are_named_as_such(fresh: tuple[Any, list[Step]]) -> None:
    step = fresh[1][0]
    mixed = Step(step.state, step.action, step.behavior_logprobs, policy_version=VersionSpan(1, 2))
    with pytest.raises(ParityError, match="span several weight versions"):
        check_parity(PlainScorer(small_model("qwen3", seed=1)), [mixed])


def test_nothing_to_compare_is_an_error_not_a_pass(fresh: tuple[Any, list[Step]]) -> None:
    with pytest.raises(InputError, match="steps is empty"):
        check_parity(PlainScorer(fresh[0]), [])
    with pytest.raises(InputError, match=r"steps\[0\] has no behavior_logprobs"):
        check_parity(PlainScorer(fresh[0]), [Step.from_tokens([3, 4], [5])])
    with pytest.raises(InputError, match="tolerance"):
        check_parity(PlainScorer(fresh[0]), fresh[1], tolerance=float("nan"))


@given(
    st.lists(
        st.lists(st.tuples(*[st.floats(-20, 0, width=32)] * 2), min_size=0, max_size=4),
        min_size=1,
        max_size=6,
    ).filter(any)
)
def test_the_worst_token_is_found_wherever_it_stands(pairs: list[list[tuple[float, float]]]) -> None:
    flat = [pair for step in pairs for pair in step]
    engine, trainer = (np.array([pair[side] for pair in flat], dtype=np.float32) for side in (0, 1))

    def name(index: int) -> str:
        step, token = step_and_token(index, [len(step) for step in pairs])
        return f"step {step}, token {token} of {len(pairs[step])}"

    gaps = LogprobGaps.compare(engine, trainer, name)
    apart = {
        f"step {i}, token {j} of {len(step)}": abs(float(e) - float(t))
        for i, step in enumerate(pairs)
        for j, (e, t) in enumerate(step)
    }
    assert gaps.num_tokens == len(apart) and gaps.max_abs == max(apart.values()) == apart[gaps.worst]
    assert gaps.mean_abs == pytest.approx(sum(apart.values()) / len(apart))
    assert abs(gaps.engine_logprob - gaps.trainer_logprob) == gaps.max_abs
