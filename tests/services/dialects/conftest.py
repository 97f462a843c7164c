"""One gateway for the tests of clients, served over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.services.dialects.parrot import Served, serve_parrot


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_parrot(tmp_path_factory.mktemp("parrot")) as served:
        yield served
