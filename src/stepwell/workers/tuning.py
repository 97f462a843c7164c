"""Tuning while a run plays: largest batch, longest wait and shard rule, by what the queue shows.

    Tuner.choose_settings ─► RequestQueue.change_settings ─► a window of turns ─► Tuner.record_window ─┐
              ▲────────────────────────────────────────────────────────────────────────────────────────┘

`Tuner` is plain data without a clock. It keeps the best settings so far and tries one change at a time. What
the queue shows decides the order of trials: generators that are always busy want larger batches, generators
that idle while requests wait want shorter waits. A change stays only if it wins twice in a row; what went
well once is tried again further in the same direction. Between trials the best settings run, so a trial is
compared with the windows around it, and a machine that slows down does not mislead. Windows differ by chance:
what was not behind in its trial gets more windows before the search ends, and is taken if it is 2 % better in
all but the luckiest of them.

Invariants
* A trial that is far behind ends early (`is_hopeless`), and the best settings so far run again at once. The
  clock ends it as well as turns: one in which nothing moves lasts no longer than 2.5 turns of every
  environment take with the best settings. After each trial those run for 6.5 turns, so that even a search
  in which every trial stands still keeps 0.72 of their throughput, and it ends when nothing is left to try.
* When no change helps any more, the settings of the start are tried once more. If they win, they return.
* In step (`workers.mode = "sync"`) there is nothing to tune: every turn is one call.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from stepwell.workers.request_queue import RequestQueue
from stepwell.workers.shards import SHARDS
from stepwell.workers.stream import EpisodeDriver

MIN_GAIN = 1.03
HOPELESS = 0.8
LASTING_GAIN = 1.02
_FEWEST_REPEATS, _MOST_REPEATS = 4, 6
_BUSY = 0.85
_MAX_WAIT_MS = 60_000.0


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What can be tuned."""

    max_batch: int
    max_wait_ms: float
    shard: str = "none"

    def describe(self) -> str:
        """As settings to copy."""
        return (
            f"workers.generators.max_batch={self.max_batch} workers.generators.max_wait_ms="
            f"{self.max_wait_ms:g} workers.generators.shard={self.shard}"
        )


@dataclass(frozen=True, slots=True)
class QueueWindow:
    """What one window showed."""

    rate: float  # turns per unit of time while something was played
    mean_batch: float = 0.0
    waited_ms: float = 0.0  # of a request, on average
    generators_busy: float = 0.0
    call_ms: float = 0.0  # of a generator


@dataclass(eq=False)
class Tuner:
    """Chooses what to run in the next window, from the windows so far."""

    start: QueueSettings
    num_envs: int
    num_generators: int = 1
    best: QueueSettings = field(init=False)
    num_windows: int = 0
    is_settled: bool = False
    history: list[tuple[QueueSettings, float]] = field(default_factory=list)
    _best_rate: float = 0.0
    _settled_rate: float = 0.0
    _first_rate: float | None = None  # of a trial that won once
    _trials: list[QueueSettings] = field(default_factory=list)
    _trial: QueueSettings | None = None
    _tried: set[QueueSettings] = field(default_factory=set)
    _rates: dict[QueueSettings, list[float]] = field(default_factory=dict)
    _is_repeated: bool = False  # whether the trial is one more window of what looked no worse
    _seen: QueueWindow = field(default_factory=lambda: QueueWindow(0.0))

    def __post_init__(self) -> None:
        self.best = self.start

    def describe(self) -> str:
        """What tuning found, in one line."""
        if self.best == self.start:
            return f"tuning found nothing better in {self.num_windows} windows"
        return f"tuned in {self.num_windows} windows; to start from here: {self.best.describe()}"

    def choose_settings(self) -> QueueSettings:
        """What the next window runs with."""
        return self._trial or self.best

    def is_hopeless(self, rate: float) -> bool:
        """Whether a trial is so far behind that it should end now."""
        return self._trial is not None and rate < HOPELESS * self._best_rate

    def expect_turns(self, played_s: float) -> float:
        """Turns that the best settings make in this time; 0 while they run themselves."""
        return self._best_rate * played_s if self._trial is not None else 0.0

    def record_window(self, window: QueueWindow) -> None:
        """Take the result of the window, and decide what comes next."""
        self.num_windows += 1
        self.history.append((self.choose_settings(), window.rate))
        self._rates.setdefault(self.choose_settings(), []).append(window.rate)
        if self._trial is None:
            self._record_best(window)
        elif self._is_repeated:
            self._record_repeat(window)
        elif window.rate < MIN_GAIN * self._best_rate:
            self._tried.add(self._trial)
            self._trial = self._first_rate = None
        elif self._first_rate is None:
            self._first_rate = window.rate  # once more
        else:
            self._accept_trial(window)

    def _record_best(self, window: QueueWindow) -> None:
        is_first = self._best_rate == 0.0
        self._best_rate = window.rate if is_first else 0.5 * self._best_rate + 0.5 * window.rate
        self._seen = window
        if self.is_settled:
            if abs(self._best_rate / self._settled_rate - 1) > 0.25:  # the work has changed: look again
                self.is_settled = False
                self._tried.clear()
                self._rates.clear()
                self._trials = []
            return
        if not self._trials:
            self._trials = [one for one in self._list_changes() if one not in self._tried]
        if self._trials:
            self._trial = self._trials.pop(0)
        elif (promising := self._find_promising()) is not None:
            self._trial, self._is_repeated = promising, True
        else:
            self.is_settled, self._settled_rate = True, self._best_rate
            if self.best != self.start and self.start not in self._tried:
                self._trial = self.start

    def _find_promising(self) -> QueueSettings | None:
        """What was not worse than the best in its windows so far, and has had few of them."""
        means = {
            settings: sum(rates) / len(rates)
            for settings, rates in self._rates.items()
            if settings == self.best or len(rates) < _MOST_REPEATS
        }
        found = max(means, key=lambda settings: means[settings])
        return None if means[found] <= means[self.best] else found

    def _record_repeat(self, window: QueueWindow) -> None:
        assert self._trial is not None
        rates = self._rates[self._trial]
        if len(rates) >= _FEWEST_REPEATS:
            ours, best = (_average_but_luckiest(self._rates[one]) for one in (self._trial, self.best))
            if ours >= LASTING_GAIN * best:
                self._first_rate = ours
                return self._accept_trial(window)
        self._trial, self._is_repeated = None, False

    def _accept_trial(self, window: QueueWindow) -> None:
        assert self._trial is not None and self._first_rate is not None
        before, self.best = self.best, self._trial
        self._best_rate, self._seen = 0.5 * (self._first_rate + window.rate), window
        self._trial, self._first_rate, self._is_repeated = None, None, False
        self._tried.add(before)  # what lost against worse settings need not be tried again
        further = self._go_further(before, self.best)
        ordered = [further, *self._list_changes()] if further is not None else list(self._list_changes())
        self._trials = [one for one in dict.fromkeys(ordered) if one not in self._tried and one != self.best]
        self.is_settled = False

    def _go_further(self, before: QueueSettings, now: QueueSettings) -> QueueSettings | None:
        """The same change once more."""
        batch = round(now.max_batch * now.max_batch / before.max_batch)
        wait = now.max_wait_ms * (now.max_wait_ms / before.max_wait_ms if before.max_wait_ms else 2.0)
        further = replace(now, max_batch=self._limit_batch(batch), max_wait_ms=_limit_wait(wait))
        return None if further == now else further

    def _list_changes(self) -> Iterator[QueueSettings]:
        """Changes of the best settings; what the queue suggests comes first."""
        best, seen = self.best, self._seen
        step = _round_wait(seen.call_ms / 4 if seen.call_ms > 0 else 1.0)
        usual = max(best.max_batch, round(seen.mean_batch))  # an environment batch is never split
        larger = [replace(best, max_batch=self._limit_batch(usual * k)) for k in (4, 2)]
        smaller = [replace(best, max_batch=self._limit_batch(best.max_batch // k)) for k in (2, 4)]
        waits = [best.max_wait_ms * k for k in (2.0, 4.0)] if best.max_wait_ms else [step, 4 * step]
        longer = [replace(best, max_wait_ms=_limit_wait(wait)) for wait in waits]
        shares = (0.0, best.max_wait_ms / 4, best.max_wait_ms / 2)
        shorter = [replace(best, max_wait_ms=wait) for wait in shares]
        names = [name for name in SHARDS if name != best.shard] if self._may_shard else []
        shards = [replace(best, shard=name) for name in names]
        if seen.generators_busy > _BUSY:
            # shards make calls smaller; where calls take no more than one environment batch, that lasts
            shards = shards if best.max_batch > seen.mean_batch else []
            ordered = [*larger, *longer, *shorter, *shards, *smaller]
        else:
            ordered = [*shorter, *shards, *smaller, *larger, *longer]
        for one in dict.fromkeys(ordered):
            if one != best:
                yield one

    @property
    def _may_shard(self) -> bool:
        return self.num_generators > 1 and self.best.shard in SHARDS

    def _limit_batch(self, size: int) -> int:
        return max(1, min(size, self.num_envs))


def _average_but_luckiest(rates: list[float]) -> float:
    return (sum(rates) - max(rates)) / (len(rates) - 1) if len(rates) > 1 else rates[0]


def _limit_wait(wait_ms: float) -> float:
    return min(wait_ms, _MAX_WAIT_MS)


def _round_wait(wait_ms: float) -> float:
    """To a power of two, so that a trial is known again."""
    return float(2.0 ** round(math.log2(wait_ms)))


async def tune_queue(
    queue: RequestQueue,
    driver: EpisodeDriver,
    tuner: Tuner,
    *,
    window_turns: float = 6.0,
    poll_s: float = 0.05,
) -> None:
    """Tune until cancelled. A window is `window_turns` turns of every environment, after a half to settle in.

    Only time in which episodes run counts, so that a trainer that holds everything up does not.
    """
    while True:
        settings = tuner.choose_settings()
        queue.change_settings(settings.max_batch, settings.max_wait_ms, settings.shard)
        await _watch_turns(driver, 0.5 * driver.num_places, poll_s, tuner, patience=2.0)
        before, mark = replace(queue.counts), queue.busy_times.take_snapshot()
        rate = await _watch_turns(driver, window_turns * driver.num_places, poll_s, tuner, patience=0.25)
        after, end = queue.counts, queue.busy_times.take_snapshot()
        num_batches = max(after.num_batches - before.num_batches, 1)
        num_requests = max(after.num_requests - before.num_requests, 1)
        busy = mark.compute_shares(end).get("generators", 0.0)
        seconds = end.at_s - mark.at_s
        tuner.record_window(
            QueueWindow(
                rate,
                num_requests / num_batches,
                1000.0 * (after.waited_s - before.waited_s) / num_requests,
                busy,
                1000.0 * busy * seconds * tuner.num_generators / num_batches,
            )
        )


async def _watch_turns(
    driver: EpisodeDriver, num_turns: float, poll_s: float, tuner: Tuner, *, patience: float
) -> float:
    """Turns per unit of time, over this many turns or until it is hopeless.

    `patience` is the share of these turns that the best settings could have made before a trial is judged.
    """
    loop = asyncio.get_running_loop()
    played_s, first, last_s = 0.0, driver.counts.num_turns, loop.time()
    while True:
        was_live = driver.num_live > 0
        await asyncio.sleep(max(poll_s, played_s / 50))
        now = loop.time()
        played_s += now - last_s if was_live else 0.0
        last_s, turns = now, driver.counts.num_turns - first
        rate = turns / played_s if played_s > 0 else 0.0
        if turns >= num_turns:
            return rate
        if tuner.expect_turns(played_s) >= patience * num_turns and tuner.is_hopeless(rate):
            return rate
