"""Settings of the judge of state descriptions, and of the penalty for repetition."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from stepwell.config.base import Settings, Url


class EndpointConfig(Settings):
    """A judge behind an OpenAI-compatible chat API."""

    url: Url = Field(None, description="base URL, up to and without `/chat/completions`")
    model: str = Field("", description="name of the model there")
    key_variable: str = Field(
        "STEPWELL_JUDGE_KEY", description="environment variable that holds the API key; may be unset"
    )
    max_concurrent: int = Field(16, ge=1, description="questions in flight at once")
    rate_per_s: float = Field(0.0, ge=0, description="calls per second; 0: no limit")
    timeout_s: float = Field(30.0, gt=0, description="longest wait for one answer")
    max_retries: int = Field(4, ge=0, description="retries after a temporary failure")
    backoff_s: float = Field(0.5, ge=0, description="wait before the first retry; it doubles each time")
    max_tokens: int = Field(256, ge=1, description="longest answer")
    cache: str | None = Field(
        None, description="JSONL file that keeps answers between runs; None: this run's memory alone"
    )
    on_failure: Literal["stop", "rule"] = Field(
        "stop", description="after the last retry: an error, or the rule judge's verdict, which is counted"
    )


class JudgeConfig(Settings):
    """How descriptions and predictions are compared with the truth and rewarded."""

    kind: Literal["match", "rule", "endpoint"] = Field(
        "match",
        description="matching of the environment's own words, the rule judge, or a model behind an endpoint",
    )
    answer: Literal["yes_no", "dictionary"] = Field(
        "yes_no",
        description="what the endpoint is asked for: a verdict, or the facts of the text as a dictionary, "
        "which is then compared with the truth by F1",
    )
    threshold: float = Field(0.7, ge=0, le=1, description="score from which a text counts as right")
    graded: bool = Field(
        True, description="reward the score of rules or of a dictionary; else 1 for yes and 0 for no"
    )
    repetition_penalty: float = Field(
        0.0, ge=0, description="penalty for a reply that repeats a frequent sentence and is wrong; paper: 0.1"
    )
    repetition_top: int = Field(10, ge=1, description="how many of the most frequent sentences count")
    repetition_min_share: float = Field(
        0.1, gt=0, le=1, description="share of recent texts from which a sentence counts as frequent"
    )
    repetition_memory: float = Field(
        0.8, ge=0, lt=1, description="how much of the earlier counts each batch keeps; 0: this batch alone"
    )
    endpoint: EndpointConfig = Field(default_factory=EndpointConfig)

    @model_validator(mode="after")
    def _require_endpoint(self) -> JudgeConfig:
        if self.kind == "endpoint" and not (self.endpoint.url and self.endpoint.model):
            raise ValueError('kind = "endpoint" needs endpoint.url and endpoint.model; set them')
        return self
