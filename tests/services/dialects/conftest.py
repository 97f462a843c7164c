"""One gateway for the tests of clients, served over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.services.dialects.parrot import Served, serve_parrot


@pytest.fixture(scope="session")
def _parrot() -> Iterator[Served]:
    with serve_parrot() as served:
        yield served


@pytest.fixture
def served(_parrot: Served) -> Served:
    _parrot.reset()
    return _parrot
