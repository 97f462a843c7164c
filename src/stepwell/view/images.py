"""Images of trajectories as PNG, and robot episodes as films (`monitors/films.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stepwell.core.arrays import AnyArray
from stepwell.core.errors import InputError
from stepwell.core.ids import is_content_hash
from stepwell.monitors.films import make_film
from stepwell.monitors.replays import FILE_NAME, Replay, ReplayFrame, encode_png, load_replays
from stepwell.view.robot_films import simulate_frames
from stepwell.view.run_files import ViewedRun
from stepwell.view.trajectory_content import list_frames

MakeImage = Callable[[ViewedRun, Mapping[str, str]], tuple[bytes, str]]
MAX_FILM_BYTES = 3_000_000


def make_still(run: ViewedRun, query: Mapping[str, str]) -> tuple[bytes, str]:
    """An image of the pool by its content hash."""
    name = query.get("name", "")
    if run.pool is None or not is_content_hash(name):
        raise InputError("there is no such image")
    return encode_png(run.pool.load_image(name)), "image/png"


def make_frame(run: ViewedRun, query: Mapping[str, str]) -> tuple[bytes, str]:
    """What a robot's cameras showed in one step."""
    frames = _read_frames(run, query)
    step = query.get("step", "0")
    if not step.isdigit() or int(step) >= len(frames):
        raise InputError("there is no such step")
    return encode_png(frames[int(step)]), "image/png"


def make_episode_film(run: ViewedRun, query: Mapping[str, str]) -> tuple[bytes, str]:
    """A robot's episode as a film; `again=1` plays it again in the simulator, for `form` see `_film`."""
    if run.pool is not None and query.get("again"):
        frames = simulate_frames(run, run.pool.get(query.get("id", "")))
    else:
        frames = _read_frames(run, query)
    stills = [ReplayFrame("", "", [], 0.0, image_png=encode_png(frame)) for frame in frames]
    return _film(Replay("", "", "", 0.0, stills), query)


def make_replay_film(run: ViewedRun, query: Mapping[str, str]) -> tuple[bytes, str]:
    """A replay of the run's report as a film."""
    replays = load_replays(run.folder / FILE_NAME)
    number = query.get("number", "0")
    if not number.isdigit() or int(number) >= len(replays):
        raise InputError("there is no such replay")
    return _film(replays[int(number)], query)


def _film(replay: Replay, query: Mapping[str, str]) -> tuple[bytes, str]:
    """A film; `form=gif` asks for a GIF, `form=still` for the first image."""
    stills = [frame.image_png for frame in replay.frames if frame.image_png is not None]
    if query.get("form") == "still" and stills:
        return stills[0], "image/png"
    film = make_film(replay, MAX_FILM_BYTES, as_gif=query.get("form") == "gif")
    if film is None:
        raise InputError("nothing moves in this episode")
    return film.data, film.kind


def _read_frames(run: ViewedRun, query: Mapping[str, str]) -> list[AnyArray]:
    if run.pool is None:
        raise InputError("this run has no pool")
    return list_frames(run.pool.get(query.get("id", "")))


IMAGES: dict[str, MakeImage] = {
    "/image": make_still,
    "/frame": make_frame,
    "/film": make_episode_film,
    "/replay": make_replay_film,
}
