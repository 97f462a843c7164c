"""A gateway in its own process that is restarted whenever it dies: `restarting_gateway.py FOLDER PORT`.

The parent loads what is slow to load and then only forks. The child, whose id is in FOLDER/pid, builds
everything that has threads, so it can be killed at any point and is back in a moment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import uvicorn

import stepwell.engines.embedded
import stepwell.policies.directory
import stepwell.services.gateway.gateway
from stepwell.config.gateway import GatewayConfig
from stepwell.pool import open_pool
from stepwell.rendering import Renderer
from stepwell.services.gateway.app import create_app
from stepwell.services.gateway.gateway import Gateway
from stepwell.services.http_server import serve


def run(folder: Path, port: int) -> None:
    torch.set_num_threads(1)
    engine = stepwell.engines.embedded.EmbeddedEngine.from_pretrained("tiny-0.3m")
    gateway = Gateway(
        engine,
        Renderer(engine.tokenizer, context_length=engine.max_length),
        open_pool(folder / "pool.db"),
        GatewayConfig(),
    )
    serve(create_app(gateway), "127.0.0.1", port)


def main() -> None:
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    assert uvicorn
    while True:
        child = os.fork()
        if child == 0:
            run(folder, port)
        (folder / "pid.new").write_text(str(child))
        os.replace(folder / "pid.new", folder / "pid")
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
