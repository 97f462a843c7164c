"""Images of a MuJoCo model, rendered off screen without shadows and smoothing.

One GL context serves all models in a thread (GL contexts belong to threads), since a software renderer
compiles its shaders once per context, which takes a quarter of a second. One upload of meshes and textures
serves all copies of a model file: copies differ in where things are, not in what there is. Shadow maps and
multisampling cost most of the time of a software renderer and are switched off.

Which GL is used: `MUJOCO_GL` where it is set (egl or osmesa), else EGL if its library is there, else
OSMesa. Where neither works, one message names the packages to install.
"""

from __future__ import annotations

import atexit
import ctypes.util
import importlib
import os
import threading
from typing import Any

import numpy as np

from stepwell.core import ConfigError, InputError
from stepwell.envs.tiles import Image

BACKENDS = {"egl": "EGL", "osmesa": "OSMesa"}
NO_GL = (
    "camera images need an off-screen GL library: apt install libegl1 libgl1-mesa-dri "
    "(or libosmesa6 with MUJOCO_GL=osmesa), or set env.options.observation = 'state'"
)


def choose_gl_backend() -> str:
    """'egl' or 'osmesa'; sets `MUJOCO_GL` (and PyOpenGL's counterpart) before MuJoCo is imported."""
    chosen = os.environ.get("MUJOCO_GL", "").lower().strip()
    if chosen not in BACKENDS:
        if chosen not in ("", "glfw", "glx"):
            raise ConfigError(f"MUJOCO_GL is {chosen!r}; camera images need 'egl' or 'osmesa'")
        found = [name for name, library in BACKENDS.items() if ctypes.util.find_library(library)]
        if not found:
            raise ConfigError(NO_GL)
        chosen = found[0]
        os.environ["MUJOCO_GL"] = chosen
    os.environ.setdefault("PYOPENGL_PLATFORM", chosen)
    return chosen


def simplify_rendering(model: Any) -> None:
    """Switch off what makes software rendering slow; to be done before the first image of a model."""
    model.vis.quality.shadowsize = 0
    model.vis.quality.offsamples = 0


class OffscreenRenderer:
    """Uploaded model and scene of one model file, for one size of image, in the thread's GL context."""

    def __init__(self, gl: Any, model: Any, image_size: int, hidden: tuple[int, ...] = ()) -> None:
        mujoco = importlib.import_module("mujoco")
        self._gl, self._mujoco, self._size = gl, mujoco, image_size
        gl.make_current()
        model.vis.global_.offwidth = model.vis.global_.offheight = image_size
        simplify_rendering(model)
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        self._scene = mujoco.MjvScene(model, maxgeom=2000)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._scene.flags[flag] = False
        self._option = mujoco.MjvOption()
        self._option.geomgroup[list(hidden)] = 0
        self._rect = mujoco.MjrRect(0, 0, image_size, image_size)
        self._cameras: dict[str, Any] = {}

    def render_image(self, model: Any, data: Any, camera: str) -> Image:
        """The scene of `data` through a camera of the model, top row first."""
        mujoco = self._mujoco
        if camera not in self._cameras:
            self._cameras[camera] = _make_camera(mujoco, model, camera)
        self._gl.make_current()
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)  # renderers share the GL
        mujoco.mjv_updateScene(
            model, data, self._option, None, self._cameras[camera], mujoco.mjtCatBit.mjCAT_ALL, self._scene
        )
        pixels = np.empty((self._size, self._size, 3), dtype=np.uint8)
        mujoco.mjr_render(self._rect, self._scene, self._context)
        mujoco.mjr_readPixels(pixels, None, self._rect, self._context)
        return pixels[::-1]

    def close(self) -> None:
        """Give back what GL holds of the model."""
        self._gl.make_current()
        self._context.free()


class RendererSet:
    """The renderers of one thread and their GL context."""

    def __init__(self) -> None:
        self._renderers: dict[tuple[str, int], OffscreenRenderer] = {}
        self._gl: Any = None
        self._thread = 0  # that holds the context

    def get(self, key: str, model: Any, image_size: int, hidden: tuple[int, ...]) -> OffscreenRenderer:
        """The renderer of the model file `key`, made where it is asked for the first time."""
        if self._gl is None:
            self._gl, self._thread = _open_gl(image_size), threading.get_ident()
            atexit.register(self._close_at_exit)  # before EGL's own, which was registered earlier
        if (key, image_size) not in self._renderers:
            self._renderers[key, image_size] = OffscreenRenderer(self._gl, model, image_size, hidden)
        return self._renderers[key, image_size]

    def close(self) -> None:
        """Close all, and the context after them."""
        atexit.unregister(self._close_at_exit)
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()
        if self._gl is not None:
            self._gl.free()
            self._gl = None

    def _close_at_exit(self) -> None:
        """Close all; of a context that another thread holds, only the context itself can be given back."""
        if self._thread == threading.get_ident():
            self.close()
        else:
            self._gl.free()


def _open_gl(image_size: int) -> Any:
    """A GL context; images are drawn into buffers of their own, so that its size bounds nothing."""
    try:
        return importlib.import_module(f"mujoco.{choose_gl_backend()}").GLContext(image_size, image_size)
    except (ImportError, AttributeError, RuntimeError, OSError) as error:
        raise ConfigError(f"{NO_GL} ({type(error).__name__}: {error})") from error


_THREAD = threading.local()


def render_image(
    key: str, model: Any, data: Any, camera: str, image_size: int, hidden: tuple[int, ...] = ()
) -> Image:
    """An image by the thread's renderer of the model file `key`, without the geoms of the `hidden` groups."""
    renderers: RendererSet = _THREAD.__dict__.setdefault("renderers", RendererSet())
    return renderers.get(key, model, image_size, hidden).render_image(model, data, camera)


def close_renderers() -> None:
    """Close the renderers of this thread; a thread that ends before its process must, as GL is its own."""
    if (renderers := _THREAD.__dict__.pop("renderers", None)) is not None:
        renderers.close()


def update_positions(model: Any, data: Any) -> None:
    """Put bodies, sites and cameras where joints and model say they are; moves nothing in the simulation."""
    mujoco = importlib.import_module("mujoco")
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    mujoco.mj_camlight(model, data)


def list_cameras(model: Any) -> tuple[str, ...]:
    """The cameras a model has."""
    return tuple(model.camera(number).name for number in range(model.ncam))


def _make_camera(mujoco: Any, model: Any, name: str) -> Any:
    names = list_cameras(model)
    if name not in names:
        raise InputError(
            f"env.options.camera: there is no camera {name!r}; this environment has {', '.join(names)}"
        )
    camera = mujoco.MjvCamera()
    camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
    camera.fixedcamid = names.index(name)
    return camera
