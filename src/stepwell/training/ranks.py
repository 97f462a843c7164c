"""Training on several devices: a group of processes that run one policy together, led by the trainer.

    trainer's process (recipe, loss, weights on the host)      ranks (`rank_worker.py`), one per device
    ──────────────────────────────────────────────────         ───────────────────────────────────────
    take_batches    trajectories ────────────────────────────► packed in the same way
    RankedPolicy    a round ◄──────── outputs ──────────────── forward: layers gathered from all ranks
                    the loss, its gradient per output ───────► backward: gradients summed over ranks
    RankOptimizer   clip, step ──────────────────────────────► each on its shards
    collect_weights the trained weights ◄────────────────────  gathered, written or sent by rank 0

A loss over the whole batch needs only the outputs of the whole batch (`packing/gradient.py`), so it does not
matter which rank ran which microbatch. The gradient equals that of one device up to rounding, for every
recipe, batch size and number of ranks. Ranks know no recipe.

Invariants
* After an update, the policy in the trainer's process has the weights of the ranks. Nobody else changes it
  while ranks run: a difference stops the run.
* A rank that dies, fails or does not answer within `timeout_s` raises a `WorkerError` that names the rank and
  the cause. The trainer's own weights are then those of its last update. After `close` nothing of it is left.
"""

from __future__ import annotations

import contextlib
import select
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from stepwell.config.training import TrainConfig
from stepwell.core import ParityError, WeightsError, WorkerError, errors
from stepwell.core.encoding import encode_trajectory
from stepwell.core.text import take_first_line
from stepwell.policies.rotary import find_other_frequencies, read_frequencies
from stepwell.training import rank_memory
from stepwell.training.batch import TrajectoryMinibatch, list_images
from stepwell.training.memory_budget import read_options
from stepwell.training.policy import Policy, move_to_host
from stepwell.training.position_check import digest_positions
from stepwell.training.rank_launch import RankLauncher, RankPeer
from stepwell.training.rank_link import read_tensors, receive_message, send_message

TIMEOUT_S = 300.0
"""The longest time a rank may take for its share of a batch."""
_START_S, _GRACE_S = 600.0, 1.0
_GROUP_SHARE = 0.8  # ranks give up waiting for each other before the trainer does, which shows who is silent
_BEREFT = 3  # exit code of a rank that another rank left alone
_ADVICE = (
    "the update was not finished; go on from the last checkpoint with --resume, or let runs go on by "
    "themselves (workers.on_dead_rank)"
)


@dataclass(frozen=True, slots=True, eq=False)
class RankAnswer:
    """What one rank said to a command; rank 0 may have sent tensors before."""

    words: dict[str, Any]
    payload: bytearray
    tensors: dict[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """Where this process reads the tokens of the batches that ranks were given (`position_check.py`)."""

    positions: list[str]
    frequencies: dict[str, Tensor]


class Ranks:
    """The ranks of a trainer, started with the policy's current weights and optimizer state."""

    def __init__(
        self,
        policy: Policy,
        config: TrainConfig,
        launcher: RankLauncher,
        *,
        state: dict[str, Tensor] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.policy, self.timeout_s = policy, timeout_s
        self._is_sharded = config.sharding == "full"
        self.peers: list[RankPeer] = []
        self.token_budget: int | None = None
        """What free memory holds, on the rank with least of it."""
        self._awaited: _Reading | None = None
        self._sums: list[tuple[int, int]] | None = None
        self._shared: dict[str, Tensor] | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="stepwell-ranks-"))
        self.close = weakref.finalize(self, _end_ranks, self.peers, self._folder)
        """End every rank, whatever it is doing, and clean up. Runs at the latest when this process exits."""
        try:
            self._start_ranks(launcher, config, state)
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.peers)

    def _start_ranks(
        self, launcher: RankLauncher, config: TrainConfig, state: dict[str, Tensor] | None
    ) -> None:
        move_to_host(self.policy)
        words = self._write_policy(state) | {
            "sharding": config.sharding,
            "optimizer": config.optimizer.model_dump(mode="json"),
            "critic_rate": config.critic_learning_rate,
            "timeout_s": _GROUP_SHARE * self.timeout_s,
        }
        launcher.launch_ranks(self.peers, self.timeout_s)
        kinds = {torch.device(peer.device).type for peer in self.peers}
        self._store = TCPStore(launcher.bind_host, 0, is_master=True, wait_for_workers=False)
        words |= {
            "host": launcher.host,
            "port": self._store.port,
            "size": self.size,
            "on_devices": kinds == {"cuda"},
            "is_mixed": len(kinds) > 1,
            "num_threads": launcher.count_threads(self.size),
        }
        _check_sharding(config, kinds)
        with self._raise_worker_error():
            for peer in self.peers:
                own = launcher.send_files(peer, words | {"rank": peer.rank, "device": peer.device})
                send_message(peer.link, own)
            ready = self._await_answers(self.peers, _START_S)
        for peer, answer in zip(self.peers, ready, strict=True):
            peer.pid = peer.pid or answer.words["pid"]
        budgets = [answer.words["token_budget"] for answer in ready]
        self.token_budget = None if None in budgets else min(budgets)
        for item in self._folder.iterdir():
            shutil.rmtree(item) if item.is_dir() else item.unlink()
        self._written = self._count_writes()

    def _write_policy(self, state: dict[str, Tensor] | None) -> dict[str, Any]:
        """Write what a rank opens; returns the words that describe it."""
        folder, policy = self._folder, self.policy
        policy.save_pretrained(folder / "policy")
        names = {"reference": None, "state": None}
        reference = policy.reference
        contents = {
            "reference": None if reference is None else reference.state_dict(),
            "state": state or None,
        }
        for name, tensors in contents.items():
            if tensors is not None:
                names[name] = str(folder / f"{name}.safetensors")  # type: ignore[assignment]
                save_file({k: v.detach().clone().contiguous() for k, v in tensors.items()}, names[name])  # type: ignore[arg-type]
        return names | {
            "folder": str(folder),
            "policy": str(folder / "policy"),
            "kind": type(policy).__name__,
            "dtype": str(policy.model.dtype).removeprefix("torch."),
            "options": read_options(policy),
            "trained": [name for name, _ in policy.named_parameters()],
        }

    # --- commands to all ranks ------------------------------------------------------------

    def call(
        self,
        command: str,
        *,
        by_rank: Sequence[dict[str, Any]] | None = None,
        payloads: Sequence[memoryview | bytes] | None = None,
        **words: Any,
    ) -> list[RankAnswer]:
        """Let every rank run a command; returns their answers. `by_rank` and `payloads` are one for each."""
        with self._raise_worker_error():
            self._await_due_answers()
            for number, peer in enumerate(self.peers):
                own = {} if by_rank is None else by_rank[number]
                load = b"" if payloads is None else payloads[number]
                send_message(peer.link, {"do": command, **words, **own}, load)
            return self._await_answers(self.peers, self.timeout_s)

    def _await_due_answers(self) -> None:
        """Wait for the answers to `take_batches`: every rank must read tokens where this process does."""
        if (own := self._awaited) is None:
            return
        self._awaited = None
        answers = self._await_answers(self.peers, self.timeout_s)
        for peer, answer in zip(self.peers, answers, strict=True):
            found = {name: torch.tensor(one) for name, one in answer.words["frequencies"].items()}
            if answer.words["positions"] != own.positions:
                raise ParityError(f"{peer} reads tokens at other positions than the trainer; {_ADVICE}")
            if (name := find_other_frequencies(found, own.frequencies)) is not None:
                raise ParityError(f"{peer} has other rotary frequencies {name} than the trainer; {_ADVICE}")

    def _collect_tensors(self, command: str, **words: Any) -> dict[str, Tensor]:
        """Whole tensors from rank 0, which is asked alone where it has them: others may be dead."""
        if self._is_sharded:
            return self.call(command, **words)[0].tensors
        with self._raise_worker_error():
            self._await_due_answers()
            send_message(self.peers[0].link, {"do": command, **words})
            return self._await_answers(self.peers[:1], self.timeout_s)[0].tensors

    def send_trajectories(self, minibatches: Sequence[TrajectoryMinibatch]) -> None:
        """Send all ranks the data of an update, one by one: they read them while the next is written."""
        with self._raise_worker_error():
            self._await_due_answers()
            for number, minibatch in enumerate(minibatches):
                for encoded in map(encode_trajectory, minibatch.trajectories):
                    for peer in self.peers:
                        send_message(peer.link, {"do": "hold", "batch": number}, encoded)

    def take_batches(self, policy: Policy, minibatches: Sequence[TrajectoryMinibatch]) -> None:
        """Let all ranks pack the minibatches whose trajectories they were sent, while the trainer does."""
        names = ("token_budget", "with_bootstrap", "micro_batch", "seed", "keeps_trajectories")
        settings = [{name: getattr(minibatch, name) for name in names} for minibatch in minibatches]
        store = getattr(policy, "image_store", None)
        images = [] if store is None else [store.get(name) for name in list_images(minibatches)]
        shapes = [list(image.shape[:2]) for image in images]
        pixels = b"".join(image.tobytes() for image in images)
        with self._raise_worker_error():
            for peer in self.peers:
                send_message(peer.link, {"do": "take", "minibatches": settings, "images": shapes}, pixels)
        frequencies = {name: one.float().cpu() for name, one in read_frequencies(policy.model).items()}
        self._awaited = _Reading(digest_positions(policy, minibatches), frequencies)

    @torch.no_grad()
    def collect_weights(self) -> None:
        """Take over the weights of the ranks, from shared memory where rank 0 is a child of this process."""
        if self._shared is None:
            found = self._collect_first_weights()
        else:
            self._collect_tensors("weights", into="shared")
            found = self._shared
        for name, parameter in self.policy.named_parameters():
            parameter.copy_(found[name])
        self._written = self._count_writes()

    def _collect_first_weights(self) -> dict[str, Tensor]:
        layout = rank_memory.describe_layout(self.policy.named_parameters())
        if self.peers[0].process is None or not rank_memory.has_room(layout):
            return self._collect_tensors("weights")
        with tempfile.TemporaryDirectory(prefix="stepwell-ranks-", dir=rank_memory.PLACE) as folder:
            file = Path(folder) / "weights"  # without a name as soon as both sides have mapped it
            self._shared = found = rank_memory.map_weights(file, layout)
            self._collect_tensors("weights", into=str(file))
        return found

    def collect_gradients(self) -> dict[str, Tensor]:
        """The gradients of the last step by name, summed over ranks and clipped."""
        return self._collect_tensors("gradients")

    def collect_state(self) -> dict[str, Tensor]:
        """The whole optimizer state, by name (`Optimizer.load_named_state`)."""
        return self._collect_tensors("state")

    def check_weights(self, *, have_changed: bool = False) -> None:
        """Raise an error if copies of a weight differ between ranks, or the policy's were changed.

        So does a rank whose weights differ from those of the last check, unless they have just been trained.
        """
        answers = self.call("check")
        sums = [(answer.words["shards"], answer.words["copies"]) for answer in answers]
        for rank, (found, before) in enumerate(zip(sums, self._sums or sums, strict=True)):
            if found != before and not have_changed:
                raise WeightsError(
                    f"{self.peers[rank]} has changed its weights outside of an update; {_ADVICE}"
                )
        self._sums = sums
        own = answers[0].words["copies"]
        for peer, answer in zip(self.peers, answers, strict=True):
            if answer.words["copies"] != own:
                raise WeightsError(
                    f"{peer} has weights with the fingerprint {answer.words['copies']}, rank 0 has {own}: "
                    f"they no longer learn together; {_ADVICE}"
                )
        if self._count_writes() != self._written:
            raise WeightsError(
                "the policy's weights were changed outside of the trainer, and its ranks still have the old "
                "ones: they no longer learn together; load weights by trainer.load_state_dict, or close the "
                "trainer first"
            )

    def _count_writes(self) -> int:
        return sum(parameter._version for _, parameter in self.policy.named_parameters())

    def _await_answers(self, peers: Sequence[RankPeer], timeout_s: float) -> list[RankAnswer]:
        """One answer of each of these ranks; the first failure of any of them ends the waiting."""
        found, tensors = dict[int, RankAnswer](), dict[str, Tensor]()
        until = time.monotonic() + timeout_s
        while len(found) < len(peers):
            waiting = {peer.link: peer for peer in peers if peer.rank not in found}
            ready, _, _ = select.select(list(waiting), [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError("timed out")
            for link in ready:
                message = receive_message(link)
                if message is None:
                    raise ConnectionError("its socket is closed")
                words, payload = message
                if words["is"] == "tensors":
                    tensors.update(read_tensors(words["tensors"], payload))
                    until = time.monotonic() + timeout_s
                elif words["is"] == "failed":
                    _raise_rank_error(waiting[link], words)
                elif words["is"] == "bereft":
                    waiting[link].is_bereft = True
                    raise ConnectionError(words["text"])
                else:
                    found[waiting[link].rank] = RankAnswer(words, payload, {})
        answers = [found[peer.rank] for peer in peers]
        return [RankAnswer(answers[0].words, answers[0].payload, tensors), *answers[1:]]

    # --- failures and cleanup -------------------------------------------------------------

    @contextlib.contextmanager
    def _raise_worker_error(self) -> Iterator[None]:
        """Turn failures of communication into a `WorkerError` that names the rank."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, OSError) as error:
            raise WorkerError(f"{self._explain_failure(error)}\n{_ADVICE}") from error

    def _explain_failure(self, error: Exception) -> str:
        for peer in self.peers:  # a rank with a closed socket is about to exit
            peer.wait(_GRACE_S / len(self.peers))
        for peer in self.peers:
            if peer.exit_code not in (None, _BEREFT):
                return f"{peer} {peer.describe_end()}"
        reason = take_first_line(error)
        if isinstance(error, TimeoutError):
            silent = [peer for peer in self.peers if not peer.has_died()] or self.peers
            return f"{' or '.join(map(str, silent))} did not answer within {self.timeout_s:g} s ({reason})"
        lost = [peer for peer in self.peers if peer.has_closed(_GRACE_S / len(self.peers))]
        if lost:
            return f"{' and '.join(map(str, lost))} closed {'its' if len(lost) == 1 else 'their'} connection"
        return f"the ranks of the trainer lost each other ({reason})"

    def list_lost(self) -> list[int]:
        """The ranks that died by themselves, or that do not answer: not those that another one left alone."""
        for peer in self.peers:
            peer.wait(_GRACE_S / len(self.peers))
        died = [peer.rank for peer in self.peers if peer.exit_code not in (None, _BEREFT)]
        return died or [peer.rank for peer in self.peers if peer.exit_code is None and peer.is_silent()]


def _check_sharding(config: TrainConfig, kinds: set[str]) -> None:
    """Refuse what cannot be in shards."""
    if config.sharding != "full":
        return
    if len(kinds) > 1:
        raise errors.ConfigError(
            f"train.sharding = 'full' needs devices of one kind, got {', '.join(sorted(kinds))}; "
            "name devices of one kind in workers.trainers.devices"
        )
    if config.optimizer.state != "full":
        raise errors.ConfigError(
            f"train.optimizer.state = {config.optimizer.state!r} does not work in shards, where every rank "
            "has only its part of the moments; set it to 'full', or train.sharding to 'none'"
        )


def _raise_rank_error(peer: RankPeer, words: dict[str, Any]) -> None:
    if words["kind"] == "OutOfMemoryError":
        raise torch.OutOfMemoryError(f"{peer}: {words['text']}")
    kind = getattr(errors, words["kind"], None)
    if isinstance(kind, type) and issubclass(kind, errors.StepwellError):
        raise kind(f"{words['text']} (in {peer})")
    peer.wait(_GRACE_S)
    raise WorkerError(
        f"{peer} failed with {words['kind']}: {words['text']}; {peer.describe_end()}\n{_ADVICE}"
    )


def _end_ranks(peers: list[RankPeer], folder: Path) -> None:
    for peer in peers:
        peer.link.close()
    for peer in peers:
        peer.end(_GRACE_S)
    shutil.rmtree(folder, ignore_errors=True)
