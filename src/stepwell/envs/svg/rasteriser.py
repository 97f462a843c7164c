"""Drawing checked SVG in a process of its own, under a time limit.

One drawing process serves a whole process (all its threads, one at a time). A drawing that takes too
long, too much memory, or brings it down is refused, and the next drawing gets a new process.
Images are kept by code and size, because siblings of a group all begin from the same target.
"""

from __future__ import annotations

import atexit
import importlib.util
import io
import os
import select
import sys
import threading
import time
from functools import lru_cache
from pathlib import Path
from typing import IO

import numpy as np

from stepwell.core import EnvError
from stepwell.core.child_process import ChildProcess
from stepwell.core.errors import MissingPackageError
from stepwell.envs.svg.markup import XMLNS, SvgError
from stepwell.envs.svg.rasteriser_child import ANSWER, REQUEST
from stepwell.envs.tiles import Image

START_S = 30.0  # importing the rasteriser on a busy machine, once per process
EMPTY = f'<svg xmlns="{XMLNS}" viewBox="0 0 1 1"></svg>'
CHILD = Path(__file__).with_name("rasteriser_child.py")
NEEDS = (
    "the environment 'svg' needs a rasteriser and icons that are not installed: pip install \"stepwell[svg]\""
)


def draw_svg(svg: str, size: int, time_limit_s: float = 2.0) -> Image:
    """The image of checked code on white, [size, size, 3]; `SvgError` if it cannot be drawn in time."""
    return _draw_cached(svg, size, time_limit_s)


@lru_cache(maxsize=256)
def _draw_cached(svg: str, size: int, time_limit_s: float) -> Image:
    from PIL import Image as Pillow

    png = _open_rasteriser(os.getpid()).draw_png(svg, size, time_limit_s)
    image = np.asarray(Pillow.open(io.BytesIO(png)).convert("RGB"), dtype=np.uint8)
    image.setflags(write=False)  # it is kept and shown again
    assert image.shape == (size, size, 3), f"asked for {size} pixels, drew {image.shape}"
    return image


@lru_cache(maxsize=1)
def _open_rasteriser(pid: int) -> Rasteriser:
    """The one of this process: a fork must not share its parent's pipes, hence `pid`."""
    rasteriser = Rasteriser()
    atexit.register(rasteriser.close)
    return rasteriser


class Rasteriser:
    """The near end of a drawing process, which is started when first needed."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("resvg_py")
        if spec is None or spec.origin is None:
            raise MissingPackageError(NEEDS)
        self._command = [sys.executable, "-I", str(CHILD), str(Path(spec.origin).parents[1])]
        self._process: ChildProcess | None = None
        self._lock = threading.Lock()

    def draw_png(self, svg: str, size: int, time_limit_s: float) -> bytes:
        """PNG bytes of one drawing."""
        with self._lock:
            process = self._process or self._start_process()
            try:
                ok, answer = _ask_process(process, svg, size, time_limit_s)
            except TimeoutError:
                self._stop_process()
                raise SvgError(f"drawing the code takes longer than {time_limit_s:g} s") from None
            except (EOFError, BrokenPipeError):
                self._stop_process()
                raise SvgError("drawing the code takes more memory than is allowed") from None
            if not ok:
                raise SvgError(f"the rasteriser refuses the code: {answer.decode(errors='replace')}")
            return answer

    def close(self) -> None:
        """End the process; the next drawing starts another."""
        with self._lock:
            self._stop_process()

    def _start_process(self) -> ChildProcess:
        process = self._process = ChildProcess(self._command, log=Path(os.devnull), pipe_output=True)
        try:
            _ask_process(process, EMPTY, 1, START_S)
        except (TimeoutError, EOFError, BrokenPipeError) as error:
            self._stop_process()
            raise EnvError("the drawing process of the environment 'svg' does not start") from error
        return process

    def _stop_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()


def _ask_process(process: ChildProcess, svg: str, size: int, time_limit_s: float) -> tuple[bool, bytes]:
    assert process.stdout is not None
    deadline, text = time.monotonic() + time_limit_s, svg.encode()
    process.stdin.write(REQUEST.pack(len(text), size) + text)
    ok, length = ANSWER.unpack(_read_exactly(process.stdout, ANSWER.size, deadline))
    return bool(ok), _read_exactly(process.stdout, length, deadline)


def _read_exactly(stream: IO[bytes], length: int, deadline: float) -> bytes:
    parts: list[bytes] = []
    while length > 0:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([stream], [], [], left)[0]:
            raise TimeoutError
        part = os.read(stream.fileno(), length)
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
