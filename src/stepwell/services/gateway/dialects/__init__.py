"""The dialects: vendors' chat APIs as their own clients use them, one file each.

    POST /v1/chat/completions   openai_chat.py          GET /v1/models          models.py
    POST /v1/completions        openai_completions.py   GET /v1/models/{name}
    POST /v1/responses          openai_responses.py     POST /v1/messages       anthropic_messages.py

Each turns JSON into a `ChatRequest`, and a `ChatCompletion` into JSON or a stream of events. None knows about
tokens, sessions or engines. `routers.py` connects them to a gateway.
"""

from __future__ import annotations

from stepwell.services.gateway.dialects.errors import make_error_response
from stepwell.services.gateway.dialects.routers import make_routers

__all__ = ["make_error_response", "make_routers"]
