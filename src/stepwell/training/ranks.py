"""Training on several devices: a group of processes that compute one gradient together, led by rank 0.

    rank 0, the trainer's own process                     ranks 1 … n-1 (`rank_main.py`)
    ──────────────────────────────────                    ─────────────────────────────
    check_weights ◄──────────────── fingerprints ──────── theirs
    take_batches  minibatches ───── trajectories ───────► packed in the same way
    outputs       its microbatches ◄── outputs, summed ─► theirs
                  the loss on all outputs ─► a gradient per output
    pull_back     its microbatches ◄── gradients, summed ► theirs
                  clip, check, optimizer step
    send_weights  ───────────────── weights ────────────► theirs

A loss over the whole batch needs only the outputs of the whole batch (`packing/gradient.py`), so it does not
matter which rank ran which microbatch. The gradient equals that of one device up to rounding, for every
recipe, batch size and number of ranks. Only rank 0 computes the loss, the checks and the optimizer step. If
the trainer refuses a batch, the other ranks just wait for the next command; they know no recipe.

Invariants
* Between updates, every rank has the same bits as rank 0's weights. Every update begins by comparing
  fingerprints, and a difference stops the run.
* A rank that dies, fails or does not answer within `timeout_s` raises a `WorkerError` that names the rank and
  the cause. After `close`, no process, socket or file of the group is left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepwell.core import WeightsError, WorkerError
from stepwell.core.child_process import ChildProcess, limit_threads
from stepwell.core.encoding import encode_trajectory
from stepwell.core.fork_server import MODEL_MODULES
from stepwell.packing import Outputs
from stepwell.training.batch import TrajectoryMinibatch
from stepwell.training.policy import Policy
from stepwell.training.rank_link import RankCollectives, receive_message, send_message
from stepwell.training.rank_share import RankShare
from stepwell.training.rank_weights import add_gradients, compute_fingerprint, list_weights

TIMEOUT_S = 300.0
"""The longest time a rank may take for its share of a batch."""
_START_S = 600.0
_GRACE_S = 1.0
_BEREFT = 3  # exit code of a rank that another rank left alone
_KINDS = ("logprobs", "values", "entropies")
_ADVICE = "the update was not finished; go on from the last checkpoint with --resume"


@dataclass(eq=False)
class _Peer:
    """Another rank, seen from rank 0."""

    rank: int
    device: str
    link: socket.socket
    process: ChildProcess

    def __str__(self) -> str:
        return f"rank {self.rank} of the trainer ({self.device}, pid {self.process.pid})"


class Ranks:
    """The other ranks of a trainer, started with the policy's current weights."""

    def __init__(self, policy: Policy, devices: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> None:
        self.policy, self.size, self.timeout_s = policy, len(devices), timeout_s
        self.peers: list[_Peer] = []
        self._parameters = [parameter for _, parameter in policy.named_parameters()]
        self._folder = Path(tempfile.mkdtemp(prefix="stepwell-ranks-"))
        self.close = weakref.finalize(self, _end_ranks, self.peers, self._folder)
        """End every rank, whatever it is doing, and clean up. Runs at the latest when this process exits."""
        try:
            self._start_ranks(devices)
        except BaseException:
            self.close()
            raise

    def _start_ranks(self, devices: Sequence[str]) -> None:
        self.policy.save_pretrained(self._folder / "policy")
        on_devices = all(torch.device(device).type == "cuda" for device in devices)
        num_threads = max(1, torch.get_num_threads() // self.size)
        words = {
            "size": self.size,
            "folder": str(self._folder),
            "kind": type(self.policy).__name__,
            "dtype": str(self.policy.model.dtype).removeprefix("torch."),
            "options": _read_options(self.policy),
            "has_reference": self.policy.reference is not None,
            "on_devices": on_devices,
            "timeout_s": self.timeout_s,
            "num_threads": num_threads,
        }
        for rank, device in enumerate(devices[1:], start=1):
            self.peers.append(self._spawn_rank(rank, device, num_threads))
        with self._raise_worker_error():
            for peer in self.peers:
                send_message(peer.link, words | {"rank": peer.rank, "device": peer.device})
            for peer in self.peers:
                self._await_answer(peer, _START_S)
            shutil.rmtree(self._folder / "policy")
            self._wire = RankCollectives(
                self._folder, 0, self.size, on_devices=on_devices, timeout_s=self.timeout_s
            )
            self._wire.broadcast(list_weights(self.policy))

    def _spawn_rank(self, rank: int, device: str, num_threads: int) -> _Peer:
        ours, theirs = socket.socketpair()
        with theirs:
            process = ChildProcess(
                [sys.executable, "-P", "-m", "stepwell.training.rank_main", str(theirs.fileno())],
                environment=os.environ | limit_threads(num_threads),
                pass_fds=(theirs.fileno(),),
                imports=MODEL_MODULES,
            )
        ours.settimeout(self.timeout_s)
        return _Peer(rank, device, ours, process)

    # --- commands to all ranks ------------------------------------------------------------

    def take_batches(self, minibatches: Sequence[TrajectoryMinibatch]) -> list[SharedBatch]:
        """Send all ranks the minibatches of the next passes."""
        settings, payload = [], []
        for minibatch in minibatches:
            encoded = [encode_trajectory(trajectory) for trajectory in minibatch.trajectories]
            names = ("token_budget", "with_bootstrap", "micro_batch", "seed")
            more = {name: getattr(minibatch, name) for name in names}
            settings.append({"sizes": [len(item) for item in encoded], **more})
            payload += encoded
        self._send_to_all({"do": "take", "minibatches": settings}, b"".join(payload))
        return [
            SharedBatch(self, number, RankShare(self.policy, minibatch, 0, self.size))
            for number, minibatch in enumerate(minibatches)
        ]

    def send_weights(self) -> None:
        """Send all ranks the newly trained weights."""
        self._send_to_all({"do": "weights"})
        with self._raise_worker_error():
            self._wire.broadcast(self._parameters)

    def check_weights(self) -> None:
        """Raise an error if the weights of any rank differ from rank 0's, bit for bit."""
        self._send_to_all({"do": "check"})
        own = compute_fingerprint(self.policy)
        for peer in self.peers:
            with self._raise_worker_error():
                found = self._await_answer(peer, self.timeout_s)["value"]
            if found != own:
                raise WeightsError(
                    f"{peer} has weights with the fingerprint {found}, rank 0 has {own}: they no longer "
                    f"learn together; {_ADVICE}"
                )

    def _send_to_all(self, words: dict[str, Any], payload: bytes = b"") -> None:
        with self._raise_worker_error():
            for peer in self.peers:
                send_message(peer.link, words, payload)

    def _await_answer(self, peer: _Peer, timeout_s: float) -> dict[str, Any]:
        peer.link.settimeout(timeout_s)
        message = receive_message(peer.link)
        peer.link.settimeout(self.timeout_s)
        if message is None:
            raise ConnectionError("its socket is closed")
        return message[0]

    # --- failures and cleanup -------------------------------------------------------------

    @contextlib.contextmanager
    def _raise_worker_error(self) -> Iterator[None]:
        """Turn failures of communication into a `WorkerError` that names the rank."""
        try:
            yield
        except (RuntimeError, OSError) as error:
            raise WorkerError(f"{self._explain_failure(error)}\n{_ADVICE}") from error

    def _explain_failure(self, error: Exception) -> str:
        for peer in self.peers:  # a rank with a closed socket is about to exit
            peer.process.wait(_GRACE_S / len(self.peers))
        for peer in self.peers:
            if peer.process.exit_code not in (None, _BEREFT):
                return f"{peer} {peer.process.describe_end()}"
        silent = [peer for peer in self.peers if not peer.process.has_died()] or self.peers
        first_line = str(error).strip().split("\n")[0]
        return f"{' or '.join(map(str, silent))} did not answer within {self.timeout_s:g} s ({first_line})"


def _end_ranks(peers: list[_Peer], folder: Path) -> None:
    for peer in peers:
        peer.link.close()
    for peer in peers:
        peer.process.wait(_GRACE_S)
        peer.process.kill()
    shutil.rmtree(folder, ignore_errors=True)


@dataclass(eq=False)
class SharedBatch:
    """A minibatch that all ranks run together (`packing.gradient.DistributedBatch`)."""

    ranks: Ranks
    number: int
    share: RankShare

    def outputs(self, *, logprobs: bool = True, values: bool = False, entropies: bool = False) -> Outputs:
        """Outputs of the whole batch; `pull_back` follows."""
        return self._run_shared(_list_wanted(logprobs, values, entropies), keep=True)

    def evaluate(self, *, logprobs: bool, values: bool) -> Outputs:
        """Outputs of the whole batch without a later `pull_back`."""
        return self._run_shared(_list_wanted(logprobs, values, False))

    def reference_logprobs(self) -> Tensor:
        """Logprobs of the frozen reference."""
        found = self._run_shared(_list_wanted(True, False, False), with_reference=True).logprobs
        assert found is not None
        return found

    def pull_back(self, pulls: tuple[Tensor, ...], *, logprobs: bool, values: bool, entropies: bool) -> None:
        """Add the contributions of all ranks' microbatches to rank 0's gradients."""
        wanted = _list_wanted(logprobs, values, entropies)
        self.ranks._send_to_all({"do": "pull", "batch": self.number, "wanted": wanted})
        joined = torch.cat([part.double() for part in pulls])
        with self.ranks._raise_worker_error():
            self.ranks._wire.broadcast([joined])
        self.share.pull_back(joined, wanted)
        with self.ranks._raise_worker_error():
            add_gradients(self.ranks._wire, self.ranks._parameters)

    def _run_shared(
        self, wanted: dict[str, bool], *, with_reference: bool = False, keep: bool = False
    ) -> Outputs:
        how = {"with_reference": with_reference, "keep": keep}
        self.ranks._send_to_all({"do": "outputs", "batch": self.number, "wanted": wanted, **how})
        flat = self.share.compute_outputs(wanted, **how)
        with self.ranks._raise_worker_error():
            self.ranks._wire.sum_to_first([flat])
        dtype = torch.promote_types(self.ranks.policy.model.dtype, torch.float32)
        rows = iter(torch.split(flat.to(dtype), self.share.output_lengths(wanted)))
        return Outputs(*(next(rows) if wanted[kind] else None for kind in _KINDS))


def _list_wanted(logprobs: bool, values: bool, entropies: bool) -> dict[str, bool]:
    return dict(zip(_KINDS, (logprobs, values, entropies), strict=True))


def _read_options(policy: Policy) -> dict[str, Any]:
    """Settings of a language policy that its directory does not contain."""
    if not hasattr(policy, "is_replayed"):
        return {}
    return {
        "attention": "replay" if policy.is_replayed else "auto",
        "gradient_checkpointing": _describe_checkpointing(policy),
    }


def _describe_checkpointing(policy: Any) -> str:
    if policy.model.is_gradient_checkpointing:
        return "full"
    if not policy.recomputes_outputs:
        return "none"
    return "selective" if policy.keeps_gates else "mlp"
