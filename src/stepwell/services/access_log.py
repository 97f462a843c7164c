"""The access log: one JSON object per request, without secrets and without content.

Method, path, status, duration, sizes, the key's name and the session: enough to see who did what and when.
Headers, query strings, bodies and keys are never written.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import IO, Any


class AccessLog:
    """Writes lines to a file, or to a stream such as standard error."""

    def __init__(self, where: str | Path | IO[str] | None) -> None:
        if isinstance(where, (str, Path)):
            path = Path(where).expanduser()
            path.parent.mkdir(parents=True, exist_ok=True)
            self._out: IO[str] = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115
        else:
            self._out = where or sys.stderr

    def write(self, **fields: Any) -> None:
        """Write one line. Fields that are None or empty are left out."""
        line = {
            "time": round(time.time(), 3),
            **{name: v for name, v in fields.items() if v not in (None, "")},
        }
        self._out.write(json.dumps(line, separators=(",", ":")) + "\n")

    def close(self) -> None:
        if self._out not in (sys.stderr, sys.stdout):
            self._out.close()
