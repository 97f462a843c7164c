"""A small completions server for tests: real HTTP, in the form in which vLLM answers.

It samples from a model with plain transformers forwards, so that what it says is computed in
another way than by our engine. `answers` lets a test put anything else in a reply's place.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

CONTEXT = 64
Body = dict[str, Any]
Answer = tuple[int, bytes | list[bytes]]  # a list is sent chunk by chunk and then cut off


@dataclass
class CompletionsServer:
    """What one server does; `answers(path, body)` goes first and may return None to decline."""

    model: Any
    tokenizer: Any
    mode: str = "raw"
    answers: Callable[[str, Body], Answer | None] = lambda path, body: None
    version: Any = 0
    seen: list[tuple[str, Body, str | None]] = field(default_factory=list)
    hung_up: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    local: threading.local = field(default_factory=threading.local)  # of the thread of one connection

    def reply(self, path: str, body: Body) -> Answer:
        answer = self.answers(path, body)
        if answer is not None:
            return answer
        if path == "/v1/models":
            card = {"id": "tiny", "object": "model", "max_model_len": CONTEXT}
            return 200, json.dumps({"object": "list", "data": [card]}).encode()
        if path == "/weight_info":
            return 200, json.dumps({"weight_version": self.version}).encode()
        if path == "/v1/completions":
            return 200, (self.stream(body) if body["stream"] else json.dumps(self.completion(body)).encode())
        return 404, b'{"detail":"Not Found"}'

    def completion(self, body: Body) -> Body:
        ids, logprobs, tops, finish, stop_reason = self.sample(body)
        choice = self.choice(body, ids, logprobs, finish, stop_reason)
        choice["logprobs"]["top_logprobs"] = tops
        usage = {
            "prompt_tokens": len(body["prompt"]),
            "completion_tokens": len(ids),
            "total_tokens": len(body["prompt"]) + len(ids),
            "prompt_tokens_details": {"cached_tokens": 2},
        }
        return {
            "id": "cmpl-1",
            "object": "text_completion",
            "model": "tiny",
            "choices": [choice],
            "usage": usage,
        }

    def stream(self, body: Body) -> list[bytes]:
        ids, logprobs, _, finish, stop_reason = self.sample(body)
        events = []
        for i, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
            last = i == len(ids) - 1
            end = (finish, stop_reason) if last else (None, None)
            choice = self.choice(body, [token], [logprob], *end)
            choice["prompt_token_ids"] = body["prompt"] if i == 0 else None
            events.append({"id": "cmpl-1", "choices": [choice]})
        usage = {"prompt_tokens_details": {"cached_tokens": 2}}
        events.append({"id": "cmpl-1", "choices": [], "usage": usage})
        return [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events] + [b"data: [DONE]\n\n"]

    def choice(
        self, body: Body, ids: list[int], logprobs: list[float], finish: Any, stop_reason: Any
    ) -> Body:
        return {
            "index": 0,
            "text": self.tokenizer.decode(ids, skip_special_tokens=body["skip_special_tokens"]),
            "logprobs": {"token_logprobs": logprobs},
            "finish_reason": finish,
            "stop_reason": stop_reason,
            "token_ids": ids,
            "prompt_token_ids": body["prompt"],
        }

    def sample(self, body: Body) -> tuple[list[int], list[float], list[dict[str, float]], str, Any]:
        generator = torch.Generator().manual_seed(body["seed"])
        ids: list[int] = []
        logprobs: list[float] = []
        tops: list[dict[str, float]] = []
        while True:
            token, told = self.next_token(body, ids, generator)
            ids.append(token)
            logprobs.append(float(told[token]))
            best = told.topk(max(body["logprobs"], 1))
            tops.append({f"token_id:{i}": float(v) for i, v in zip(best.indices, best.values, strict=True)})
            text = self.tokenizer.decode(ids, skip_special_tokens=body["skip_special_tokens"])
            stop = next((stop for stop in body["stop"] if stop in text), None)
            if token == self.tokenizer.eos_token_id and not body["ignore_eos"]:
                return ids, logprobs, tops, "stop", None
            if token in body["stop_token_ids"] or stop is not None:
                return ids, logprobs, tops, "stop", stop if stop is not None else token
            if len(ids) == body["max_tokens"]:
                return ids, logprobs, tops, "length", None

    @torch.inference_mode()
    def next_token(self, body: Body, ids: list[int], generator: torch.Generator) -> tuple[int, torch.Tensor]:
        """The token, and the logprobs that this server tells of it."""
        logits = self.model(torch.tensor([body["prompt"] + ids])).logits[0, -1].float()
        temperature = body["temperature"] or 1.0
        scaled = torch.log_softmax(logits / temperature, -1)
        order = scaled.argsort(descending=True)
        before = scaled[order].exp().cumsum(0) - scaled[order].exp()
        kept = torch.full_like(scaled, -torch.inf)
        keep = order[before < body["top_p"]] if body["temperature"] else order[:1]
        kept[keep] = scaled[keep]
        token = int(torch.multinomial(kept.exp(), 1, generator=generator))
        if self.mode == "raw":
            return token, torch.log_softmax(logits, -1)
        return token, torch.log_softmax(kept, -1) if body["temperature"] else scaled


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    content: CompletionsServer

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Body) -> None:
        self.content.seen.append((self.path, body, self.headers.get("Authorization")))
        self.content.local.connection = self.connection
        status, content = self.content.reply(self.path, body)
        if status == 0:  # hang up without a word
            self.close_connection = True
            return
        self.send_response(status)
        if isinstance(content, list):
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self._write_all(content)
            self.close_connection = True
            return
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _write_all(self, chunks: list[bytes]) -> None:
        try:
            for chunk in chunks:
                self.wfile.write(chunk)
                self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            self.content.hung_up.set()
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        return


@contextmanager
def serving(content: CompletionsServer) -> Iterator[CompletionsServer]:
    """The server on a free port of the loopback, in threads of its own."""
    handler = type("Handler", (_Handler,), {"content": content})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    content.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield content
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
