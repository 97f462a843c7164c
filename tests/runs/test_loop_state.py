"""Where a loop stands: when it is over, and what counts as silence."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from stepwell.config.outputs import EvalConfig
from stepwell.config.training import TrainConfig
from stepwell.runs.interrupts import Terminated, count_signals, handle_first_stop
from stepwell.runs.loop.loop_state import LoopState


def test_each_limit_ends_the_run_with_its_own_name() -> None:
    train = TrainConfig(num_updates=10, max_env_steps=100, max_seconds=5.0, max_silent_updates=2)
    assert LoopState(update=9, env_steps=99, num_silent=1).limit_reached(train, 4.9) is None
    assert LoopState(update=10).limit_reached(train, 0.0) == ""
    assert "max_env_steps (100) reached: 103" in str(LoopState(env_steps=103).limit_reached(train, 0.0))
    assert "max_seconds (5) reached" in str(LoopState().limit_reached(train, 5.0))
    assert "max_silent_updates" in str(LoopState(num_silent=2).limit_reached(train, 0.0))


def test_the_warm_start_does_not_count_as_time() -> None:
    train = TrainConfig(num_updates=10, max_seconds=5.0)
    assert LoopState(warm_start_s=60.0).limit_reached(train, 64.0) is None
    assert LoopState(warm_start_s=60.0).limit_reached(train, 65.0) is not None


def test_only_an_agent_that_has_acted_can_fall_silent() -> None:
    state = LoopState()
    state.count_update(0, 20, is_fresh=True)
    assert (state.update, state.num_silent) == (1, 0)
    state.count_update(20, 20, is_fresh=True)
    state.count_update(0, 20, is_fresh=True)
    state.count_update(0, 20, is_fresh=True)
    assert (state.update, state.env_steps, state.num_silent) == (4, 20, 2)
    state.count_update(1, 20, is_fresh=True)  # one action in twenty episodes is not silence
    assert state.num_silent == 0
    state.count_update(0, 20, is_fresh=False)  # trajectories of others
    assert state.num_silent == 0


def test_patience_counts_evaluations_since_the_best() -> None:
    state, evaluation = LoopState(), EvalConfig(patience=2)
    assert state.count_eval({"success": 0.0})
    assert state.count_eval({"success": 0.5})
    assert not state.count_eval({"success": 0.5})
    assert not state.stops_early(evaluation)
    assert not state.count_eval({"success": 0.4})
    assert (state.best, state.num_since_best, state.last) == (0.5, 2, {"success": 0.4})
    assert state.stops_early(evaluation)


def test_good_enough_is_what_the_last_evaluation_says() -> None:
    state, evaluation = LoopState(), EvalConfig(stop_at=0.5)
    assert not state.stops_early(evaluation)
    state.count_eval({"success": 0.5})
    assert state.stops_early(evaluation)
    state.count_eval({"success": 0.4})
    assert not state.stops_early(evaluation)


@pytest.fixture
def ordinary() -> Iterator[None]:
    """Ctrl-C as in a terminal, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ordinary")
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("second", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_the_first_request_is_handed_on_and_the_second_stops_at_once(
    first: signal.Signals, second: signal.Signals, error: type[BaseException]
) -> None:
    asked: list[signal.Signals] = []
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt) as raised, handle_first_stop(asked.append):
        os.kill(os.getpid(), first)
        assert asked == [first]
        os.kill(os.getpid(), second)
    assert asked == [first] and raised.type is error
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.usefixtures("ordinary")
def test_counted_signals_stop_nothing_by_themselves() -> None:
    with count_signals() as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.times == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def inside() -> None:
        with handle_first_stop(lambda asked: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [before]
