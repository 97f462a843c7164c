"""Measures of likeness: 1 for equal images, falling with distortion, refused where weights are missing."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.core import ConfigError
from stepwell.envs.svg import perceptual
from stepwell.envs.svg.icons import load_icons
from stepwell.envs.svg.options import SvgOptions
from stepwell.envs.svg.rasteriser import draw_svg
from stepwell.envs.svg.similarity import LikenessJudge, choose_measure, measure_pixel_distance

pytest.importorskip("resvg_py")


def named(name: str) -> str:
    return dict(load_icons("lucide", 700))[name]


needs_weights = pytest.mark.skipif(perceptual.find_weights_file() is None, reason=perceptual.MISSING)
MEASURES = [pytest.param("perceptual", marks=needs_weights), "pixels"]


def scores(measure: str, target: str, drawings: list[str]) -> list[float]:
    judge = LikenessJudge(SvgOptions(measure=measure))
    return [judge.score(draw_svg(target, 128), draw_svg(drawing, 128)).value for drawing in drawings]


@pytest.mark.parametrize("measure", MEASURES)
def test_equal_images_score_one_and_an_empty_canvas_nearly_nothing(measure: str) -> None:
    svg = named("house")
    empty = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"></svg>'
    same, nothing = scores(measure, svg, [svg, empty])
    assert same == 1.0
    assert 0.0 <= nothing < 0.03


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("name", ["house", "anchor", "bell"])
def test_likeness_falls_with_the_width_of_the_strokes_and_with_shifts(measure: str, name: str) -> None:
    svg = named(name)
    wider = [svg.replace('stroke-width="2"', f'stroke-width="{width}"') for width in (2, 2.3, 3, 4.5)]
    assert scores(measure, svg, wider) == sorted(scores(measure, svg, wider), reverse=True)
    shifted = [svg.replace('viewBox="0 0 24 24"', f'viewBox="{-by} 0 24 24"') for by in (0, 0.4, 1, 3)]
    found = scores(measure, svg, shifted)
    assert found == sorted(found, reverse=True) and found[0] - found[3] > 0.2


@pytest.mark.parametrize("measure", MEASURES)
def test_another_icon_scores_low(measure: str) -> None:
    names = ["house", "anchor", "bell", "camera", "cloud", "star", "key", "fish"]
    found = [scores(measure, named(one), [named(two)])[0] for one in names for two in names if one != two]
    assert np.mean(found) < 0.3


@needs_weights
def test_the_perceptual_distance_is_zero_for_equals_symmetric_and_forgives_a_shift() -> None:
    network = perceptual.load_network()
    house, bell = draw_svg(named("house"), 128), draw_svg(named("bell"), 128)
    assert network.measure_distance(house, house.copy()) == 0.0
    assert network.measure_distance(house, bell) == pytest.approx(
        network.measure_distance(bell, house), rel=1e-5
    )
    moved = np.roll(house, 1, axis=1)
    assert network.measure_distance(house, moved) < 0.05 * network.measure_distance(house, bell)
    assert measure_pixel_distance(house, moved) > 0.1 * measure_pixel_distance(house, bell)


@needs_weights
def test_the_forward_agrees_with_one_written_with_modules() -> None:
    torch = pytest.importorskip("torch")
    network = perceptual.load_network()
    weights = network._weights

    def conv(name: str, padding: int) -> object:
        out, into, side, _ = weights[f"net.{name}.weight"].shape
        layer = torch.nn.Conv2d(into, out, side, padding=padding)
        layer.load_state_dict({key: weights[f"net.{name}.{key}"] for key in ("weight", "bias")})
        return layer

    class Blur(torch.nn.Module):
        def forward(self, x: object) -> object:
            line = torch.tensor([1.0, 2.0, 1.0]) / 4
            kernel = (line[:, None] * line[None]).expand(x.shape[1], 1, 3, 3)
            padded = torch.nn.ReflectionPad2d(2)(x)
            return torch.nn.functional.conv2d(padded, kernel, groups=x.shape[1])[:, :, ::2, ::2]

    relu, pool = torch.nn.ReLU(), torch.nn.MaxPool2d(3, stride=1)
    slices = [
        torch.nn.Sequential(conv("slice1.0", 2), Blur(), relu),
        torch.nn.Sequential(pool, Blur(), conv("slice2.5", 2), relu),
        torch.nn.Sequential(pool, Blur(), conv("slice3.9", 1), relu),
        torch.nn.Sequential(conv("slice4.11", 1), relu),
        torch.nn.Sequential(conv("slice5.13", 1), relu),
    ]
    total, images = 0.0, [draw_svg(named(name), 64) for name in ("house", "bell")]
    pair = torch.stack([torch.from_numpy(image.copy()).permute(2, 0, 1) for image in images]) / 255
    mean, spread = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    x = (pair - mean[:, None, None]) / spread[:, None, None]  # LPIPS's scaling, but for rounding
    with torch.no_grad():
        for number, part in enumerate(slices):
            x = part(x)
            unit = torch.nn.functional.normalize(x, dim=1)
            channels = ((unit[0] - unit[1]) ** 2).mean(dim=(1, 2))
            total += float(channels @ weights[f"lin{number}.model.1.weight"].flatten())
    assert network.measure_distance(*images) == pytest.approx(total, rel=0.01)


def test_auto_takes_the_best_measure_there_are_weights_for(monkeypatch) -> None:
    assert choose_measure(SvgOptions(dreamsim_path="somewhere")) == "dreamsim"
    monkeypatch.setattr(perceptual, "find_weights_file", lambda: None)
    assert choose_measure(SvgOptions()) == "pixels"
    with pytest.raises(ConfigError, match="pip install --no-deps stlpips-pytorch"):
        choose_measure(SvgOptions(measure="perceptual"))
    with pytest.raises(ConfigError, match=r"needs env\.options\.dreamsim_path"):
        choose_measure(SvgOptions(measure="dreamsim"))


@pytest.fixture(scope="module")
def vision_folder(tmp_path_factory) -> str:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=64,
        patch_size=16,
    )
    folder = tmp_path_factory.mktemp("vit")
    transformers.ViTModel(config).save_pretrained(folder)
    return str(folder)


def test_scores_of_a_vision_transformer_from_a_folder(vision_folder: str) -> None:
    judge = LikenessJudge(SvgOptions(dreamsim_path=vision_folder, dino_path=vision_folder))
    house, bell = draw_svg(named("house"), 96), draw_svg(named("bell"), 96)
    same, other = judge.score(house, house), judge.score(house, bell)
    assert (same.measure, same.value, same.dino) == ("dreamsim", pytest.approx(1.0), pytest.approx(1.0))
    assert other.value < 0.9999 and other.dino is not None and other.dino < 0.9999


def test_a_folder_without_a_model_is_refused_with_what_to_do(tmp_path) -> None:
    judge = LikenessJudge(SvgOptions(dino_path=str(tmp_path), measure="pixels"))
    image = draw_svg(named("house"), 32)
    with pytest.raises(ConfigError, match=r"env\.options\.dino_path: .* no config\.json"):
        judge.score(image, image)
