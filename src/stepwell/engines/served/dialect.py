"""What a run asks of an inference server besides samples. Each kind of server has its own words for it.

    check_control ─► refuse a server that takes no weights
    pause ─► load_folder ─► drop_cache ─► resume          an update; requests under way wait meanwhile
             (load_group: by collective)
    read_label                                            which weights it has, by its own account
    score_tokens                                          its logprobs of given tokens

Invariant: after `drop_cache` no key, value or image feature of older weights is used, also not by requests
under way, which compute theirs again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from stepwell.config.engine import RemoteEngineConfig
from stepwell.core.errors import ConfigError, EngineError
from stepwell.core.step import TokenState
from stepwell.engines.remote import RemoteEngine
from stepwell.engines.server_client import ServerClient

if TYPE_CHECKING:
    import torch

    from stepwell.engines.served.weight_group import WeightGroup


class ServerDialect(Protocol):
    """The commands of one kind of server."""

    name: str
    has_fixed_name: bool  # whether the model keeps its name in an update of weights
    drops_when_idle: bool  # an update drops the cache itself; `drop_cache` waits for requests to end

    def make_sampler(self, url: str, model: str, config: RemoteEngineConfig, tokenizer: Any) -> RemoteEngine:
        """Who samples at one server."""

    async def check_control(self, client: ServerClient) -> None:
        """Raise `ConfigError` if the server lacks the endpoints of an update."""

    async def read_label(self, client: ServerClient) -> str:
        """The label that the last update gave to the server's weights."""

    async def pause(self, client: ServerClient) -> None:
        """Hold all requests where they are; new ones wait."""

    async def resume(self, client: ServerClient) -> None:
        """End a pause."""

    async def load_folder(self, client: ServerClient, folder: Path, label: str) -> None:
        """Load the weights of a Hugging Face directory that the server can read."""

    async def load_group(
        self, client: ServerClient, group: WeightGroup, weights: Mapping[str, torch.Tensor], label: str
    ) -> None:
        """Broadcast weights to the server's workers."""

    async def drop_cache(self, client: ServerClient) -> None:
        """Forget all keys and values."""

    async def score_tokens(self, sampler: RemoteEngine, state: TokenState) -> list[float]:
        """The logprobs of all of a prompt's tokens but the first, at temperature 1."""


async def find_model_name(client: ServerClient, wanted: str | None) -> str:
    """The name under which a server serves the policy."""
    return choose_model_name(await client.send_json("GET", "/v1/models"), wanted, client.base_url)


def choose_model_name(data: Any, wanted: str | None, url: str) -> str:
    """The wanted name, or the only one, of a list of models."""
    cards = data.get("data") if isinstance(data, dict) else None
    names = [str(card.get("id")) for card in cards or [] if isinstance(card, dict) and not card.get("parent")]
    if wanted is not None and wanted in names:
        return wanted
    if wanted is None and len(names) == 1:
        return names[0]
    listed = ", ".join(names) or "nothing"
    problem = f"does not serve {wanted!r}" if wanted else "does not serve exactly one model"
    raise ConfigError(f"{url} {problem}; it serves {listed}. Set engine.server.model")


def read_numbers(values: Any, count: int, where: str) -> list[float]:
    """Check that a server returned this many finite logprobs."""
    if not isinstance(values, list) or len(values) != count:
        found = len(values) if isinstance(values, list) else "none"
        raise EngineError(f"{where} returned {found} logprobs of {count} tokens; is it a recent version?")
    return [float(value) for value in values]
