"""An outside model is played like one of our own: the same tasks, the same replies, the same figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pipeline.small import small_config, warmed_model
from tests.services.gateways import serving

from stepwell.config.chat_api import ChatApiConfig
from stepwell.config.engine import EngineConfig
from stepwell.core import Status, TokenAction, Trajectory
from stepwell.engines import EmbeddedEngine
from stepwell.pipeline.chat_evaluation import EndpointEvaluation
from stepwell.pipeline.evaluation import evaluate_run

NATIVE = ("eval.num_tasks=16", "eval.temperature=0")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real gateway over HTTP that serves the model which the native evaluation plays."""
    engine = EmbeddedEngine.from_pretrained(warmed_model(), EngineConfig(max_batch_size=16, num_slots=64))
    with serving(tmp_path_factory.mktemp("gateway"), engine) as served:
        yield f"{served.url}/v1"


def replies(trajectories: list[Trajectory]) -> list[list[str]]:
    return [
        [s.action.text if isinstance(s.action, TokenAction) else str(s.info["reply"]) for s in t.steps]
        for t in trajectories
    ]


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("agent.memory=steps",),
        ("agent.strategy=free_think", "agent.remind=true", "env.options.max_turns=3"),
    ],
)
def test_a_model_behind_an_api_says_and_reaches_what_it_does_natively(
    url: str, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    config = small_config(*NATIVE, *settings)
    native = evaluate_run(warmed_model(), config)
    endpoint = ChatApiConfig(url=url, model="stepwell", max_concurrent=5)
    outside = EndpointEvaluation(config, endpoint, tmp_path / "eval").run()
    ours, theirs = native.result.trajectories, outside.result.trajectories
    assert [t.task.id for t in ours] == [t.task.id for t in theirs]
    assert replies(ours) == replies(theirs)
    assert [t.status for t in ours] == [t.status for t in theirs]
    assert settings or any(t.status is Status.SUCCESS for t in ours)  # what it was taught
    one, two = native.result.values(), outside.result.values()
    assert one.keys() == two.keys()
    for name in one.keys() - {"response_tokens"}:
        assert one[name] == pytest.approx(two[name]), name
