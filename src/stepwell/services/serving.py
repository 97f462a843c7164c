"""The former name of `stepwell.services.http_server`, kept for one release."""

from __future__ import annotations

import warnings

from stepwell.services.http_server import serve, serve_in_thread

__all__ = ["serve", "serve_in_thread"]

warnings.warn(
    "stepwell.services.serving is now stepwell.services.http_server; change the import",
    DeprecationWarning,
    stacklevel=2,
)
