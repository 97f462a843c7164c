"""Former import paths work for one release, with a warning."""

from __future__ import annotations

import importlib

import pytest

from stepwell.services import http_server


def test_the_former_server_module_works_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="change the import"):
        former = importlib.import_module("stepwell.services.serving")
    assert former.serve_in_thread is http_server.serve_in_thread
