"""Services that really listen: in a thread of this process, or in a process that can be killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from stepwell.config.env_service import EnvServiceConfig
from stepwell.services.envs.app import create_env_app
from stepwell.services.http_server import serve_in_thread


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The address of a service with all built-in environments."""
    found, stop = serve_in_thread(create_env_app(EnvServiceConfig(num_threads=2)))
    yield found
    stop()


@pytest.fixture
def service() -> Iterator[Callable[..., str]]:
    """A function that starts a service with settings and returns its address."""
    running = []

    def start(**settings: object) -> str:
        found, stop = serve_in_thread(create_env_app(EnvServiceConfig(**{"num_threads": 1, **settings})))
        running.append(stop)
        return found

    yield start
    for stop in running:
        stop()


@pytest.fixture
def processes() -> Iterator[Callable[[], tuple[str, subprocess.Popen[str]]]]:
    """A function that starts `stepwell serve envs` as a process and returns its address and the process."""
    running: list[subprocess.Popen[str]] = []

    def start() -> tuple[str, subprocess.Popen[str]]:
        command = [sys.executable, "-m", "stepwell", "serve", "envs", "--port", "0", "--threads", "1"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        return process.stdout.readline().removeprefix("listening on ").strip(), process

    yield start
    for process in running:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
