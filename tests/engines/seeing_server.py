"""A small inference server for tests that takes prompts with images as vLLM does, over real HTTP.

It reads `/inference/v1/generate` with `features`, computes features once per hash and set of weights, and has
a list of what was computed beside them, as the scheduler of vLLM. If weights change and the list is not
reset, requests fail. It reads weights under the names of published LLaVA checkpoints only.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tests.engines.completions_server import Answer, Body
from tests.engines.model_server import ModelServer

TOWER = "vision_tower."


@dataclass
class SeeingServer(ModelServer):
    """One server with a model of the LLaVA or Qwen family."""

    scale_out: bool = True
    arrays: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    features: dict[str, torch.Tensor] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)  # images whose features should be there
    num_encoded: int = 0

    def reply(self, path: str, body: Body) -> Answer:
        if path == "/inference/v1/generate":
            if not self.scale_out:
                return 403, b'{"error":{"message":"Restart vllm serve with --enable-scale-out"}}'
            if "token_ids" not in body:
                return 400, b'{"error":{"message":"token_ids: field required"}}'
        return super().reply(path, body)

    def on_vllm_reset_encoder_cache(self, body: Body) -> Body:
        if "keeps_features" not in self.faults:
            with self.lock:
                self.listed.clear()
                self.features.clear()
        return {}

    def load_tensors(self, new: dict[str, torch.Tensor]) -> None:
        wrong = [name for name in new if TOWER in name and f"{TOWER}vision_model." not in name]
        if wrong:
            raise RuntimeError(f"There is no module or parameter named {wrong[0]!r}")
        renamed = {name.replace(f"{TOWER}vision_model.", TOWER): value for name, value in new.items()}
        if "keeps_tower" in self.faults:
            renamed = {name: value for name, value in renamed.items() if TOWER not in name}
        super().load_tensors(renamed)
        if "keeps_features" not in self.faults:
            self.features.clear()

    def on_vllm_inference_v1_generate(self, body: Body) -> Body:
        params, ids = body["sampling_params"], body["token_ids"]
        prompt, places = list(ids), body["features"]["mm_placeholders"]
        rows = zip(
            body["features"]["mm_hashes"]["image"],
            places["image"],
            body["features"]["kwargs_data"]["image"],
            strict=True,
        )
        for name, place, item in rows:
            self.arrays[name] = read_item(item)
            for i in range(place["length"]):
                prompt[place["offset"] + i] = (name, i)
        if "prompt_logprobs" in params:
            told = zip(ids[1:], self.score_tokens(prompt), strict=True)
            return {"prompt_logprobs": [None, *({str(token): {"logprob": v}} for token, v in told)]}
        sampled, logprobs, _, finish, stop_reason = self.sample({**params, "prompt": prompt})
        content = [{"token_id": t, "logprob": v} for t, v in zip(sampled, logprobs, strict=True)]
        choice = {
            "index": 0,
            "token_ids": sampled,
            "logprobs": {"content": content},
            "finish_reason": finish,
            "stop_reason": stop_reason,
        }
        return {
            "choices": [choice],
            "usage": {"prompt_tokens_details": {"cached_tokens": self.local.num_cached}},
            "prompt_token_ids": ids if body["return_token_ids"] else None,
            "mm_placeholders": places if body["return_token_ids"] else None,
        }

    def run_model(self, ids: list[Any], start: int = 0, **cache: Any) -> torch.Tensor:
        embedded = self.model.get_input_embeddings()(torch.tensor([self.read_ids(ids[start:])]))
        for place, key in enumerate(ids[start:]):
            if isinstance(key, tuple):
                embedded[0, place] = self.find_features(key[0])[key[1]]
        if hasattr(self.model.model, "get_rope_index"):
            cache["position_ids"] = self.find_positions(ids)[:, :, start:]
        return self.model(inputs_embeds=embedded, **cache).logits  # type: ignore[no-any-return]

    def find_positions(self, ids: list[Any]) -> torch.Tensor:
        names = [key[0] for key in ids if isinstance(key, tuple) and key[1] == 0]
        grids = torch.stack([self.arrays[name]["image_grid_thw"] for name in names]) if names else None
        kinds = torch.tensor([[int(isinstance(key, tuple)) for key in ids]])
        found, _ = self.model.model.get_rope_index(
            torch.tensor([self.read_ids(ids)]), mm_token_type_ids=kinds, image_grid_thw=grids
        )
        return found  # type: ignore[no-any-return]

    def read_ids(self, ids: list[Any]) -> list[int]:
        return [self.model.config.image_token_id if isinstance(key, tuple) else key for key in ids]

    def find_features(self, name: str) -> torch.Tensor:
        if name not in self.features:
            if name in self.listed:
                raise RuntimeError(f"Encoder cache miss for {name}.")
            arrays = dict(self.arrays[name])
            if "image_grid_thw" in arrays:
                arrays["image_grid_thw"] = arrays["image_grid_thw"][None]
            else:
                arrays["pixel_values"] = arrays["pixel_values"][None]
            self.features[name] = self.model.get_image_features(**arrays).pooler_output[0]
            self.listed.add(name)
            self.num_encoded += 1
        return self.features[name]


def read_item(item: str) -> dict[str, torch.Tensor]:
    """The arrays of an image, from msgpack in base64."""
    raw = base64.b64decode(item)
    read, end = read_msgpack(raw, 0)
    assert end == len(raw)
    found = {}
    for name, part in read.items():
        dtype, shape, values = part["data"]
        found[name] = torch.from_numpy(np.frombuffer(values, dtype=dtype).reshape(shape).copy())
    fields = {name: part["field"] for name, part in read.items()}
    if "image_grid_thw" not in fields:
        assert fields == {"pixel_values": ["batched", {"keep_on_cpu": False}]}
        return found
    slices = [[0, len(found["pixel_values"]), None]]
    assert fields == {
        "pixel_values": ["flat", {"slices": slices, "dim": 0, "keep_on_cpu": False}],
        "image_grid_thw": ["batched", {"keep_on_cpu": True}],
    }
    return found


def read_msgpack(raw: bytes, at: int) -> tuple[Any, int]:
    """The value that begins at a place, and where it ends. Only the long forms of msgpack."""
    kind, at = raw[at], at + 1
    if kind == 0xC0:
        return None, at
    if kind in (0xC2, 0xC3):
        return kind == 0xC3, at
    if kind == 0xD3:
        return struct.unpack_from(">q", raw, at)[0], at + 8
    (size,) = struct.unpack_from(">I", raw, at)
    at += 4
    if kind == 0xDB:
        return raw[at : at + size].decode(), at + size
    if kind == 0xC9:
        assert raw[at] == 3, "the extension for bytes of arrays"
        return raw[at + 1 : at + 1 + size], at + 1 + size
    assert kind in (0xDD, 0xDF), f"{kind:#x} is no long form"
    found = []
    for _ in range(size * (2 if kind == 0xDF else 1)):
        value, at = read_msgpack(raw, at)
        found.append(value)
    return (dict(zip(found[::2], found[1::2], strict=True)) if kind == 0xDF else found), at
