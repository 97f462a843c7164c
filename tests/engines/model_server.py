"""A small inference server for tests that speaks the protocols of vLLM and SGLang, over real HTTP.

It computes with a real model: samples token by token with keys and values in a cache, reuses the longest
cached prefix of a prompt, holds requests while it is paused, loads weights from a folder while requests are
under way, and ends requests whose client hung up. `faults` are mistakes that real servers make.
"""

from __future__ import annotations

import copy
import json
import select
import socket
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from safetensors.torch import load_file
from tests.engines.completions_server import Answer, Body, CompletionsServer
from transformers import DynamicCache

from stepwell.engines.served.vllm_worker import CollectiveWorker

VLLM_CONTROL = ("/weight_info", "/update_weight_version", "/pause", "/resume", "/collective_rpc")
VLLM_CONTROL += ("/reset_prefix_cache",)


class ClientGone(Exception):
    """The client of a request hung up."""


class ServerWorker(CollectiveWorker):
    """The worker of a server, as vLLM mixes it with the extension."""

    rank = 0

    def __init__(self, server: ModelServer) -> None:
        self._server = server

    def reload_weights(self, weights_iterator: Any) -> None:
        new = dict(weights_iterator)
        if "damaged" in self._server.faults:
            raise RuntimeError("the weights do not fit")
        self._server.load_tensors(new)


IDLE_S = 20.0
"""How long SGLang waits for its requests to end before it refuses to drop its cache (really 30 s)."""


@dataclass
class ModelServer(CompletionsServer):
    """One server. `kind` is vllm or sglang."""

    kind: str = "vllm"
    context: int = 256
    num_kept: int | None = None  # tokens whose keys an SGLang server has room for
    dev_mode: bool = True
    faults: set[str] = field(default_factory=set)
    label: str = "default"
    name: str = "tiny"  # SGLang's becomes the folder of the weights
    under_way: set[str] = field(default_factory=set)  # ids of requests to SGLang
    running: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    prefixes: list[tuple[list[int], Any]] = field(default_factory=list)
    epoch: int = 0  # of the cache; requests under way compute their keys again in a new one
    num_gone: int = 0
    num_cached: int = 0
    worker: Any = None  # with the extension that takes weights by collective

    def __post_init__(self) -> None:
        self.running.set()
        if "no_extension" not in self.faults:
            self.worker = ServerWorker(self)

    # --- control --------------------------------------------------------------------------

    def reply(self, path: str, body: Body) -> Answer:
        given = self.answers(path, body)
        if given is not None:
            return given
        where = urlsplit(path).path
        if self.kind == "vllm" and where in VLLM_CONTROL and not self.dev_mode:
            return 404, b'{"detail":"Not Found"}'
        handle = getattr(self, f"on_{self.kind}_{where.strip('/').replace('/', '_')}", None)
        if handle is None:
            return 404, b'{"detail":"Not Found"}'
        try:
            answer = handle(body)
            return 200, (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        except ClientGone:
            self.num_gone += 1
            return 0, b""
        except ValueError as error:  # SGLang's for whatever it refuses
            return 400, json.dumps({"error": {"message": str(error)}}).encode()
        except (OSError, KeyError, RuntimeError) as error:
            status = 500 if self.kind == "vllm" else 400
            return status, json.dumps({"error": {"message": repr(error)}}).encode()

    def on_vllm_v1_models(self, body: Body) -> Body:
        card = {"id": self.name, "object": "model", "max_model_len": self.context}
        return {"object": "list", "data": [card]}

    on_sglang_v1_models = on_vllm_v1_models

    def on_vllm_weight_info(self, body: Body) -> Body:
        return {"weight_version": self.label}

    on_sglang_model_info = on_vllm_weight_info

    def on_vllm_pause(self, body: Body) -> Body:
        self.running.clear()
        return {"status": "paused"}

    on_sglang_pause_generation = on_vllm_pause

    def on_vllm_resume(self, body: Body) -> Body:
        self.running.set()
        return {"status": "resumed"}

    on_sglang_continue_generation = on_vllm_resume

    def on_vllm_collective_rpc(self, body: Body) -> Body:
        if body["method"] == "reload_weights":
            self.load_folder(body["kwargs"]["weights_path"])
            return {"results": [None]}
        if self.worker is None:
            raise RuntimeError(f"no method {body['method']}")
        return {"results": [getattr(self.worker, body["method"])(**body["kwargs"])]}

    def on_vllm_update_weight_version(self, body: Body) -> Body:
        self.label = body["new_version"]
        return {"success": True}

    def on_sglang_update_weights_from_disk(self, body: Body) -> Body:
        self.load_folder(body["model_path"])
        self.label, self.name = body["weight_version"], body["model_path"]
        if body["flush_cache"]:
            self.drop_cache()
        return {"success": True, "message": "", "num_paused_requests": 0}

    def on_vllm_reset_prefix_cache(self, body: Body) -> Body:
        self.drop_cache()
        return {"success": True}

    def on_sglang_flush_cache(self, body: Body) -> str:
        until = time.monotonic() + IDLE_S
        while self.under_way and time.monotonic() < until:  # paused or not, as the real server (0.5.23) does
            time.sleep(0.005)
        if self.under_way:
            raise ValueError("Timed out waiting for idle state.")
        self.drop_cache()
        return "Cache flushed."

    def on_sglang_server_info(self, body: Body) -> Body:
        return {"max_req_input_len": self.pool - 6}

    def load_folder(self, folder: str) -> None:
        self.load_tensors(load_file(Path(folder) / "model.safetensors"))

    def load_tensors(self, new: dict[str, torch.Tensor]) -> None:
        own = self.model.state_dict()
        if "torn" in self.faults:  # a part of one matrix stays old
            name = next(name for name in new if name.endswith("down_proj.weight"))
            new[name][: len(new[name]) // 2] = own[name][: len(new[name]) // 2]
        if "ignores_updates" not in self.faults:
            with self.lock, torch.no_grad():
                for name, value in new.items():
                    own[name].copy_(value)

    def drop_cache(self) -> None:
        if "keeps_cache" not in self.faults:
            with self.lock:
                self.prefixes, self.epoch = [], self.epoch + 1

    # --- sampling -------------------------------------------------------------------------

    def on_vllm_v1_completions(self, body: Body) -> Body:
        reply: Body
        if "prompt_logprobs" in body:
            scores = self.score_tokens(body["prompt"])
            told = zip(body["prompt"][1:], scores, strict=True)
            rows = [{str(token): {"logprob": value}} for token, value in told]
            return {"choices": [{"index": 0, "prompt_logprobs": [None, *rows]}]}
        reply = self.completion({**body})
        reply["usage"]["prompt_tokens_details"] = {"cached_tokens": self.local.num_cached}
        return reply

    @property
    def pool(self) -> int:
        """How many tokens SGLang holds of one request, at most."""
        return min(self.context, self.num_kept or self.context)

    def on_sglang_generate(self, body: Body) -> Body:
        request_id = body.get("rid") or uuid.uuid4().hex
        if request_id in self.under_way:
            raise ValueError(f"Duplicate request ID detected: {request_id}")
        self.under_way.add(request_id)
        try:
            return self.generate_sglang(request_id, body)
        finally:
            self.under_way.discard(request_id)

    def generate_sglang(self, request_id: str, body: Body) -> Body:
        params, prompt = dict(body["sampling_params"]), body["input_ids"]
        if len(prompt) >= self.pool - 6:
            raise ValueError(f"Input length ({len(prompt)} tokens) exceeds the maximum allowed length")
        if len(prompt) + params["max_new_tokens"] > self.context:
            raise ValueError("Requested token count exceeds the model's maximum context length")
        params["max_new_tokens"] = min(params["max_new_tokens"], self.pool - 2 - len(prompt))
        if body["logprob_start_len"] == 0:
            rows = [[None, prompt[0], None]]
            rows += [[v, t, None] for v, t in zip(self.score_tokens(prompt), prompt[1:], strict=True)]
            return {"text": "", "meta_info": {"input_token_logprobs": rows}}
        asked = {**params, "prompt": prompt, "max_tokens": params["max_new_tokens"], "logprobs": 0}
        asked["seed"] = params["sampling_seed"]
        ids, logprobs, _, finish, stop_reason = self.sample(asked)
        return {
            "text": self.tokenizer.decode(ids),
            "output_ids": ids,
            "meta_info": {
                "id": request_id,
                "prompt_tokens": len(prompt),
                "completion_tokens": len(ids),
                "cached_tokens": self.local.num_cached,
                "finish_reason": {"type": finish, "matched": stop_reason},
                "output_token_logprobs": [[v, t, None] for v, t in zip(logprobs, ids, strict=True)],
                "weight_version": self.label,
            },
        }

    @torch.inference_mode()
    def score_tokens(self, ids: list[Any]) -> list[float]:
        self.running.wait()
        with self.lock:
            logprobs = torch.log_softmax(self.run_model(ids)[0, :-1].float(), -1)
        told = zip(logprobs, self.read_ids(ids)[1:], strict=True)
        return [float(row[token]) for row, token in told]

    def run_model(self, ids: list[Any], start: int = 0, **cache: Any) -> torch.Tensor:
        """The logits of the ids from `start` on; what is before is in the cache."""
        return self.model(torch.tensor([ids[start:]]), **cache).logits  # type: ignore[no-any-return]

    def read_ids(self, ids: list[Any]) -> list[int]:
        return ids

    @torch.inference_mode()
    def next_token(self, body: Body, ids: list[int], generator: torch.Generator) -> tuple[int, torch.Tensor]:
        self.running.wait()
        self.check_client()
        with self.lock:
            logits = self.compute_logits(body, ids)
        temperature = body["temperature"] or 1.0
        scaled = torch.log_softmax(logits / temperature, -1)
        if not body["temperature"]:
            token = int(scaled.argmax())
        else:
            token = int(torch.multinomial(scaled.exp(), 1, generator=generator))
        is_scaled = self.kind == "sglang" or self.mode == "processed"
        return token, scaled if is_scaled else torch.log_softmax(logits, -1)

    def compute_logits(self, body: Body, ids: list[int]) -> torch.Tensor:
        """The logits after prompt and ids, with what the cache holds of them."""
        prompt = body["prompt"]
        if body.get("epoch") != self.epoch:
            body["epoch"], body["cache"] = self.epoch, self.find_prefix(prompt)
            if not ids:
                self.local.num_cached = body["cache"].get_seq_length()
                self.num_cached += self.local.num_cached
        cache = body["cache"]
        start = cache.get_seq_length()
        logits = self.run_model([*prompt, *ids], start, past_key_values=cache, use_cache=True)
        if not ids:
            self.prefixes.append((list(prompt), copy.deepcopy(cache)))
            del self.prefixes[:-64]
        return logits[0, -1].float()

    def find_prefix(self, prompt: list[int]) -> Any:
        best, length = None, 0
        for ids, cache in self.prefixes:
            pairs = zip(ids, prompt[:-1], strict=False)
            common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(prompt) - 1))
            if common > length:
                best, length = cache, common
        if best is None:
            return DynamicCache()
        found = copy.deepcopy(best)
        if (extra := found.get_seq_length() - length) > 0:
            found.crop(-extra)
        return found

    def check_client(self) -> None:
        connection: socket.socket | None = getattr(self.local, "connection", None)
        is_readable = connection is not None and bool(select.select([connection], [], [], 0)[0])
        if connection is not None and is_readable and connection.recv(1, socket.MSG_PEEK) == b"":
            raise ClientGone
