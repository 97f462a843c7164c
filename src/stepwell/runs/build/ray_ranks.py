"""The ranks of a trainer as actors of a Ray cluster, one in each bundle that the placement has for them.

    RayRankLauncher.launch_ranks ─► an actor per rank ─► RankActor.join ─► join_ranks ─► the run, by TCP

An actor does what a process under torchrun does (`training/rank_join.py`): it joins the run at its address,
and joins again when another rank has died. Frames, gradients and weights of ranks do not pass through Ray.

Invariants
* Ray restarts no actor. A rank has died when its actor, or the process in it, has ended: `shrink` goes on
  without its bundle, `wait` starts another actor there, which waits until a node has room for it.
* `close` ends every actor, and its rank with it.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from typing import Any

from stepwell.core import WorkerError
from stepwell.core.text import take_first_line
from stepwell.training.rank_join import JoinLauncher, Rendezvous, join_ranks
from stepwell.training.rank_launch import RankPeer
from stepwell.workers.ray_cluster import RayCluster, WorkerBundle, import_ray

_NOTICE_S = 10.0  # Ray may take so long to say that an actor or a node has died


class RankActor:
    """Inside an actor: one rank."""

    def __init__(self, name: str, run: str, device: str) -> None:
        import ray

        self._state: dict[str, Any] = {"name": name, "run": run, "kind": "trainer rank", "device": device}
        self._state |= {"pid": os.getpid(), "node": ray.get_runtime_context().get_node_id()}

    def join(self, host: str, port: int, rank: int, device: str, token: str) -> int:
        """Work as a rank of the run at this address until it ends; returns an exit code."""
        return join_ranks(host, port, rank=rank, device=device, token=token)

    def show_state(self) -> dict[str, Any]:
        """What `stepwell cluster status` wants to know."""
        return {**self._state, "memory_mb": 0.0, "num_pending": 0, "num_calls": 0}


class RayRankLauncher(JoinLauncher):
    """Starts ranks as actors and waits for them to join."""

    def __init__(
        self, cluster: RayCluster, bundles: Sequence[WorkerBundle], *, wait_s: float = 600.0
    ) -> None:
        host, self._secret = import_ray().util.get_node_ip_address(), secrets.token_hex(16)
        super().__init__(Rendezvous(0, len(bundles), host, 0, self._secret), None, wait_s=wait_s)
        self._cluster = cluster
        self._bundles = dict(enumerate(bundles))  # by the rank that is in it
        self._actors: dict[int, Any] = {}
        self._ends: dict[int, Any] = {}  # what each actor gives when its rank has ended
        self._num_started = self._num_launches = 0

    def launch_ranks(self, peers: list[RankPeer], timeout_s: float) -> None:
        """Start an actor for every rank that has none, and wait until all have joined."""
        for rank in self._list_dead():
            self._forget_actor(rank)
        for rank, bundle in self._bundles.items():
            if rank not in self._actors:
                self._start_actor(rank, bundle)
        self.size = len(self._bundles)
        super().launch_ranks(peers, timeout_s)
        self._num_launches += 1

    def count_threads(self, size: int) -> int:
        """The cores that are reserved for a rank."""
        return max(1, int(min(bundle.num_cpus for bundle in self._bundles.values())))

    def drop_ranks(self, lost: Sequence[int]) -> None:
        """Go on without the bundles of ranks that have died; at least one is left."""
        until = time.monotonic() + _NOTICE_S
        while not (dead := self._list_dead()) and time.monotonic() < until:
            time.sleep(0.05)
        for rank in dead[: len(self._bundles) - 1]:
            self._forget_actor(rank)
            del self._bundles[rank]

    def check_joiners(self) -> None:
        """An actor that has ended is an error at the start; later it is the death that Ray tells late."""
        for rank in self._list_dead():
            if not self._num_launches:
                raise WorkerError(f"rank {rank} of the trainer, an actor of Ray, {self._describe_end(rank)}")
            self._forget_actor(rank)
            self._start_actor(rank, self._bundles[rank])

    def close(self) -> None:
        """End the actors, and listen no more."""
        super().close()
        for rank in list(self._actors):
            self._forget_actor(rank)

    def _start_actor(self, rank: int, bundle: WorkerBundle) -> None:
        remote: Any = import_ray().remote
        name, run = f"trainer {rank}", self._cluster.run
        self._num_started += 1
        make = remote(RankActor).options(
            name=f"{run}/{name}/{self._num_started}", max_concurrency=2, **self._cluster.place_actor(bundle)
        )
        self._actors[rank] = actor = make.remote(name, run, bundle.device)
        self._ends[rank] = actor.join.remote(self.host, self.port, rank, bundle.device, self._secret)

    def _list_dead(self) -> list[int]:
        ray = import_ray()
        return [rank for rank, end in self._ends.items() if ray.wait([end], timeout=0)[0]]

    def _describe_end(self, rank: int) -> str:
        ray = import_ray()
        try:
            return f"ended with exit code {ray.get(self._ends[rank])}"
        except ray.exceptions.RayError as error:
            return f"was lost: {take_first_line(error)}"

    def _forget_actor(self, rank: int) -> None:
        ray = import_ray()
        actor = self._actors.pop(rank)
        del self._ends[rank]
        if ray.is_initialized():
            ray.kill(actor, no_restart=True)
