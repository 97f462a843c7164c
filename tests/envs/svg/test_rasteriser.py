"""The drawing process: right pixels, no files, and what hangs or breaks it is refused."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from stepwell.core import EnvError
from stepwell.envs.svg import rasteriser as module
from stepwell.envs.svg.markup import XMLNS, SvgError, read_markup
from stepwell.envs.svg.rasteriser import Rasteriser, draw_svg

pytest.importorskip("resvg_py")


def svg(inside: str, box: str = "0 0 10 10") -> str:
    return f'<svg xmlns="{XMLNS}" viewBox="{box}">{inside}</svg>'


def test_pixels_are_where_the_code_says() -> None:
    image = draw_svg(svg('<rect x="5" width="5" height="5" fill="#ff0000"/>'), 20)
    assert (image[:10, 10:] == (255, 0, 0)).all()
    assert (image[10:] == 255).all() and (image[:, :10] == 255).all()


def test_a_wide_view_stands_in_the_middle_of_a_square() -> None:
    code = '<svg viewBox="0 0 20 10"><rect width="20" height="10"/></svg>'
    image = draw_svg(read_markup(code).svg, 20)
    assert (image[5:15] == 0).all()
    assert (image[:5] == 255).all() and (image[15:] == 255).all()


def test_images_are_kept_and_cannot_be_painted_over() -> None:
    image = draw_svg(svg("<rect/>"), 8)
    with pytest.raises(ValueError, match="read-only"):
        image[0] = 0
    assert draw_svg(svg("<rect/>"), 8) is image


def test_a_file_cannot_be_read_even_by_code_that_was_not_checked(tmp_path) -> None:
    (tmp_path / "black.svg").write_text(svg('<rect width="10" height="10"/>'))
    link = f'<image href="{tmp_path}/black.svg" width="10" height="10"/>'
    assert (draw_svg(svg(link), 8) == 255).all()


def test_code_that_takes_too_long_is_refused_and_the_next_is_drawn() -> None:
    slow = svg('<g opacity="0.5"><path d="M0 0L999999 999999L0 999999" stroke="black"/></g>' * 300)
    with pytest.raises(SvgError, match=r"longer than 0\.2 s"):
        draw_svg(slow, 512, 0.2)
    assert (draw_svg(svg('<rect width="10" height="10"/>'), 4) == 0).all()


def test_code_that_needs_too_much_memory_is_refused_and_the_next_is_drawn() -> None:
    drawing = Rasteriser()
    with pytest.raises(SvgError, match=r"memory|rasteriser refuses"):
        drawing.draw_png(svg("<rect/>"), 60_000, 5.0)
    assert drawing.draw_png(svg("<rect/>"), 4, 5.0).startswith(b"\x89PNG")
    drawing.close()


def test_code_that_is_no_svg_is_refused_by_the_rasteriser_too() -> None:
    with pytest.raises(SvgError, match="rasteriser refuses"):
        draw_svg("<html/>", 8)


def test_a_drawing_process_that_does_not_start_is_an_error_of_the_system(monkeypatch) -> None:
    monkeypatch.setattr(module.sys, "executable", "/bin/false")
    with pytest.raises(EnvError, match="does not start"):
        Rasteriser().draw_png(svg("<rect/>"), 4, 1.0)


def test_the_drawing_process_finds_a_package_that_is_not_in_its_interpreters_folders() -> None:
    rasteriser = Rasteriser()
    rasteriser._command.insert(1, "-S")  # no site-packages, as where PYTHONPATH names the package's folder
    try:
        assert rasteriser.draw_png(svg("<rect/>"), 4, 2.0).startswith(b"\x89PNG")
    finally:
        rasteriser.close()


def test_threads_take_turns() -> None:
    images: dict[int, np.ndarray] = {}

    def work(number: int) -> None:
        for shade in range(8):
            colour = f"#{number * 20 + shade:02x}0000"
            images[number * 8 + shade] = draw_svg(svg(f'<rect width="10" height="10" fill="{colour}"/>'), 5)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {int(image[0, 0, 0]) for image in images.values()} == {
        number * 20 + shade for number in range(4) for shade in range(8)
    }


def test_a_forked_process_gets_a_drawing_process_of_its_own() -> None:
    draw_svg(svg("<rect/>"), 9)
    pid = os.fork()
    if pid == 0:
        image = draw_svg(svg('<rect width="10" height="10"/>'), 9)
        os._exit(0 if (image == 0).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (draw_svg(svg('<circle r="30"/>'), 9) == 0).all()
