"""One rank of a trainer: runs its share of every round, and keeps its part of weights and optimizer.

    hold, take trajectories ─► minibatches, packed as the trainer packs them
    forward    a round ─► outputs of its microbatch
    backward   the gradient of each of those outputs ─► gradients, summed over ranks
    zero, clip, step        the optimizer, on its part of the weights
    weights, gradients, state     gathered on all ranks; rank 0 sends them, or writes weights to shared memory
    save, restore           its part of a sharded checkpoint (torch.distributed.checkpoint)
    check, measure          fingerprints; peak memory

A rank knows no recipe: the trainer computes the loss of a round and the gradient of its outputs. With
`sharding = "none"` every rank holds whole copies; with `"full"` its shards (`sharding.py`).
"""

from __future__ import annotations

import copy
import os
import resource
import socket
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh

from stepwell.config.training import OptimizerConfig
from stepwell.core import ImageStore, Trajectory
from stepwell.core.encoding import decode_trajectory
from stepwell.packing import Outputs
from stepwell.packing.gradient import pull_own_gradients
from stepwell.policies import CausalLMPolicy
from stepwell.policies.rotary import read_frequencies
from stepwell.policies.vla import VLAPolicy
from stepwell.policies.vlm.policy import VLMPolicy
from stepwell.training.batch import TrajectoryMinibatch
from stepwell.training.memory_budget import guess_tokens
from stepwell.training.optimizer import ORIGINAL, Optimizer
from stepwell.training.policy import Policy
from stepwell.training.position_check import digest_positions
from stepwell.training.rank_link import (
    Named,
    describe_tensor,
    find_interface,
    send_message,
    send_tensors,
    view_bytes,
)
from stepwell.training.rank_memory import lock_pages, map_weights
from stepwell.training.rank_share import RankShare
from stepwell.training.rank_weights import RankWeights
from stepwell.training.sharded_files import load_shards, save_shards
from stepwell.training.sharding import ShardedPolicy, make_reference

KINDS: dict[str, Any] = {"CausalLMPolicy": CausalLMPolicy, "VLMPolicy": VLMPolicy, "VLAPolicy": VLAPolicy}
_KINDS = ("logprobs", "values", "entropies")


class RankWorker:
    """Runs the commands of a trainer."""

    def __init__(self, link: socket.socket, words: dict[str, Any]) -> None:
        self.link, self.rank, self.size = link, int(words["rank"]), int(words["size"])
        self.device = torch.device(words["device"])
        self._base_bytes = _read_peak_bytes()
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.policy = open_policy(words, self.device)
        dtypes = {name: parameter.dtype for name, parameter in self.policy.named_parameters()}
        budget = guess_tokens(self.policy) if hasattr(self.policy, "is_replayed") else None
        join_group(words)
        self.sharded: ShardedPolicy | None = None
        if words["sharding"] == "full":
            self.sharded = ShardedPolicy(self.policy, init_device_mesh(self.device.type, (self.size,)))
        self.weights = RankWeights(list(self.policy.named_parameters()), dtypes)
        self._dtypes, self._is_mixed = dtypes, bool(words["is_mixed"])
        self.optimizer = Optimizer(
            self.weights.own.items(),
            OptimizerConfig.model_validate(words["optimizer"]),
            critic_rate=words["critic_rate"],
            orthogonalize=None if self.sharded is None else self.weights.orthogonalize,
        )
        if words["state"] is not None:
            self._load_state(load_file(words["state"]))
        self._held: dict[int, list[Trajectory]] = {}  # of minibatches that are on their way
        self._minibatches: list[TrajectoryMinibatch] = []
        self._shares: dict[tuple[int, str], RankShare] = {}
        self._kept: tuple[Outputs, Any, dict[str, bool], bool] | None = None
        self._shared: dict[str, Tensor] | None = None
        send_message(link, {"is": "ready", "token_budget": budget, "pid": os.getpid()})

    def handle_message(self, words: dict[str, Any], payload: bytearray) -> None:
        """Run one command and answer it."""
        work: dict[str, Callable[..., dict[str, Any] | None]] = {
            "hold": self._hold_trajectory,
            "take": self._take_batches,
            "forward": self._run_forward,
            "backward": self._run_backward,
            "zero": self._zero_gradients,
            "clip": self._clip_gradients,
            "step": self._take_step,
            "weights": self._send_weights,
            "gradients": self._send_gradients,
            "state": self._send_state,
            "save": self._save_state,
            "restore": self._restore_state,
            "check": self._send_fingerprint,
            "measure": self._measure_memory,
        }
        answer = work[words.pop("do")](payload=payload, **words)
        if answer is not None:
            send_message(self.link, {"is": "done"} | answer)

    # --- batches ------------------------------------------------------------------------

    def _hold_trajectory(self, batch: int, payload: bytearray) -> None:
        self._held.setdefault(batch, []).append(decode_trajectory(bytes(payload)))

    def _take_batches(
        self, minibatches: list[dict[str, Any]], images: list[list[int]], payload: bytearray
    ) -> dict[str, Any]:
        self._minibatches, self._shares, self._kept, start = [], {}, None, 0
        for number, settings in enumerate(minibatches):
            self._minibatches.append(TrajectoryMinibatch(self._held.pop(number), self.device, **settings))
        if isinstance(self.policy, VLMPolicy):
            self.policy.image_store = ImageStore()
            for height, width in images:
                pixels = np.frombuffer(payload, np.uint8, height * width * 3, start)
                self.policy.image_store.add(pixels.reshape(height, width, 3))
                start += pixels.size
        for number in range(len(self._minibatches)):
            self._find_share(number, "packed")  # now: the trainer packs at the same time
        frequencies = read_frequencies(self.policy.model)
        return {
            "positions": digest_positions(self.policy, self._minibatches),
            "frequencies": {name: found.tolist() for name, found in frequencies.items()},
        }

    def _find_share(self, batch: int, which: str) -> RankShare:
        if (batch, which) not in self._shares:
            packed = getattr(self._minibatches[batch], which)
            prepared = self.policy.prepare_batch(packed)
            self._shares[batch, which] = RankShare(list(prepared.microbatches), self.rank, self.size)
        return self._shares[batch, which]

    def _run_forward(
        self, batch: int, which: str, number: int, wanted: dict[str, bool], payload: bytearray, **how: bool
    ) -> None:
        self._kept = None
        microbatch, is_own = self._find_share(batch, which).find_microbatch(number)
        if not is_own and self.sharded is None:
            send_message(self.link, {"is": "done", "tensors": []})
            return
        outputs = self._run_policy(microbatch, wanted, **how)
        if how["keep"]:
            self._kept = outputs, microbatch, wanted, is_own
        found = [(kind, getattr(outputs, kind)) for kind in _KINDS if wanted[kind] and is_own]
        described = [describe_tensor(kind, output) for kind, output in found]
        send_message(
            self.link, {"is": "done", "tensors": described}, *(view_bytes(output) for _, output in found)
        )

    def _run_policy(
        self,
        microbatch: Any,
        wanted: dict[str, bool],
        *,
        with_reference: bool,
        instructions: bool,
        keep: bool,
    ) -> Outputs:
        if self.sharded is not None:
            if with_reference:
                return self.sharded.run_reference(microbatch, wanted)
            return self.sharded.run(microbatch, wanted, with_instructions=instructions, keep=keep)
        runner: Any = self.policy.read_instructions() if instructions else self.policy
        without: Any = nullcontext()
        if with_reference and self.policy.reference is not None:
            runner = make_reference(self.policy)
        elif with_reference:
            without = self.policy.adapters.disable_adapter()
        with without, torch.set_grad_enabled(keep):
            outputs: Outputs = runner.run(microbatch, **wanted)
        return outputs

    def _run_backward(self, tensors: list[int], payload: bytearray) -> dict[str, Any]:
        """Pull the gradients of the outputs kept last; `tensors` are their lengths."""
        if self._kept is None:
            return {}
        (outputs, _, _, is_own), self._kept = self._kept, None
        present = outputs.list_present()
        pulls = [torch.zeros_like(output) for output in present]
        if is_own:
            flat = torch.frombuffer(payload, dtype=torch.float64).to(self.device) if payload else None
            parts = torch.split(flat, tensors) if flat is not None else pulls
            pulls = [part.to(output.dtype) for part, output in zip(parts, present, strict=True)]
        pull_own_gradients(present, pulls)
        return {}

    # --- the optimizer --------------------------------------------------------------------

    def _zero_gradients(self, payload: bytearray) -> dict[str, Any]:
        self.weights.zero_gradients()
        return {}

    def _clip_gradients(self, limit: float, payload: bytearray) -> dict[str, Any]:
        return {"norms": self.weights.clip_gradients(limit)}

    def _take_step(self, share: float, moves_actor: bool, payload: bytearray) -> dict[str, Any]:
        self.optimizer.set_rate(share)
        self.optimizer.step(moves_actor=moves_actor)
        if self._is_mixed:
            self.weights.send_copies()
        if self.sharded is not None:
            self.sharded.forget_gathered()
        return {"is_finite": self.optimizer.are_weights_finite()}

    def _read_state(self) -> dict[str, Tensor]:
        """Optimizer states of this rank, and its float32 originals."""
        state = self.optimizer.read_named_state()
        for name, parameter in self.weights.own.items():
            if parameter.dtype != self._dtypes[name]:
                state[f"{name}:{ORIGINAL}"] = parameter.detach()
        return state

    def _load_state(self, state: dict[str, Tensor]) -> None:
        take = self.weights.take_shard
        self.optimizer.load_named_state(
            {label: take(label.rpartition(":")[0], whole) for label, whole in state.items()}
        )

    # --- answers of rank 0 ----------------------------------------------------------------

    def _send_weights(self, payload: bytearray, into: str | None = None) -> dict[str, Any]:
        """`into` is a file in shared memory; it is mapped once, and has no name any more after that."""
        if into is None or self.rank > 0:
            return self._send_all(self.weights.gather_weights())
        if self._shared is None:
            self._shared = map_weights(Path(into), self.weights.describe_layout())
            if self.device.type == "cuda":
                lock_pages(self._shared)
        for name, whole in self.weights.gather_weights():
            self._shared[name].copy_(whole, non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return {}

    def _send_gradients(self, payload: bytearray) -> dict[str, Any]:
        return self._send_all(self.weights.gather_gradients())

    def _send_state(self, payload: bytearray) -> dict[str, Any]:
        return self._send_all(self.weights.gather(self._read_state()))

    def _send_all(self, tensors: Iterable[Named]) -> dict[str, Any]:
        if self.rank == 0:
            send_tensors(self.link, tensors)
        else:
            for _ in tensors:
                continue
        return {}

    def _save_state(self, path: str, payload: bytearray) -> dict[str, Any]:
        state = self._read_state()
        for name, parameter in self.weights.own.items():
            state[f"{name}:{ORIGINAL}"] = state.get(f"{name}:{ORIGINAL}", parameter.detach())
        save_shards(Path(path), {label: self.weights.view_sharded(label, x) for label, x in state.items()})
        return {}

    def _restore_state(self, path: str, payload: bytearray) -> dict[str, Any]:
        own = {name: parameter.detach() for name, parameter in self.weights.own.items()}
        state = load_shards(Path(path), own, self.weights.view_sharded)
        self.optimizer.load_named_state(state)
        return {}

    def _send_fingerprint(self, payload: bytearray) -> dict[str, Any]:
        shards, copies = self.weights.compute_fingerprint()
        return {"shards": shards, "copies": copies}

    def _measure_memory(self, payload: bytearray) -> dict[str, Any]:
        """Peak memory: of the device since the last call, or of the process beyond what it began with."""
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            peak = _read_peak_bytes() - self._base_bytes
        held = sum(p.numel() * p.element_size() for p in self.weights.own.values())
        moments = sum(x.numel() * x.element_size() for x in self.optimizer.read_named_state().values())
        return {"peak_mb": peak / 2**20, "weights_mb": held / 2**20, "optimizer_mb": moments / 2**20}


def _read_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def open_policy(words: dict[str, Any], device: torch.device) -> Policy:
    """The policy that the trainer has written for its ranks."""
    policy: Policy = KINDS[words["kind"]].from_pretrained(
        Path(words["policy"]), dtype=words["dtype"], device=device, **words["options"]
    )
    trained = set(words["trained"])
    module: Any = policy
    for name, parameter in module.module.named_parameters():
        parameter.requires_grad_(name in trained)
    if words["reference"] is not None:
        policy.reference = copy.deepcopy(policy.model).requires_grad_(False)
        policy.reference.load_state_dict(load_file(words["reference"]), strict=False)
    return policy


def join_group(words: dict[str, Any]) -> None:
    """Join the process group of all ranks."""
    host, timeout = words["host"], timedelta(seconds=words["timeout_s"])
    if (interface := find_interface(host)) is not None:  # Gloo would ask what the machine's own name means
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # a wait raises instead of killing
    store = TCPStore(host, words["port"], is_master=False, timeout=timeout)
    dist.init_process_group(
        "nccl" if words["on_devices"] else "gloo",
        store=store,
        rank=words["rank"],
        world_size=words["size"],
        timeout=timeout,
    )
