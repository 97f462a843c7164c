"""Workers behind HTTP: bit for bit what the process gives, and clear words for what goes wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from tests.envs.test_codecs import values_of
from tests.workers.engines import SMALL, SmallEngine
from tests.workers.odd_envs import ODD, POINT, Point, PointOptions
from tests.workers.test_generators import asked, assert_same, chunks
from tests.workers.test_simulators import GO, begin, texts
from tests.workers.traces import nothing_left

from stepwell.core import ConfigError, InputError, WeightsError, WorkerError
from stepwell.core.frames import Frame, to_bytes
from stepwell.services.http_server import serve_in_thread
from stepwell.workers import ProcessSimulator
from stepwell.workers.generator import GeneratorProcess
from stepwell.workers.http import connect_generator, connect_simulator, create_worker_app
from stepwell.workers.simulator import create_simulator_process

TWO_BY_THREE = {"num_batches": 2, "batch_size": 3}


@contextmanager
def served(worker: Any, **more: Any) -> Iterator[str]:
    url, stop = serve_in_thread(create_worker_app(worker, **more))
    try:
        yield url
    finally:
        stop()


async def test_a_simulator_behind_http_gives_bit_for_bit_what_the_process_gives() -> None:
    options, rng = {"observation": "both", "image_size": 80}, np.random.default_rng(0)
    tasks = [Point.make_task(PointOptions(), seed) for seed in range(3)]
    chunked = [rng.uniform(-1, 1, (3, 4, 2)).astype(np.float32) for _ in range(3)]
    near = ProcessSimulator("near", POINT, options, 2, 3, with_state=True)
    hosted = create_simulator_process("far", POINT, options, 2, 3, with_state=True)
    with served(hosted, describes=TWO_BY_THREE) as url:
        far = await connect_simulator("far", url)
        assert (far.num_batches, far.batch_size) == (2, 3)
        for sim_call in (
            lambda sim: sim.reset(1, [0, 1, 2], tasks, [0, 1, 2]),
            *(lambda sim, each=each: sim.step(1, [2, 0, 1], list(each)) for each in chunked),
        ):
            one, other = await sim_call(near), await sim_call(far)
            assert list(map(values_of, one)) == list(map(values_of, other))
            assert one[0].state
        await far.close()
    await near.close()


@pytest.mark.slow
async def test_a_generator_behind_http_samples_loads_and_keeps_weights_over_a_restart() -> None:
    here = SmallEngine(2.0)
    with served(GeneratorProcess("far", SMALL, {"scale": 2.0})) as url:
        far = connect_generator("far", url)
        requests = asked(1.0, 1 / 3)
        assert_same(await far.generate(requests), await here.generate(requests))
        here.weights = {"scale": np.array([5.0], np.float32)}
        assert await far.load_weights(2, here.weights) == here.fingerprint()
        with pytest.raises(WeightsError, match="another model"):
            await far.load_weights(3, {"other": here.weights["scale"]})
        with pytest.raises(WorkerError, match="exit code 5"):
            await far.generate(asked(1.0, order="die"))
        assert chunks(await far.generate(asked(1.0))) == [[5.0, -5.0]]
        await far.close()


async def test_a_worker_that_dies_behind_http_is_a_worker_error_here() -> None:
    with nothing_left():
        hosted = create_simulator_process("far", ODD, {}, 2, 3)
        transport = httpx.ASGITransport(create_worker_app(hosted, describes=TWO_BY_THREE))
        far = await connect_simulator("far", "http://worker", transport=transport, heartbeat_s=0.05)
        await begin(far)  # type: ignore[arg-type]
        with pytest.raises(WorkerError, match="exit code 7"):
            await far.step(0, [0], [("vanish",)])
        (lost,) = await far.step(0, [1], [GO])
        assert isinstance(lost.error, WorkerError) and "restarted" in str(lost.error)
        assert texts(await begin(far)) == ["count 0", "count 1", "count 2"]  # type: ignore[arg-type]
        await far._channel.describe_worker()  # type: ignore[attr-defined]
        health = far.read_health()
        assert health.is_alive and health.num_restarts == 1 and health.pid == hosted.read_health().pid
        os.kill(health.pid or 0, signal.SIGKILL)
        with pytest.raises(WorkerError, match="SIGKILL"):
            await far.step(0, [0], [GO])
        await far.close()
        await hosted.close()


async def test_what_is_no_frame_too_large_or_without_the_key_is_refused() -> None:
    hosted = create_simulator_process("far", ODD, {}, 1, 1)
    app = create_worker_app(
        hosted, describes={"num_batches": 1, "batch_size": 1}, key="sesame", max_body_bytes=4096
    )
    transport = httpx.ASGITransport(app)
    with pytest.raises(ConfigError, match="needs its key"):
        await connect_simulator("far", "http://worker", key="wrong", transport=transport)
    headers = {"authorization": "Bearer sesame"}

    async def parts() -> Any:
        for _ in range(9):
            yield b"\0" * 1000

    async with httpx.AsyncClient(transport=transport, base_url="http://worker", headers=headers) as client:
        for body, status, words in (
            (b"hello", 400, "fewer than its head"),
            (b"x" * 100, 400, "not a Stepwell frame"),
            (to_bytes(Frame("step", {}))[:-1], 400, "bytes, but its head says"),
            (b"x" * 5000, 413, "larger than 4096 bytes"),
            (parts(), 413, "larger than 4096 bytes"),
        ):
            response = await client.post("/call", content=body)
            assert response.status_code == status and words in response.json()["detail"]
        assert (await client.get("/docs")).status_code == 404
    assert hosted.read_health().pid is None
    far = await connect_simulator("far", "http://worker", key="sesame", transport=transport)
    for op, header, words in (
        ("step", {}, "needs the number of a batch"),
        ("step", {"batch": 5, "places": [0], "names": [["go"]]}, "numbered 0..0"),
        ("explode", {"batch": 0, "places": []}, "knows reset and step"),
    ):
        with pytest.raises(InputError, match=words):
            await far._channel.call(op, header)  # type: ignore[attr-defined]
    await far.close()
    await hosted.close()


async def test_a_machine_that_falls_silent_is_given_up_after_hang_s() -> None:
    told = json.dumps({"worker": TWO_BY_THREE, "health": {"pid": 1}}).encode()
    held = []

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        if len(held) == 1:
            head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(told)}\r\nconnection: close\r\n\r\n"
            writer.write(head.encode() + told)
            writer.close()

    server = await asyncio.start_server(answer_once, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    far = await connect_simulator("far", url, heartbeat_s=0.05, hang_s=0.4)
    with pytest.raises(WorkerError, match=r"gave no sign of life for 0.4 s"):
        await far.step(0, [0], [GO])
    assert not far.read_health().is_alive and far.read_health().silent_s > 0.4
    call = asyncio.create_task(far.step(0, [0], [GO]))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await far.close()
    for writer in held:
        writer.close()
    server.close()


async def test_a_worker_that_cannot_be_reached_or_is_another_kind_is_said() -> None:
    with pytest.raises(WorkerError, match="cannot be reached"):
        await connect_simulator("far", "http://127.0.0.1:9", connect_timeout_s=0.5)
    hosted = GeneratorProcess("far", SMALL)
    transport = httpx.ASGITransport(create_worker_app(hosted))
    with pytest.raises(ConfigError, match="is not a simulator"):
        await connect_simulator("far", "http://worker", transport=transport)
    await hosted.close()
