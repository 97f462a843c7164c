"""Where no off-screen GL library is installed, tests that need one are skipped, and say so.

Compiled models take some 20 MB each: they go with the file that needed them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from stepwell.core import ConfigError
from stepwell.envs.robots import models
from stepwell.envs.robots.cameras import NO_GL


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    try:
        return (yield)
    except ConfigError as error:
        if NO_GL in str(error):
            pytest.skip(NO_GL)
        raise


@pytest.fixture(scope="module", autouse=True)
def forget_compiled_models() -> Iterator[None]:
    yield
    models._compile_model.cache_clear()
