"""The ranks of a trainer over its whole life: started, used by updates, ended, and replaced after a death.

    start ─► take_batches ─► … update … ─► collect_weights ─► (collect_state)
      ▲                          │ a rank dies
      └──── shrink: those left; wait: all again ◄──┘          the update runs again from its start

Policy and optimizer here are copies on the host. Weights are collected after every update, so that what is
published, saved and evaluated is the policy itself. Optimizer states are collected when they are saved, and
after every update if a run must survive the death of a rank.

Invariant: an update that ends has run from its start to its end on one set of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from stepwell.config.training import TrainConfig
from stepwell.config.workers import OnDeadRank
from stepwell.core import WeightsError, WorkerError
from stepwell.core.text import take_first_line
from stepwell.training.batch import TrajectoryMinibatch
from stepwell.training.optimizer import Optimizer
from stepwell.training.policy import Policy
from stepwell.training.rank_launch import RankLauncher
from stepwell.training.rank_optimizer import RankOptimizer
from stepwell.training.rank_share import cut_for_ranks
from stepwell.training.ranked_policy import RankedPolicy
from stepwell.training.ranks import Ranks

Result = TypeVar("Result")
Taken = tuple[list[TrajectoryMinibatch], RankedPolicy, RankOptimizer]
MAX_DEATHS = 8
"""Deaths of ranks in a row, without an update between them, after which a run gives up."""
_WITH = {"shrink": "on the ranks that are left", "wait": "as soon as all ranks are there again"}


class RankGroup:
    """The ranks of one trainer."""

    def __init__(
        self,
        policy: Policy,
        optimizer: Optimizer,
        config: TrainConfig,
        launcher: RankLauncher,
        *,
        on_dead_rank: OnDeadRank,
        timeout_s: float,
    ) -> None:
        self.policy, self.optimizer, self.config = policy, optimizer, config
        self.launcher, self.on_dead_rank, self.timeout_s = launcher, on_dead_rank, timeout_s
        self.num_deaths = 0
        self.note: Callable[[str], None] = print
        """Reports a death that the run survives."""
        self._ranks: Ranks | None = None
        self._is_state_behind = False  # the ranks have newer optimizer states than `optimizer`
        self._shards: Path | None = None  # from which the next ranks take their states

    # --- life -----------------------------------------------------------------------------

    def start(self) -> Ranks:
        """The ranks, started if there are none."""
        if self._ranks is None:
            state = None if self._shards is not None else self.optimizer.read_named_state()
            self._ranks = Ranks(
                self.policy, self.config, self.launcher, state=state, timeout_s=self.timeout_s
            )
            if self._shards is not None:
                self._ranks.call("restore", path=str(self._shards))
                self._shards, self._is_state_behind = None, True
        return self._ranks

    def close(self) -> None:
        """End the ranks."""
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None
        self._is_state_behind = False

    def release(self) -> None:
        """Collect all that the ranks know, and end them."""
        if self._ranks is not None:
            self._ranks.collect_weights()
            self.collect_state()
        self.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks."""
        ranks = self._ranks  # read once, because a live view calls this from another thread
        return [] if ranks is None else [peer.pid for peer in ranks.peers]

    @property
    def size(self) -> int:
        """Ranks that run now."""
        return 0 if self._ranks is None else self._ranks.size

    # --- updates --------------------------------------------------------------------------

    def run_update(self, run: Callable[[], Result]) -> Result:
        """Run an update and take over its weights; after a death, again with other ranks, as set."""
        for _ in range(MAX_DEATHS):
            try:
                result = run()
                self._take_over()
                self.num_deaths = 0
                return result
            except WorkerError as error:
                if self.on_dead_rank == "stop" or self._ranks is None:
                    self.close()
                    raise
                self.note(f"{take_first_line(error)}; the update runs again {_WITH[self.on_dead_rank]}")
                self._replace_ranks()
            except WeightsError:  # those of the ranks are not to be kept
                self.close()
                raise
            except BaseException:
                self._release_if_alive()
                raise
        raise WorkerError(f"giving up after {MAX_DEATHS} deaths of ranks in one update")

    def _take_over(self) -> None:
        ranks = self.start()
        ranks.check_weights(have_changed=True)
        state = None if self.on_dead_rank == "stop" else ranks.collect_state()
        ranks.collect_weights()  # the last thing that a death can undo: an update that runs again has both
        self._is_state_behind = True
        if state is not None:
            self.optimizer.load_named_state(state)
            self._is_state_behind = False

    def _replace_ranks(self) -> None:
        """Forget the ranks of the failed update; the launcher may have fewer from now on."""
        assert self._ranks is not None
        lost = self._ranks.list_lost()
        self.num_deaths += 1
        self.close()
        if self.on_dead_rank == "shrink":
            self.launcher.drop_ranks(lost)

    def _release_if_alive(self) -> None:
        """After an error that is not of the ranks: keep the steps that were taken, as one device does."""
        try:
            self.release()
        except Exception:  # the error on its way is the one to report
            self.close()

    def take_batches(self, minibatches: Sequence[TrajectoryMinibatch]) -> Taken:
        """Give the ranks the minibatches of an update, cut for them."""
        ranks = self.start()
        ranks.check_weights()
        ranks.send_trajectories(minibatches)
        cut = [cut_for_ranks(minibatch, ranks.size) for minibatch in minibatches]
        return cut, RankedPolicy(self.policy, ranks, cut), RankOptimizer(ranks)

    # --- states ---------------------------------------------------------------------------

    def collect_state(self) -> None:
        """Take over the optimizer states of the ranks, if they are newer."""
        if self._shards is not None:
            self.start()
        if self._ranks is not None and self._is_state_behind:
            self.optimizer.load_named_state(self._ranks.collect_state())
            self._is_state_behind = False

    def collect_gradients(self) -> dict[str, Tensor]:
        """The gradients of the last step by name."""
        return {} if self._ranks is None else self._ranks.collect_gradients()

    def measure_memory(self) -> list[dict[str, float]]:
        """Peak memory of every rank since the last call, and what its weights and states take."""
        answers = [] if self._ranks is None else self._ranks.call("measure")
        return [{key: answer.words[key] for key in answer.words if key != "is"} for answer in answers]

    def save_shards(self, path: Path) -> None:
        """Let every rank write its part of weights and optimizer states."""
        self.start().call("save", path=str(path.absolute()))

    def restore_shards(self, path: Path | None) -> None:
        """Let the next ranks read their parts of a sharded checkpoint; None: they take the optimizer here."""
        self.close()
        self._shards = None if path is None else path.absolute()
