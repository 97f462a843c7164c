"""One gateway for the client tests, served over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.services.dialects.echo_gateway import Served, serve_echo_gateway


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_echo_gateway(tmp_path_factory.mktemp("echo")) as served:
        yield served
