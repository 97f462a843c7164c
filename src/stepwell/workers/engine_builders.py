"""Engines that a generator worker can be told to build: functions from settings to an engine.

A factory is named by its import path (`module:function`), so that anybody's engine can be used. What it
returns has `generate` (a coroutine), `load_weights(version, weights)`, `fingerprint()` and `forget()`, as
the two here do. It ends with its process.

Both take `model` (a directory; for language models also a built-in name), and may be given `config` (of
`EngineConfig`), `dtype`, `device` and `version`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepwell.config.engine import EngineConfig
from stepwell.core import ConfigError

EMBEDDED = "stepwell.workers.engine_builders:build_embedded_engine"
ARRAY = "stepwell.workers.engine_builders:build_array_engine"
_KNOWN = ("model", "config", "dtype", "device", "version")


def build_embedded_engine(settings: Mapping[str, Any]) -> Any:
    """The embedded engine, for language models."""
    model, config, more = _read_settings(settings)
    from stepwell.engines.build_embedded_engine import EmbeddedEngine
    from stepwell.engines.numerics import set_numerics

    set_numerics()  # the number of threads is in the process's environment
    return EmbeddedEngine.from_pretrained(model, config, **more)


def build_array_engine(settings: Mapping[str, Any]) -> Any:
    """The engine of robot policies."""
    model, config, more = _read_settings(settings)
    from stepwell.engines.array_engine import ArrayEngine
    from stepwell.engines.numerics import set_numerics

    set_numerics()
    return ArrayEngine.from_pretrained(model, config, **more)


def _read_settings(settings: Mapping[str, Any]) -> tuple[str, EngineConfig, dict[str, Any]]:
    """The model, the engine's own settings, and the rest; before anything heavy is imported."""
    unknown = sorted(set(settings) - set(_KNOWN))
    if unknown or "model" not in settings:
        what = f"does not know {unknown[0]!r}" if unknown else "needs 'model'"
        raise ConfigError(f"settings of the engine: it {what} (it takes {', '.join(_KNOWN)})")
    more = {name: settings[name] for name in ("dtype", "device", "version") if name in settings}
    return settings["model"], EngineConfig.model_validate(settings.get("config", {})), more
