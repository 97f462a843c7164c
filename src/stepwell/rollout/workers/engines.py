"""Engines that a generator worker can be told to build: functions from settings to an engine.

A factory is named by its import path (`module:function`), so that anybody's engine can be used. What it
returns has `generate` (a coroutine), `load_weights(version, weights)`, `fingerprint()` and `forget()`, as
`EmbeddedEngine` does. It ends with its process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepwell.config.engine import EngineConfig
from stepwell.core import ConfigError

EMBEDDED = "stepwell.rollout.workers.engines:embedded"
_KNOWN = ("model", "config", "dtype", "device", "version")


def embedded(settings: Mapping[str, Any]) -> Any:
    """The embedded engine: `model` (a directory or built-in name), `config`, `dtype`, `device`, `version`."""
    unknown = sorted(set(settings) - set(_KNOWN))
    if unknown or "model" not in settings:
        what = f"does not know {unknown[0]!r}" if unknown else "needs 'model'"
        raise ConfigError(f"settings of the embedded engine: it {what} (it takes {', '.join(_KNOWN)})")
    from stepwell.engines.embedded import EmbeddedEngine

    more = {name: settings[name] for name in ("dtype", "device", "version") if name in settings}
    config = EngineConfig.model_validate(settings.get("config", {}))
    return EmbeddedEngine.from_pretrained(settings["model"], config, **more)
