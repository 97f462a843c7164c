"""Settings of an outside model that is evaluated: its API, limits and prices."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stepwell.config.base import Settings


class ChatApiConfig(Settings):
    """A model behind an OpenAI-compatible chat API."""

    url: str = Field(description="base URL, up to and without `/chat/completions`")
    model: str = Field(min_length=1, description="name of the model there")
    key_variable: str = Field(
        "OPENAI_API_KEY", description="environment variable that holds the API key; may be unset"
    )
    max_concurrent: int = Field(16, ge=1, description="episodes, and so calls, at once")
    rate_per_s: float = Field(0.0, ge=0, description="calls per second; 0: no limit")
    timeout_s: float = Field(120.0, gt=0, description="longest wait for one answer")
    max_retries: int = Field(5, ge=0, description="retries of a call after a temporary failure")
    backoff_s: float = Field(1.0, ge=0, description="wait before the first retry; it doubles each time")
    tools: Literal["auto", "api", "text"] = Field(
        "auto",
        description="give tools in the API's own field, in the prompt, or in the prompt if the API refuses",
    )
    prompt_price: float = Field(0.0, ge=0, description="price of a million prompt tokens, in any currency")
    completion_price: float = Field(0.0, ge=0, description="price of a million tokens of answers")
