"""The trainer's side of weights by collective: a group with the workers of one server, and a broadcast.

    ask who has joined ─► join, if they are not in our group ─► broadcast buckets while they load ─► digests

The other side is `vllm_worker.py`, in the server's processes. Each server has a group of its own, so that a
server that is lost takes no other one with it. Bytes travel over TCP (Gloo) from the host's memory; trainer
and servers share no folder.

Invariant: weights count as loaded only if every worker reports the digest of the bytes that were sent.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch

from stepwell.core.errors import ConfigError, EngineError, ServerLostError, StepwellError, WeightsError
from stepwell.core.ids import make_id
from stepwell.engines.served.vllm_worker import dist, find_own_address, join_group, plan_buckets
from stepwell.engines.server_client import ServerClient

BUCKET_BYTES = 64 * 2**20
EXTENSION = "stepwell.engines.served.vllm_worker.CollectiveWorker"
_RPC = "/collective_rpc"


class WeightGroup:
    """A group with one server's workers. Lives on one event loop; broadcasts run in a thread."""

    def __init__(self, client: ServerClient, timeout_s: float) -> None:
        self._client, self._timeout_s = client, timeout_s
        self._name, self._num_workers = "", 0
        self._group: Any = None
        self._store: Any = None

    async def send_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Give all workers these weights; returns when they are loaded."""
        await self._join_workers()
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        parts = [[n, str(t.dtype).removeprefix("torch."), list(t.shape)] for n, t in tensors.items()]
        command = {"name": self._name, "parts": parts, "bucket_bytes": BUCKET_BYTES}
        sent, answers = await self._call_beside(
            "receive_stepwell_weights", command, lambda: self._broadcast(tensors, parts)
        )
        wrong = [answer for answer in answers if answer.get("digest") != sent]
        if wrong or len(answers) != self._num_workers:
            raise WeightsError(
                f"{self._client.base_url}: {len(wrong)} of {self._num_workers} workers received other "
                "weights than were sent"
            )

    def close(self) -> None:
        """Leave the group."""
        self._name, self._group, self._store = "", None, None

    async def _join_workers(self) -> None:
        """A new group, unless all workers are in the present one."""
        found = await self._ask_workers("report_stepwell_group", {})
        if sorted(row["rank"] for row in found) != list(range(len(found))):
            raise ConfigError(
                f"{self._client.base_url} runs workers in parallel by data; weights by collective need one "
                "copy of the model behind each address. Set engine.server.weight_transfer=folder"
            )
        if self._group is not None and all(row["group"] == self._name for row in found):
            return
        self.close()
        name, size = make_id("g"), len(found) + 1
        wait = timedelta(seconds=self._timeout_s)
        parts = urlsplit(self._client.base_url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        own = await asyncio.to_thread(find_own_address, str(parts.hostname), port)
        store = dist.TCPStore(own, 0, is_master=True, wait_for_workers=False, timeout=wait)
        command = {
            "name": name,
            "address": own,
            "port": store.port,
            "num_members": size,
            "timeout_s": self._timeout_s,
        }
        group, _ = await self._call_beside(
            "join_stepwell_group", command, lambda: join_group(store, own, 0, size, self._timeout_s)
        )
        self._name, self._num_workers, self._group, self._store = name, len(found), group, store

    async def _call_beside(self, method: str, command: dict[str, Any], work: Any) -> tuple[Any, list[Any]]:
        """Call the workers while this side does its part in a thread."""
        call = asyncio.ensure_future(self._ask_workers(method, command))
        own = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            await asyncio.wait((call, own), return_when=asyncio.FIRST_EXCEPTION)
            if not call.done() or (error := call.exception()) is None:
                error = own.exception()
        except asyncio.CancelledError:
            self.close()
            call.cancel()
            raise
        if error is None:
            return own.result(), call.result()
        self.close()
        call.cancel()
        if isinstance(error, StepwellError):
            raise error
        raise ServerLostError(f"{self._client.base_url} left the weight transfer group: {error}") from error

    async def _ask_workers(self, method: str, kwargs: dict[str, Any]) -> list[Any]:
        body = {"method": method, "kwargs": kwargs}
        try:
            data = await self._client.send_json("POST", _RPC, body, num_retries=0)
        except ServerLostError:
            raise
        except EngineError as error:
            if method == "report_stepwell_group":
                raise ConfigError(
                    f"{self._client.base_url} takes no weights by collective: start vLLM with "
                    f"--worker-extension-cls {EXTENSION} (this package on its PYTHONPATH), or set "
                    f"engine.server.weight_transfer=folder ({error})"
                ) from error
            raise
        results = data.get("results") if isinstance(data, dict) else None
        if not isinstance(results, list) or not all(isinstance(row, dict) for row in results):
            raise EngineError(f"{self._client.base_url}: no results of {method} in its reply")
        return results

    def _broadcast(self, tensors: Mapping[str, torch.Tensor], parts: Sequence[Any]) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for bucket in plan_buckets(parts, BUCKET_BYTES):
            raw = torch.cat([tensors[part[0]].reshape(-1).view(torch.uint8) for part in bucket])
            digest.update(raw.numpy().data)
            self._group.broadcast(raw, 0).wait()
        return digest.hexdigest()
