"""The live view as a web application: one function per page, rendered here, escaped by default.

    /                         several runs over one axis
    /run/NAME                 one run: figures, events, controls
    /run/NAME/trajectories    filters and a paged list        /run/NAME/trajectory?id=…   one of them
    /run/NAME/group?name=…    siblings side by side           /run/NAME/tree              the prefix tree
    /run/NAME/pipeline        workers and queues              /run/NAME/curriculum        phases and lineage
    /study/NAME               a study's table with its paired differences

Pages are functions of the files of a run; nothing is kept but open pools and read metrics. A page asks
`/stamp` every two seconds, and fetches itself again when something has changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from stepwell.core.errors import InputError, StepwellError
from stepwell.runs.control import send_command
from stepwell.services.hosts import HostCheck
from stepwell.view import images, pages
from stepwell.view.access import ViewAccess
from stepwell.view.run_files import ViewedRun, describe_states
from stepwell.view.run_finder import RunIndex
from stepwell.view.templates import compile_pages, get_templates, render_page

STATIC = {"view.css": "text/css", "view.js": "text/javascript"}


class ViewApp:
    """The pages over a shelf of runs. `token` None means that everybody on this machine may look."""

    def __init__(self, places: Sequence[str], *, token: str | None, host: str = "127.0.0.1") -> None:
        self.shelf = RunIndex(places)
        self.token = token
        routes = [
            Route("/", self._show(lambda request: pages.show_overview(self.shelf, request.query_params))),
            *(Route(f"/run/{{run}}{path}", self._show_run(page)) for path, page in pages.RUN_PAGES.items()),
            Route("/study/{study}", self._show(self._show_study)),
            *(Route(f"/run/{{run}}{path}", self._serve_image(make)) for path, make in images.IMAGES.items()),
            Route("/run/{run}/tags", self.change_tags, methods=["POST"]),
            Route("/run/{run}/control", self.control_run, methods=["POST"]),
            Route("/stamp", self.describe_stamp),
            Route("/static/{name}", self.serve_static),
            Route("/health", lambda request: PlainTextResponse("ok")),
        ]
        inner = Starlette(routes=routes, exception_handlers={HTTPException: _show_problem})
        is_loopback = host in ("127.0.0.1", "localhost", "::1")
        self.app = ViewAccess(inner, token=token, hosts=HostCheck(is_loopback=is_loopback, host=host))

    def warm_up(self) -> None:
        """Read all metrics, draw the first page and compile the others, so that each opens at once."""
        compile_pages()
        name, content = pages.show_overview(self.shelf, QueryParams(""))
        render_page(name, token="", shelf=self.shelf, path="/", **content)

    def close(self) -> None:
        """Close the pools."""
        self.shelf.close()

    def find_run(self, request: Request) -> ViewedRun:
        run = self.shelf.runs.get(request.path_params["run"])
        if run is None:
            self.shelf.refresh()
            run = self.shelf.runs.get(request.path_params["run"])
        if run is None:
            raise HTTPException(404, "there is no run with this name")
        return run

    async def change_tags(self, request: Request) -> Response:
        """Add a tag to a trajectory, or remove it."""
        run, given = self.find_run(request), await _read_fields(request, "id", "tag", "remove")
        pool = run.pool
        if pool is None or pool.is_read_only:
            raise HTTPException(409, "this pool cannot be written")
        try:
            change = pool.untag if given.get("remove") else pool.tag
            change([given.get("id", "")], given.get("tag", "").strip())
        except InputError as error:
            raise HTTPException(400, str(error)) from error
        tags = pool.get(given["id"]).entry.tags
        return JSONResponse({"tags": [tag for tag in tags if tag != run.name]})  # all of a run have its name

    async def control_run(self, request: Request) -> Response:
        """Send a command to a running run."""
        run, given = self.find_run(request), await _read_fields(request, "do")
        try:
            reply = send_command(run.folder, given.get("do", ""))
        except StepwellError as error:
            raise HTTPException(409, str(error)) from error
        run.forget_status()
        return JSONResponse(reply)

    def describe_stamp(self, request: Request) -> Response:
        """A short text that changes when a page of these runs would change, and whether they are live."""
        self.shelf.refresh()
        names = request.query_params.getlist("run") or list(self.shelf.runs)
        known = [self.shelf.runs[name].stamp for name in names if name in self.shelf.runs]
        digest = hashlib.blake2b("\n".join([*known, str(len(self.shelf.runs))]).encode(), digest_size=8)
        states = [stamp.rpartition("|")[2] for stamp in known]
        is_live = "running" in states
        return JSONResponse(
            {"stamp": digest.hexdigest(), "is_live": is_live, "states": describe_states(states)}
        )

    def serve_static(self, request: Request) -> Response:
        kind = STATIC.get(request.path_params["name"])
        if kind is None:
            raise HTTPException(404, "there is no such file")
        text = get_templates().get_template(f"{request.path_params['name']}.jinja").render()
        return Response(text, media_type=kind, headers={"cache-control": "max-age=300"})

    def _show_study(self, request: Request) -> pages.Page:
        folder = self.shelf.studies.get(request.path_params["study"])
        if folder is None:
            raise HTTPException(404, "there is no study with this name")
        return pages.show_study(folder)

    def _show_run(self, page: pages.RunPage) -> Callable[[Request], Response]:
        return self._show(lambda request: page(self.find_run(request), request.query_params))

    def _show(self, build: Callable[[Request], pages.Page]) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            try:
                name, content = build(request)
            except StepwellError as error:
                raise HTTPException(400, str(error)) from error
            return HTMLResponse(
                render_page(name, token=self.token or "", shelf=self.shelf, path=request.url.path, **content)
            )

        return respond

    def _serve_image(self, make: images.MakeImage) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            try:
                data, kind = make(self.find_run(request), request.query_params)
            except (StepwellError, KeyError) as error:
                raise HTTPException(404, str(error)) from error
            return _answer_range(request, data, kind)

        return respond


def _answer_range(request: Request, data: bytes, kind: str) -> Response:
    """The bytes, or the part that a browser asks for: without that, nobody can move inside a video."""
    headers = {"cache-control": "private, max-age=3600", "accept-ranges": "bytes"}
    asked = re.fullmatch(r"bytes=(\d{1,18})-(\d{0,18})", request.headers.get("range", ""))
    start = int(asked[1]) if asked else 0
    stop = min(len(data), int(asked[2]) + 1) if asked and asked[2] else len(data)
    if asked is None or start >= stop:
        return Response(data, media_type=kind, headers=headers)
    headers["content-range"] = f"bytes {start}-{stop - 1}/{len(data)}"
    return Response(data[start:stop], 206, media_type=kind, headers=headers)


async def _read_fields(request: Request, *names: str) -> dict[str, str]:
    try:
        given: Any = await request.json()
    except ValueError:
        given = None
    if not isinstance(given, dict) or not all(isinstance(given.get(name, ""), str) for name in names):
        raise HTTPException(400, "send a JSON object of texts")
    return {name: given[name] for name in names if name in given}


def _show_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if request.method == "POST" or "json" in request.headers.get("accept", ""):
        return JSONResponse({"error": error.detail}, error.status_code)
    return HTMLResponse(render_page("problem", text=error.detail), error.status_code)
