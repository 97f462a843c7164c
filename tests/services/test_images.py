"""A policy that sees behind the gateway: clients' images become exact prompts, in every dialect."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import anthropic
import numpy as np
import openai
import pytest
from PIL import Image
from tests.services.gateways import Served, assistant_message, chat, user

from stepwell.config.engine import EngineConfig
from stepwell.config.gateway import GatewayConfig
from stepwell.core import ImageStore, Request, SamplingParams, Step, TokenState
from stepwell.engines import EmbeddedEngine
from stepwell.pool import PoolImageStore, open_pool
from stepwell.rendering import Renderer
from stepwell.services.gateway.app import create_app
from stepwell.services.gateway.gateway import Gateway
from stepwell.services.http_server import serve_in_thread

MODEL = "tiny-vlm-0.5m"
MAX_PIXELS = 5000


def make_image(seed: int, height: int = 40, width: int = 60) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encode_image(image: np.ndarray, kind: str = "PNG") -> str:
    file = io.BytesIO()
    Image.fromarray(image).save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


def show_image(image: np.ndarray, text: str) -> dict[str, Any]:
    """A message of OpenAI's chat with an image."""
    url = f"data:image/png;base64,{encode_image(image)}"
    return {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}],
    }


@cache
def engine(folder: Path) -> EmbeddedEngine:
    return EmbeddedEngine.from_pretrained(
        MODEL,
        EngineConfig(max_batch_size=4, num_slots=8),
        image_store=PoolImageStore(open_pool(folder / "pool.db")),
    )


@contextmanager
def serve_gateway(folder: Path) -> Iterator[Served]:
    sampler = engine(folder)
    with open_pool(folder / "pool.db") as pool:
        renderer = Renderer(
            sampler.tokenizer,
            context_length=sampler.max_length,
            image_format=sampler.image_format,
            image_store=PoolImageStore(pool),
        )
        gateway = Gateway(sampler, renderer, pool, GatewayConfig(max_pixels=MAX_PIXELS))
        url, stop = serve_in_thread(create_app(gateway))
        try:
            yield Served(url, pool, gateway, stop)
        finally:
            stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("seeing")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with serve_gateway(folder) as gateway:
        yield gateway


def images(step: Step) -> list[str]:
    assert isinstance(step.state, TokenState)
    return [span.image for span in step.state.images]


def names(*seeds: int) -> list[str]:
    return [ImageStore().add(make_image(seed)) for seed in seeds]


def test_an_image_in_a_chat_is_part_of_the_prompt_and_stored_with_the_step(served: Served) -> None:
    reply = chat(served.openai("chat"), [show_image(make_image(1), "Where now?")])
    (step,) = served.steps("chat").values()
    assert images(step) == names(1)
    assert np.array_equal(served.pool.load_image(images(step)[0]), make_image(1))
    again = served.gateway.sampler.generate_blocking(  # type: ignore[attr-defined]
        [Request(step.state, SamplingParams(max_tokens=8, seed=1))]
    )[0]
    assert again.action == step.action
    np.testing.assert_allclose(step.behavior_logprobs, again.logprobs, atol=1e-5)
    assert reply.usage.prompt_tokens == step.state.prompt_ids.size  # type: ignore[union-attr]


def test_later_turns_continue_the_exact_ids_with_the_images_before_them(served: Served) -> None:
    client, messages = served.openai("line"), [show_image(make_image(1), "one")]
    for seed in (2, 3):
        messages += [assistant_message(chat(client, messages)), show_image(make_image(seed), f"turn {seed}")]
    chat(client, messages)
    steps = list(served.steps("line").values())
    assert [images(step) for step in steps] == [names(1), names(1, 2), names(1, 2, 3)]
    for one, other in pairwise(steps):
        before = np.concatenate([one.state.prompt_ids, one.action.action_ids])  # type: ignore[union-attr]
        assert np.array_equal(other.state.prompt_ids[: before.size], before)  # type: ignore[union-attr]
        assert other.state.images[: len(one.state.images)] == one.state.images  # type: ignore[union-attr]


def test_another_image_in_the_history_is_a_branch(served: Served) -> None:
    client = served.openai("branch")
    answer = assistant_message(chat(client, [show_image(make_image(1), "one")]))
    chat(client, [show_image(make_image(2), "one"), answer, user("go on")])
    first, second = served.steps("branch").values()
    assert images(first) == names(1) and images(second) == names(2)
    assert second.info["parent"] is None


def test_a_restarted_gateway_continues_from_the_images_in_its_pool(tmp_path: Path) -> None:
    messages = [show_image(make_image(4), "one")]
    with serve_gateway(tmp_path) as gateway:
        messages += [
            assistant_message(chat(gateway.openai("back"), messages)),
            show_image(make_image(5), "two"),
        ]
    with serve_gateway(tmp_path) as gateway:
        chat(gateway.openai("back"), messages)
        first, second = gateway.steps("back").values()
        assert second.info["parent"] == 0 and images(second) == names(4, 5)
        assert second.state.images[0] == first.state.images[0]  # type: ignore[union-attr]


def test_the_anthropic_and_responses_dialects_accept_images(served: Served) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": encode_image(make_image(6))}
    blocks: list[Any] = [{"type": "image", "source": source}, {"type": "text", "text": "look"}]
    client = served.anthropic("claude")
    client.messages.create(model="m", max_tokens=4, messages=[{"role": "user", "content": blocks}])
    counted = client.messages.count_tokens(model="m", messages=[{"role": "user", "content": blocks}])
    (step,) = served.steps("claude").values()
    assert images(step) == names(6) and counted.input_tokens == step.state.prompt_ids.size  # type: ignore[union-attr]
    url = f"data:image/png;base64,{encode_image(make_image(6))}"
    content = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "look"}]
    served.openai("responses").responses.create(
        model="m",
        input=[{"role": "user", "content": content}],
        max_output_tokens=16,  # type: ignore[arg-type,list-item]
    )
    (other,) = served.steps("responses").values()
    assert np.array_equal(other.state.prompt_ids, step.state.prompt_ids)  # type: ignore[union-attr]
    assert images(other) == images(step)


def test_a_jpeg_is_read_as_pillow_reads_it(served: Served) -> None:
    data = encode_image(make_image(7), "JPEG")
    part = {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}}
    chat(served.openai("jpeg"), [{"role": "user", "content": [part, {"type": "text", "text": "?"}]}])
    (step,) = served.steps("jpeg").values()
    expected = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))
    assert images(step) == [ImageStore().add(expected)]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://169.254.169.254/latest.png", "nothing is fetched"),
        ("file:///etc/passwd", "nothing is fetched"),
        ("data:image/png,AAAA", "nothing is fetched"),
        ("data:image/svg+xml;base64,AAAA", "image/png or image/jpeg"),
        ("data:image/png;base64,%%%", "not valid base64"),
        ("data:image/png;base64,AAAA", "PNG file cannot be read"),
        (f"data:image/png;base64,{encode_image(make_image(1), 'JPEG')}", "PNG file cannot be read"),
        (f"data:image/png;base64,{encode_image(make_image(1))[:400]}", "PNG file cannot be read"),
        (f"data:image/png;base64,{encode_image(make_image(1, 71, 71))}", "at most 5,000 are read"),
    ],
)
def test_an_invalid_image_or_one_outside_the_request_is_refused(
    served: Served, url: str, reason: str
) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    with pytest.raises(openai.BadRequestError, match=reason) as caught:
        chat(served.openai("bad"), [{"role": "user", "content": [part, {"type": "text", "text": "?"}]}])
    assert caught.value.param == "messages[0].content[0]"


def test_images_in_messages_of_other_roles_are_refused(served: Served) -> None:
    result = {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": [{"type": "image", "source": {"type": "base64"}}],
    }
    with pytest.raises(anthropic.BadRequestError, match="reads text only"):
        served.anthropic("tool").messages.create(
            model="m",
            max_tokens=4,
            messages=[{"role": "user", "content": [result]}],  # type: ignore[list-item]
        )
