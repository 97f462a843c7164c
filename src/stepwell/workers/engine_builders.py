"""Functions that build the engine of a generator worker from settings.

Settings name a builder by its import path (`module:function`), so that users can bring their own. The
engine has `generate` (a coroutine), `load_weights(version, weights)`, `fingerprint()` and `forget()`. It
ends with its process.

Both builders here take `model` (a directory, or the name of a built-in language model) and optionally
`config` (of `EngineConfig`), `dtype`, `device` and `version`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepwell.config.engine import EngineConfig
from stepwell.core import ConfigError

EMBEDDED = "stepwell.workers.engine_builders:build_embedded_engine"
ARRAY = "stepwell.workers.engine_builders:build_array_engine"
RUN = "stepwell.runs.build.worker_builder:build_engine"  # of the settings of a whole run
_KNOWN = ("model", "config", "dtype", "device", "version")


def build_embedded_engine(settings: Mapping[str, Any]) -> Any:
    """The embedded engine, for language models."""
    model, config, more = _read_settings(settings)
    from stepwell.engines.embedded import EmbeddedEngine
    from stepwell.engines.numerics import set_numerics

    set_numerics()  # the number of threads is set in the environment of the process
    return EmbeddedEngine.from_pretrained(model, config, **more)


def build_array_engine(settings: Mapping[str, Any]) -> Any:
    """The engine of robot policies."""
    model, config, more = _read_settings(settings)
    from stepwell.engines.array_engine import ArrayEngine
    from stepwell.engines.numerics import set_numerics

    set_numerics()
    return ArrayEngine.from_pretrained(model, config, **more)


def _read_settings(settings: Mapping[str, Any]) -> tuple[str, EngineConfig, dict[str, Any]]:
    """The model, the engine's settings, and the rest. Runs before anything heavy is imported."""
    unknown = sorted(set(settings) - set(_KNOWN))
    if unknown or "model" not in settings:
        what = f"does not know {unknown[0]!r}" if unknown else "needs 'model'"
        raise ConfigError(f"settings of the engine: it {what} (known: {', '.join(_KNOWN)})")
    more = {name: settings[name] for name in ("dtype", "device", "version") if name in settings}
    return settings["model"], EngineConfig.model_validate(settings.get("config", {})), more
