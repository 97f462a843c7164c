"""One site, one browser and one place for all tests of the web in a process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from tests.envs.web.small_site import ScriptSite, serve_site

from stepwell.envs.web.browser import BROWSERS
from stepwell.envs.web.chromium import ChromiumDriver

CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)  # its path
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: scripts/install_chromium.sh")


@pytest.fixture(scope="session")
def site() -> ScriptSite:
    return ScriptSite()


@pytest.fixture(scope="session")
def port(site: ScriptSite) -> Iterator[int]:
    with serve_site(site) as port:
        yield port


@pytest.fixture
def chromium(port: int) -> Iterator[ChromiumDriver]:
    driver = ChromiumDriver(serve=lambda: port)
    yield driver
    driver.close()
