"""An outside model is played like one of our own: the same tasks, the same replies, the same figures.

The outside model is one of ours behind a real gateway, over real HTTP: whatever differs between the two
evaluations is a mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runs.small import small_config, warmed_model
from tests.services.gateways import serve_gateway

from stepwell.config.chat_api import ChatApiConfig
from stepwell.config.engine import EngineConfig
from stepwell.config.gateway import GatewayConfig
from stepwell.config.run import RunConfig
from stepwell.core import Status, Trajectory
from stepwell.engines import EmbeddedEngine
from stepwell.pool import PoolImageStore, open_pool
from stepwell.rendering import Renderer
from stepwell.runs.evaluation.chat_evaluation import EndpointEvaluation
from stepwell.runs.evaluation.evaluate import evaluate_run
from stepwell.runs.evaluation.result import EvalReport
from stepwell.services.gateway.app import create_app
from stepwell.services.gateway.gateway import Gateway
from stepwell.services.http_server import serve_in_thread

GREEDY = ("eval.num_tasks=16", "eval.temperature=0")
VLM = "tiny-vlm-0.5m"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway that serves the model which the native evaluation plays."""
    engine = EmbeddedEngine.from_pretrained(warmed_model(), EngineConfig(max_batch_size=16, num_slots=64))
    with serve_gateway(tmp_path_factory.mktemp("gateway"), engine) as served:
        yield f"{served.url}/v1"


def replies(trajectories: list[Trajectory]) -> list[list[str]]:
    return [[s.action.text for s in t.steps] for t in trajectories]


def both(model: str, config: RunConfig, url: str, folder: Path) -> tuple[EvalReport, EvalReport]:
    """Natively and through the API; refused unless they agree word for word."""
    native = evaluate_run(model, config)
    endpoint = ChatApiConfig(url=url, model="stepwell", max_concurrent=5)
    outside = EndpointEvaluation(config, endpoint, folder / "eval").run()
    ours, theirs = native.result.trajectories, outside.result.trajectories
    assert [t.task.id for t in ours] == [t.task.id for t in theirs]
    assert replies(ours) == replies(theirs)
    assert [t.status for t in ours] == [t.status for t in theirs]
    one, two = native.result.values(), outside.result.values()
    assert one.keys() == two.keys()
    assert {name: pytest.approx(value) for name, value in one.items()} == two
    return native, outside


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("agent.context=observation",),
        ("agent.strategy=free_think", "agent.repeat_format=true", "env.options.max_turns=3"),
        ("agent.context=window", "agent.context_turns=1", "env.options.max_turns=3"),
        ("agent.context=summary", "agent.context_turns=1", "env.options.max_turns=3"),
        ("env.name=tests.envs.tool_envs:Notes", "env.options={}", "agent.context=observation"),
    ],
)
def test_a_model_behind_an_api_says_and_reaches_what_it_does_natively(
    url: str, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    config = small_config(*GREEDY, "engine.max_length=2000", *settings)
    native, outside = both(warmed_model(), config, url, tmp_path)
    if not settings:  # what it was taught
        assert any(t.status is Status.SUCCESS for t in native.result.trajectories)
        assert any(len(t.steps) > 1 for t in native.result.trajectories)
    assert outside.more["failed_tries"] == 0


def test_a_model_that_sees_says_the_same_behind_an_api(tmp_path: Path) -> None:
    world = "env.options={size=3, max_turns=2, observation='image', tile_size=8}"
    config = small_config("eval.num_tasks=4", world, "agent.guide=false", "engine.max_length=300")
    with open_pool(tmp_path / "pool.db") as pool:
        images = PoolImageStore(pool)
        engine = EmbeddedEngine.from_pretrained(VLM, EngineConfig(max_batch_size=8), image_store=images)
        renderer = Renderer(
            engine.tokenizer,
            context_length=engine.max_length,
            image_format=engine.image_format,
            image_store=images,
        )
        address, stop = serve_in_thread(create_app(Gateway(engine, renderer, pool, GatewayConfig())))
        try:
            both(VLM, config, f"{address}/v1", tmp_path)
        finally:
            stop()
            engine.close()
