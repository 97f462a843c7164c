"""A pool with hand-made trajectories, and recorded runs with a server and a browser in front of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.envs.web.conftest import CHROMIUM
from tests.shared import make_once
from tests.view.hostile import SHOTS, TOKEN

from stepwell.services.http_server import serve_in_thread
from stepwell.view.app import ViewApp


@pytest.fixture(scope="package")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of its own with one recorded run of each kind."""
    from tests.view.recorded import record_run

    def record_runs(folder: Path) -> None:
        for kind in ("text", "vision", "robot", "web", "streaming"):
            record_run(kind, folder)

    folder = tmp_path_factory.mktemp("view") / "runs"
    shutil.copytree(make_once("view-runs", record_runs), folder)
    if SHOTS:  # a longer run makes better pictures
        record_run("text", folder, "train.num_updates=6", "train.group_size=4", name="lake")
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
