"""Workers of another machine: bit for bit what processes here give, and the host decides what it loads."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.envs.test_codecs import values_of
from tests.runs.small import small_config, warmed_model
from tests.workers.engines import SMALL
from tests.workers.odd_envs import ODD, POINT, Point, PointOptions
from tests.workers.test_simulators import GO, begin, texts
from tests.workers.traces import is_running

from stepwell import __version__
from stepwell.cli.main import main
from stepwell.config.run import RunConfig
from stepwell.config.worker_service import WorkerServiceConfig
from stepwell.core import ConfigError, Status, WorkerError
from stepwell.core.frames import Frame, to_bytes
from stepwell.pool import Filter, open_pool
from stepwell.runs.run import train
from stepwell.services.http_server import serve_in_thread
from stepwell.services.keys import create_key, hash_key
from stepwell.services.worker_host import WorkerHost, create_worker_host_app
from stepwell.workers import ProcessGenerator, ProcessSimulator
from stepwell.workers.engine_builders import RUN
from stepwell.workers.http_link import HttpLauncher, find_host_url


@asynccontextmanager
async def hosted(**settings: Any) -> AsyncIterator[tuple[WorkerHost, HttpLauncher]]:
    """A host in this process, and a launcher of its workers."""
    settings = {"envs": (ODD, POINT), "devices": ("cpu",)} | settings
    app = create_worker_host_app(WorkerServiceConfig(**settings))
    async with app.router.lifespan_context(app):
        yield (
            app.state.host,
            HttpLauncher("http://127.0.0.1", "cpu", heartbeat_s=0.05, transport=httpx.ASGITransport(app)),
        )


async def test_a_simulator_of_a_host_gives_bit_for_bit_what_a_process_here_gives() -> None:
    options, rng = {"observation": "both", "image_size": 80}, np.random.default_rng(0)
    tasks = [Point.make_task(PointOptions(), seed) for seed in range(3)]
    chunked = [rng.uniform(-1, 1, (3, 4, 2)).astype(np.float32) for _ in range(2)]
    near = ProcessSimulator("near", POINT, options, 2, 3, with_state=True)
    async with hosted() as (host, launcher):
        far = ProcessSimulator("far", POINT, options, 2, 3, with_state=True, launcher=launcher)
        for sim_call in (
            lambda sim: sim.reset(1, [0, 1, 2], tasks, [0, 1, 2]),
            *(lambda sim, each=each: sim.step(1, [2, 0, 1], list(each)) for each in chunked),
        ):
            one, other = await sim_call(near), await sim_call(far)
            assert list(map(values_of, one)) == list(map(values_of, other))
            assert one[0].state
        assert [worker["kind"] for worker in host.describe("")["workers"]] == ["simulator"]
        await far.close()
        assert host.describe("")["workers"] == []
    await near.close()


async def test_a_worker_that_dies_on_its_host_is_replaced_and_its_episodes_are_lost() -> None:
    async with hosted() as (_, launcher):
        far = ProcessSimulator("far", ODD, {}, 2, 3, launcher=launcher, heartbeat_s=0.05)
        await begin(far)
        with pytest.raises(WorkerError, match="exit code 7"):
            await far.step(0, [0], [("vanish",)])
        (lost,) = await far.step(0, [1], [GO])
        assert isinstance(lost.error, WorkerError) and "restarted" in str(lost.error)
        assert texts(await begin(far)) == ["count 0", "count 1", "count 2"]
        while (pid := far.read_health().pid) is None:
            await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        while far.read_health().num_restarts < 2:  # noticed although nobody calls it
            await asyncio.sleep(0.01)
        assert texts(await begin(far)) == ["count 0", "count 1", "count 2"]
        await far.close()


async def test_a_caller_builds_only_what_the_host_names() -> None:
    async with hosted(max_envs=4, env_options={POINT: {"image_size": 32}}) as (host, launcher):
        for env, options, shape, words in (
            ("os:environ", {}, (1, 1), "is not hosted here"),
            (ODD, {"nonsense": 1}, (1, 1), "nonsense is not an option"),
            (POINT, {"image_size": 64}, (1, 1), "belongs to the host"),
            (ODD, {}, (5, 1), "max_envs of the host"),
        ):
            sim = ProcessSimulator("far", env, options, *shape, launcher=launcher)
            with pytest.raises(ConfigError, match=words):
                await sim.start()
            await sim.close()
        wanted = RunConfig().model_copy(update={"seed": 3}).model_dump(mode="json")
        for factory, changes, words in (
            (SMALL, {}, "by no other factory"),
            (RUN, {"policy": {"model": "/etc"}}, "'/etc' is not hosted here"),
            (RUN, {"recipe": {"name": "evil:RECIPE"}}, "names a module"),
            (RUN, {"env": {"name": "evil:Env"}}, "is not hosted here"),
            (RUN, {"policy": {"dtype": "int1"}}, "policy.dtype"),
            (RUN, {"engine": {"of_later": 1}}, f"unknown key.* This host has Stepwell {__version__}"),
        ):
            gen = ProcessGenerator("far", factory, {"config": wanted | changes}, launcher=launcher)
            with pytest.raises(ConfigError, match=words):
                await gen.start()
            await gen.close()
        with pytest.raises(ConfigError, match="there is no 'cuda:3' here; this host has cpu"):
            far = HttpLauncher("http://127.0.0.1", "cuda:3", transport=launcher.transport)
            await ProcessSimulator("far", ODD, {}, launcher=far).start()
        assert host.describe("")["workers"] == []


async def test_keys_divide_workers_and_wrong_bodies_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {name: create_key(name) for name in ("alice", "bob")}
    hashes = {name: hash_key(key) for name, key in keys.items()}
    async with hosted(keys=hashes, max_body_bytes=4096, max_workers=1) as (host, launcher):
        monkeypatch.setenv("STEPWELL_WORKER_KEY", "wrong")
        with pytest.raises(ConfigError, match=r"unknown API key .*STEPWELL_WORKER_KEY"):
            await ProcessSimulator("far", ODD, {}, launcher=launcher).start()
        monkeypatch.setenv("STEPWELL_WORKER_KEY", keys["alice"])
        far = ProcessSimulator("far", ODD, {}, launcher=launcher)
        await far.start()
        (worker,) = host.describe("alice")["workers"]
        assert host.describe("bob")["workers"] == []
        headers = {"authorization": f"Bearer {keys['bob']}"}
        client = httpx.AsyncClient(transport=launcher.transport, base_url="http://127.0.0.1", headers=headers)
        async with client:
            path = f"/workers/{worker['id']}"
            assert (await client.post("/workers", json={"name": "b", "device": "cpu"})).status_code == 503
            for method, where, body, status in (
                ("GET", path, b"", 404),
                ("DELETE", path, b"", 404),
                ("POST", f"{path}/call", to_bytes(Frame("step", {})), 404),
                ("POST", f"{path}/call", b"hello", 400),
                ("POST", f"{path}/call", to_bytes(Frame("step", {}))[:-1], 400),
                ("POST", f"{path}/call", b"x" * 5000, 413),
                ("POST", "/workers", b"{}", 400),
                ("GET", "/docs", b"", 404),
            ):
                assert (await client.request(method, where, content=body)).status_code == status, where
        await far.close()


async def test_a_worker_whose_run_is_silent_is_ended() -> None:
    async with hosted(lease_s=0.2) as (host, launcher):
        far = ProcessSimulator("far", ODD, {}, launcher=launcher)
        await far.start()
        pid = host.describe("")["workers"][0]["pid"]
        for task in far._channel._connection._tasks:  # type: ignore[attr-defined]  # as if its run were dead
            task.cancel()
        while host.describe("")["workers"] or is_running(pid):
            await asyncio.sleep(0.02)
        with pytest.raises(WorkerError, match=r"there is no worker"):
            await far.step(0, [0], [GO])
        await far.close()


async def test_a_machine_that_falls_silent_is_given_up_after_hang_s() -> None:
    app = create_worker_host_app(WorkerServiceConfig(envs=(ODD,), devices=("cpu",)))
    inner, is_silent = httpx.ASGITransport(app), asyncio.Event()

    class Network(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            while is_silent.is_set():
                await asyncio.sleep(0.02)
            return await inner.handle_async_request(request)

    async with app.router.lifespan_context(app):
        launcher = HttpLauncher("http://127.0.0.1", "cpu", heartbeat_s=0.05, transport=Network())
        far = ProcessSimulator(
            "far", ODD, {}, launcher=launcher, heartbeat_s=0.05, hang_s=0.4, max_restarts=0
        )
        await begin(far, count=1)
        is_silent.set()
        with pytest.raises(WorkerError, match="gave no sign of life for 0"):
            await far.step(0, [0], [GO])
        is_silent.clear()
        await far.close()
    with pytest.raises(WorkerError, match=r"cannot be started at \S+: cannot be reached"):
        await ProcessSimulator("far", ODD, {}, launcher=HttpLauncher("http://127.0.0.1:9", "cpu")).start()


@contextmanager
def served(**settings: Any) -> Iterator[str]:
    """A host that listens."""
    url, stop = serve_in_thread(create_worker_host_app(WorkerServiceConfig(**settings)))
    try:
        yield url
    finally:
        stop()


@pytest.mark.slow
def test_a_run_with_workers_on_a_host_learns_from_every_episode_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = warmed_model()
    with served(devices=("cpu",), models={Path(model).name: model}, num_threads=1) as url:
        settings = (
            "recipe.name=rloo",
            "workers.mode=stream",
            f"workers.hosts={{far='{url}'}}",
            "workers.simulators.devices=['far/cpu']",
            "workers.simulators.num_workers=1",
            "workers.placement=disaggregated",
            "workers.generators.devices=['far/cpu']",
            "workers.generators.max_wait_ms=1",
            "train.num_updates=3",
            "eval.num_tasks=2",
        )
        folder = train(small_config(*settings, folder=tmp_path, name="run"))
        assert main(["cluster", "status", "--host", url, "--run", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert f"{url}: devices cpu; 0 of 16 workers" in printed and "groups that wait for the trainer" in printed
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        played = list(pool.find(Filter(channel="train")))
    assert len(played) == 3 * 8 and {entry.state for entry in played} == {"consumed"}
    assert not any(entry.status is Status.INFRA_ERROR for entry in played)


def test_a_host_without_a_url_of_its_own_is_found_at_the_usual_port() -> None:
    assert find_host_url("gpu1", {}) == "http://gpu1:8096"
    assert find_host_url("gpu1", {"gpu1": "https://gpu1.example/"}) == "https://gpu1.example"
