"""Hosts of the own web, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stepwell.envs.web.sites import SiteHost


@pytest.fixture(scope="module")
def tiny_host() -> Iterator[SiteHost]:
    host = SiteHost(0, "tiny")
    yield host
    host.stop()


@pytest.fixture(scope="module")
def full_host() -> Iterator[SiteHost]:
    host = SiteHost(0, "full")
    yield host
    host.stop()


@pytest.fixture(scope="module")
def hosts(tiny_host: SiteHost, full_host: SiteHost) -> dict[Any, SiteHost]:
    return {"tiny": tiny_host, "full": full_host}
