"""The process of a trainer rank other than 0 (`python -m stepwell.training.rank_main FD`).

Rank 0 sends commands over the socket FD; the process group carries the tensors (`rank_link.py`). The first
message describes the policy. This process has no recipe and no optimizer: it runs its share of each batch and
receives the updated weights.

    take      trajectories ─► minibatches, packed as rank 0 packs them
    outputs   outputs of its microbatches, summed at rank 0
    pull      the gradient of every output ─► its microbatches ─► gradients, summed at rank 0
    weights   the trained weights, from rank 0
    check     a fingerprint of the trained weights

Invariant: the process ends with its parent, whatever it is doing, and at the first failure.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stepwell.core.child_process import call_when_parent_ends
from stepwell.core.encoding import decode_trajectory
from stepwell.policies import CausalLMPolicy
from stepwell.policies.numerics import set_numerics
from stepwell.policies.vla import VLAPolicy
from stepwell.training.batch import TrajectoryMinibatch
from stepwell.training.policy import Policy
from stepwell.training.rank_link import RankCollectives, receive_message, send_message
from stepwell.training.rank_share import RankShare
from stepwell.training.rank_weights import add_gradients, compute_fingerprint, copy_frozen, list_weights

KINDS: dict[str, Any] = {"CausalLMPolicy": CausalLMPolicy, "VLAPolicy": VLAPolicy}
FAILED, BEREFT = 1, 3  # exit codes: this rank failed; another rank left it alone in a collective
_GRACE_S = 1.0  # time for an orderly exit and for removing the folder


class RankWorker:
    """Runs the commands of rank 0."""

    def __init__(self, link: socket.socket, words: dict[str, Any]) -> None:
        self.link, self.rank, self.size = link, words["rank"], words["size"]
        folder, device = Path(words["folder"]), torch.device(words["device"])
        if device.type == "cuda":
            torch.cuda.set_device(device)
        opened = KINDS[words["kind"]].from_pretrained(
            folder / "policy", dtype=words["dtype"], device=device, **words["options"]
        )
        self.policy: Policy = opened
        if words["has_reference"]:
            self.policy.reference = copy_frozen(self.policy.model)
        send_message(link, {"is": "ready"})
        self.wire = RankCollectives(
            folder, self.rank, self.size, on_devices=words["on_devices"], timeout_s=words["timeout_s"]
        )
        self.wire.broadcast(list_weights(self.policy))
        self._parameters = [parameter for _, parameter in self.policy.named_parameters()]
        self._shares: list[RankShare] = []

    def handle_message(self, words: dict[str, Any], payload: bytes) -> None:
        """Run one command of rank 0."""
        work: dict[str, Callable[..., None]] = {
            "take": self._take_batches,
            "outputs": self._send_outputs,
            "pull": self._pull_gradients,
            "weights": self._receive_weights,
            "check": self._send_fingerprint,
        }
        work[words.pop("do")](payload=payload, **words)

    def _take_batches(self, minibatches: list[dict[str, Any]], payload: bytes) -> None:
        self._shares, start = [], 0
        for settings in minibatches:
            trajectories = []
            for size in settings.pop("sizes"):
                trajectories.append(decode_trajectory(payload[start : start + size]))
                start += size
            minibatch = TrajectoryMinibatch(trajectories, self.policy.device, **settings)
            self._shares.append(RankShare(self.policy, minibatch, self.rank, self.size))

    def _send_outputs(self, batch: int, wanted: dict[str, bool], payload: bytes, **how: bool) -> None:
        self.wire.sum_to_first([self._shares[batch].compute_outputs(wanted, **how)])

    def _pull_gradients(self, batch: int, wanted: dict[str, bool], payload: bytes) -> None:
        share = self._shares[batch]
        pulls = torch.zeros(sum(share.output_lengths(wanted)), dtype=torch.float64, device=self.policy.device)
        self.wire.broadcast([pulls])
        for parameter in self._parameters:
            parameter.grad = None
        share.pull_back(pulls, wanted)
        add_gradients(self.wire, self._parameters)

    def _receive_weights(self, payload: bytes) -> None:
        self.wire.broadcast(self._parameters)

    def _send_fingerprint(self, payload: bytes) -> None:
        send_message(self.link, {"is": "fingerprint", "value": compute_fingerprint(self.policy)})


def main() -> int:
    """Run commands until rank 0 closes the socket."""
    call_when_parent_ends(_end_soon)
    with socket.socket(fileno=int(sys.argv[1])) as link:
        first = receive_message(link)
        if first is None:
            return 0
        set_numerics(first[0]["num_threads"])
        try:
            rank = RankWorker(link, first[0])
            while (message := receive_message(link)) is not None:
                rank.handle_message(*message)
            shutil.rmtree(first[0]["folder"], ignore_errors=True)  # its creator may have been killed
        except Exception as error:
            traceback.print_exc()
            is_bereft = isinstance(error, RuntimeError) and any(x in str(error) for x in ("gloo", "NCCL"))
            return BEREFT if is_bereft or isinstance(error, OSError) else FAILED
    return 0


def _end_soon() -> None:
    """Exit soon. A closed socket is not enough for a rank inside a collective or a kernel."""
    time.sleep(_GRACE_S)
    os._exit(BEREFT)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of a broken process group could block an ordinary exit
