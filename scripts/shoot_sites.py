"""Pictures of our own sites as a person sees them in Chromium: docs/images/site-*.png.

    scripts/install_chromium.sh
    python scripts/shoot_sites.py              # a few seconds

The pages are those of the full size and of seed 0, with the person of a task logged in. Fonts are
those of the machine.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from stepwell.core import Task
from stepwell.envs.registry import make_env
from stepwell.envs.web.actions import WebAction, print_action
from stepwell.envs.web.env import WebEnv
from stepwell.envs.web.sites import make_site_task

IMAGES = Path(__file__).parent.parent / "docs" / "images"
NUM_COLORS = 64
PAGES = {
    "shop": "/search?q=bottle",
    "admin": "/report",
    "forum": "/",
    "code": "/",
    "map": "/place/1",
}


def shoot_site(env: WebEnv, site: str, path: str) -> Image.Image:
    """One page of a site, as it stands on a screen of 1280 by 720."""
    content = make_site_task(seed=0, size="full", split="train", sites=[site])
    env.reset(options={"task": Task("web", {"source": "sites", **content}, str(content["instruction"]))})
    env.step([print_action(WebAction("goto", argument=f"http://{site}.localhost{path}"))])
    pixels = env.take_screenshot()
    assert pixels is not None
    return Image.fromarray(pixels)


def main() -> None:
    """Shoot all pages, in few colours, so that files stay small."""
    options = {"driver": "chromium", "size": "full", "timeout_s": 60}
    with make_env("web", options) as env:
        assert isinstance(env, WebEnv)
        for site, path in PAGES.items():
            file = IMAGES / f"site-{site}.png"
            shot = shoot_site(env, site, path)
            shot.quantize(NUM_COLORS, dither=Image.Dither.NONE).save(file, optimize=True)
            print(f"{file.name}: {file.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
