"""Where no off-screen GL library is installed, tests that need one are skipped, and say so."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from stepwell.core import ConfigError
from stepwell.envs.robots.cameras import NO_GL


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    try:
        return (yield)
    except ConfigError as error:
        if NO_GL in str(error):
            pytest.skip(NO_GL)
        raise
