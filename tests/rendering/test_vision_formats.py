"""Image formats beside the image processors of transformers: the same pixels, the same counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from stepwell.core import InputError, ModelError
from stepwell.rendering.tiny import build_tokenizer
from stepwell.rendering.vision import load_image_format
from stepwell.rendering.vision.idefics import IdeficsFormat
from stepwell.rendering.vision.llava import LlavaFormat
from stepwell.rendering.vision.qwen import QwenFormat

SIZES = ((40, 60), (60, 40), (33, 21), (28, 28), (7, 90), (128, 96))
SIDES = st.integers(min_value=5, max_value=200)


def _image(height: int, width: int) -> Any:
    return np.random.default_rng(height * 1000 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def _processor(module: str, name: str, **settings: Any) -> Any:
    from importlib import import_module

    kind = getattr(import_module(f"transformers.models.{module}.image_processing_pil_{module}"), name)
    return kind(**settings)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("low_high", [(196, 3136), (56 * 56, 28 * 28 * 1280)])
def test_qwen_pixels_are_those_of_its_processor(size: tuple[int, int], low_high: tuple[int, int]) -> None:
    options = {"patch_size": 7, "merge_size": 2, "min_pixels": low_high[0], "max_pixels": low_high[1]}
    made = _processor("qwen2_vl", "Qwen2VLImageProcessorPil", **options)
    found = made(_image(*size), return_tensors="np")
    ours = QwenFormat("<p>", 5, {}, options)
    arrays = ours.build_arrays(_image(*size))
    assert arrays["image_grid_thw"].tolist() == found["image_grid_thw"].tolist()
    np.testing.assert_allclose(arrays["pixel_values"], found["pixel_values"], atol=1e-5)
    assert ours.build_tokens(*size).num_features == np.prod(found["image_grid_thw"]) // 4


@given(height=SIDES, width=SIDES)
@settings(max_examples=examples(60), deadline=None)
def test_qwen_positions_go_on_after_the_larger_side_and_never_look_ahead(height: int, width: int) -> None:
    from stepwell.core import ImageSpan
    from stepwell.rendering.vision import PlacedImage

    ours = QwenFormat("<p>", 5, {}, {"patch_size": 7, "merge_size": 2, "min_pixels": 196, "max_pixels": 9800})
    tokens = ours.build_tokens(height, width)
    placed = [PlacedImage(ImageSpan("0" * 32, 3, tokens.ids.size), tokens)]
    count = 3 + tokens.ids.size
    whole = ours.build_positions(count + 4, placed)
    assert tokens.grid is not None
    rows, columns = tokens.grid[1:]
    assert whole[:, :3].tolist() == [[0, 1, 2]] * 3
    assert whole[:, 3].tolist() == [3, 3, 3]
    assert whole[:, count - 1].tolist() == [3, 3 + rows - 1, 3 + columns - 1]
    after = 3 + max(rows, columns)
    assert whole[:, count:].tolist() == [list(range(after, after + 4))] * 3
    assert np.array_equal(ours.build_positions(count + 1, placed), whole[:, : count + 1])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_padded", [False, True])
def test_llava_pixels_are_those_of_its_processor(size: tuple[int, int], is_padded: bool) -> None:
    options: dict[str, Any] = {
        "size": {"shortest_edge": 28},
        "crop_size": {"height": 28, "width": 28},
        "do_pad": is_padded,
        "image_mean": [0.4, 0.5, 0.6],
        "image_std": [0.3, 0.2, 0.1],
        "resample": 3,
    }
    found = _processor("llava", "LlavaImageProcessorPil", **options)(_image(*size), return_tensors="np")
    config = {"vision_config": {"image_size": 28, "patch_size": 7, "model_type": "clip_vision_model"}}
    ours = LlavaFormat("<image>", 5, config, options)
    np.testing.assert_allclose(
        ours.build_arrays(_image(*size))["pixel_values"], found["pixel_values"], atol=1e-5
    )
    assert ours.build_tokens(*size).num_features == 16


def test_llava_counts_the_class_token_where_it_is_kept() -> None:
    options = {"crop_size": {"height": 28, "width": 28}}
    for tower, strategy, count in (
        ("clip_vision_model", "default", 16),
        ("clip_vision_model", "full", 17),
        ("siglip_vision_model", "full", 16),
    ):
        vision = {"image_size": 28, "patch_size": 7, "model_type": tower}
        config = {"vision_config": vision, "vision_feature_select_strategy": strategy}
        assert LlavaFormat("<image>", 5, config, options).build_tokens(9, 9).num_features == count


def test_a_tower_of_another_kind_is_refused() -> None:
    config = {"vision_config": {"image_size": 28, "patch_size": 7, "model_type": "pixtral"}}
    with pytest.raises(ModelError, match="vision tower 'pixtral' is not known"):
        LlavaFormat("<image>", 5, config, {"crop_size": {"height": 28, "width": 28}})


def test_an_image_that_may_not_be_resized_must_fit() -> None:
    ours = QwenFormat("<p>", 5, {}, {"patch_size": 7, "merge_size": 2, "do_resize": False})
    assert ours.build_tokens(28, 42).grid == (1, 2, 3)
    with pytest.raises(InputError, match="not whole patches of 14"):
        ours.build_tokens(28, 40)
    with pytest.raises(InputError, match="more than 200 times as long"):
        QwenFormat("<p>", 5, {}, {}).build_tokens(1, 201)


def _tile_tokenizer() -> Any:
    tokenizer = build_tokenizer()
    tags = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    extra = ["<image>", "<fake_token_around_image>", "<global-img>", *tags]
    tokenizer.add_special_tokens({"additional_special_tokens": extra})
    return tokenizer


def _idefics(options: dict[str, Any], tokenizer: Any) -> IdeficsFormat:
    config = {"vision_config": {"image_size": 28, "patch_size": 7}, "scale_factor": 2}
    marker_id = tokenizer.convert_tokens_to_ids("<image>")
    return IdeficsFormat(
        "<image>",
        marker_id,
        config,
        options,
        lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_split", [True, False])
def test_idefics_tiles_are_those_of_its_processor(size: tuple[int, int], is_split: bool) -> None:
    options: dict[str, Any] = {
        "size": {"longest_edge": 84},
        "max_image_size": {"longest_edge": 28},
        "do_image_splitting": is_split,
        "resample": 1,
    }
    made = _processor("idefics3", "Idefics3ImageProcessorPil", **options)
    found = made([[_image(*size)]], return_tensors="np", return_row_col_info=True)
    tokenizer = _tile_tokenizer()
    ours = _idefics(options, tokenizer)
    np.testing.assert_allclose(
        ours.build_arrays(_image(*size))["pixel_values"], found["pixel_values"][0], atol=1e-5
    )
    run = ours.build_tokens(*size)
    assert run.num_features == 4 * found["pixel_values"].shape[1]
    text = tokenizer.decode(run.ids)
    rows, columns = found["rows"][0][0], found["cols"][0][0]
    assert text.count("<row_") == rows * columns
    assert text.count("<fake_token_around_image>") == rows * columns + 2
    assert text.endswith("<global-img>" + "<image>" * 4 + "<fake_token_around_image>")
    if rows:
        opening = "<fake_token_around_image><row_1_col_1>" + "<image>" * 4
        assert text.startswith(opening) and text.count("\n") == rows + 1


def test_a_directory_that_does_not_see_has_no_format(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert load_image_format(tmp_path) is None


def test_damaged_and_unknown_directories_are_refused_with_the_reason(tmp_path: Path) -> None:
    config: dict[str, Any] = {"model_type": "paligemma", "vision_config": {}}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"of type 'paligemma'; supported types: llava"):
        load_image_format(tmp_path)
    build_tokenizer().save_pretrained(tmp_path)
    config["model_type"] = "llava"
    file.write_text(json.dumps(config))
    with pytest.raises(ModelError, match="names no image_token_id"):
        load_image_format(tmp_path)
    config |= {"image_token_index": 7, "vision_config": {"image_size": 28, "patch_size": 7}}
    file.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"preprocessor_config\.json"):
        load_image_format(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"crop_size": {"height": 32, "width": 32}}')
    with pytest.raises(ModelError, match=r"32 x 32.*reads 28 x 28"):
        load_image_format(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(ModelError, match="damaged"):
        load_image_format(tmp_path)
