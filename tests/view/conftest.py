"""A pool with hand-made trajectories, and recorded runs with a server and a browser in front of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.envs.web.conftest import CHROMIUM
from tests.shared import make_once
from tests.view import made_runs
from tests.view.hostile import SHOTS, TOKEN, write_hostile_run

from stepwell.pool.credit_records import TRAINED, CreditRecord
from stepwell.pool.credit_store import CreditStore
from stepwell.services.http_server import serve_in_thread
from stepwell.view.access import HEADER
from stepwell.view.app import ViewApp


@pytest.fixture(scope="package")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of its own with one recorded run of each kind."""
    from tests.view.recorded import record_run

    from stepwell.config.loading import load_config
    from stepwell.runs.run import train

    def record_runs(folder: Path) -> None:
        for kind in ("text", "vision", "robot", "web", "streaming"):
            record_run(kind, folder)

    folder = tmp_path_factory.mktemp("view") / "runs"
    shutil.copytree(make_once("view-runs", record_runs), folder)
    if SHOTS:  # a run that learns makes better pictures: half of the demo, some minutes
        half = ("train.num_updates=15", "eval.num_tasks=64")
        train(load_config("demo", [f"folder={folder}", "name=courier", *half]))
    return folder


@pytest.fixture(scope="package")
def address(runs: Path) -> Iterator[str]:
    """The address of a view over them."""
    view = ViewApp([str(runs)], token=TOKEN)
    url, stop = serve_in_thread(view.app)
    yield url
    stop()
    view.close()


@pytest.fixture(scope="module")  # its event loop must not be there for tests of other modules
def browser() -> Iterator[Any]:
    """A real Chromium."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as started:
        flags = ["--no-sandbox", "--disable-gpu", "--process-per-site"]
        opened = started.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs made by hand, one with credit records, and one that tries to break out of its page."""
    made = tmp_path_factory.mktemp("made")
    made_runs.write_run(made)
    made_runs.write_run(made, "lake-seed1", 0, seed=1)
    write_hostile_run(made)
    with CreditStore(made / "one", 1.0) as store:
        lengths, versions = np.array([2], np.int32), np.array([[3, 4]], np.int32)
        floats = np.array([0.5, -2.0], np.float32)
        flags = np.array([TRAINED, TRAINED | 1], np.uint8)
        record = CreditRecord("traj-118", 9, lengths, versions, flags, floats, floats[:1], floats, floats**2)
        store.write(9, [record])
    return made


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    """A view over them, asked without a server."""
    view = ViewApp([str(folder)], token=made_runs.TOKEN)
    with TestClient(view.app, base_url="http://127.0.0.1") as opened:
        opened.headers[HEADER] = made_runs.TOKEN
        yield opened
    view.close()
