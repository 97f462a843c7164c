"""WebArena's published tasks end to end, on sites that are not WebArena's: what five addresses lead to.

WebArena's own sites are images of many gigabytes. Here our sites stand in for them, as a person would set
them: five servers on five hosts (127.0.0.2 to 127.0.0.6) and ports, the administration under `/admin`, log-in
pages where WebArena's are, a REST interface of the shop for the evaluators that ask it. Each task of the
package's file is started by the web environment (addresses filled in, logged in by form, tabs opened), goes
to its reference URL, exits with its reference answer, and is judged by all its evaluators.

What this shows: start addresses are resolved, the log-in works and is seen on the page, nothing but the five
hosts is contacted (a sixth host listens), and every evaluator comes to a verdict without an error. What it
does not show: that a verdict on WebArena's own pages is right. Most verdicts on contents of pages are
failures, as they must be.

    python benchmarks/webarena_path.py                        # results/webarena_path.json
    python benchmarks/webarena_path.py --driver light         # one driver
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from stepwell.core import Task
from stepwell.envs.registry import make_env
from stepwell.envs.web.actions import WebAction, print_action
from stepwell.envs.web.sites.host import SiteHost
from stepwell.envs.web.webarena.loader import load_entries
from stepwell.envs.web.webarena.login import list_login_sites
from stepwell.envs.web.webarena.sites import WebArenaSites, fill_urls
from stepwell.envs.web.webarena.task import read_task

sys.path.insert(0, str(Path(__file__).parent))
from web_parity import count_cpu_s

RESULT = Path(__file__).parent / "results" / "webarena_path.json"
OURS = {"shopping": "shop", "shopping_admin": "admin", "reddit": "forum", "gitlab": "code", "map": "map"}
LOGIN_PAGES = ("/customer/account/login/", "/users/sign_in", "/admin")  # /login is ours as well
REST = "/rest/"


class StandIn:
    """One of our sites under an address of its own, as an ASGI application."""

    def __init__(self, site: str, host: SiteHost) -> None:
        self.site, self.host = site, host
        self.hits: Counter[str] = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer from our site: only the name of the host and some paths are different there."""
        if scope["type"] != "http":
            return
        path = scope["path"]
        self.hits["rest" if path.startswith(REST) else "pages"] += 1
        if path.startswith(REST):
            await self._answer_rest(path, send)
            return
        is_login = path in LOGIN_PAGES and b"visit=" not in dict(scope["headers"]).get(b"cookie", b"")
        short = "/login" if is_login else re.sub(r"^/admin(?=/|$)", "", path) or "/"
        headers = [pair for pair in scope["headers"] if pair[0] != b"host"]
        headers.append((b"host", f"{self.site}.localhost".encode()))
        await self.host.app({**scope, "path": short, "headers": headers}, receive, send)

    async def _answer_rest(self, path: str, send: Any) -> None:
        """What the evaluators ask the shop for: a token, the newest order, the reviews of a product."""
        if path.endswith("/token"):
            answer: Any = "token"
        elif path.endswith("/orders"):
            answer = {"items": [{"increment_id": "000000187"}]}
        else:
            answer = [{"nickname": "ann", "ratings": [{"percent": 80}]}]
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


@contextmanager
def serve_app(app: Any, address: str) -> Iterator[int]:
    """Serve an application at an address of this machine, on a free port."""
    listener = socket.create_server((address, 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(10)


@contextmanager
def serve_five(size: str = "tiny") -> Iterator[tuple[dict[str, Any], dict[str, StandIn]]]:
    """The five sites: the options that a person would write, and the applications."""
    # a host each: it remembers 64 visitors, and every episode that needs no log-in is a new one
    apps = {name: StandIn(site, SiteHost(0, size)) for name, site in OURS.items()}  # type: ignore[arg-type]
    with ExitStack() as stack:
        urls = {}
        for number, (name, app) in enumerate(apps.items()):
            stack.callback(app.host.stop)
            address = f"127.0.0.{number + 2}"
            port = stack.enter_context(serve_app(app, address))
            urls[name] = f"http://{address}:{port}" + "/admin" * (name == "shopping_admin")
        accounts = {name: read_account(apps[name].host, name) for name in OURS if name != "map"}
        sites = {**urls, "wikipedia": urls["map"]}  # a sixth site of WebArena, which 23 tasks may visit
        yield {"sites": sites, "accounts": accounts}, apps


def read_account(host: SiteHost, name: str) -> dict[str, str]:
    """A person of our sites who may log in there."""
    row = (
        host.find_visitor("0" * 16)
        .execute(
            "SELECT name, password FROM people WHERE is_staff = ? LIMIT 1", (int(name == "shopping_admin"),)
        )
        .fetchone()
    )
    return {"username": row[0], "password": row[1]}


@contextmanager
def listen_elsewhere() -> Iterator[tuple[str, list[Any]]]:
    """A host that is none of the five, and who called there."""
    listener, calls = socket.create_server(("127.0.0.9", 0)), list[Any]()

    def accept() -> None:
        while True:
            try:
                connection, caller = listener.accept()
            except OSError:
                return
            calls.append(caller)
            connection.close()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.9:{listener.getsockname()[1]}/", calls
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def group_entries(per_group: int) -> list[Mapping[str, Any]]:
    """Published tasks: so many of each group (sites, evaluators, log-in); 0: all."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in load_entries():
        key = json.dumps([entry["sites"], entry["eval"]["eval_types"], entry.get("storage_state")])
        groups.setdefault(key, []).append(entry)
    return [entry for group in groups.values() for entry in (group[:per_group] if per_group else group)]


def play_entry(env: Any, entry: Mapping[str, Any], sites: WebArenaSites, elsewhere: str) -> dict[str, Any]:
    """Start a task, try to leave the five hosts, go to its reference and exit with its reference answer."""
    task = read_task(json.loads(fill_urls(json.dumps(entry), sites)))
    content = {"source": "webarena", "entry": dict(entry), "instruction": task.intent, "split": "held_out"}
    first, _ = env.reset(options={"task": Task("web", content, task.intent)})
    start = f"URL: {task.start_urls[0].rstrip('/')}"
    is_logged_in = "Log out" in first.text
    logins = [getattr(sites, name) for name in list_login_sites(task)]
    away, *_ = env.step([print_action(WebAction("goto", argument=elsewhere))])
    actions = (
        [WebAction("goto", argument=task.reference_url.split(" |OR| ")[0])] if task.reference_url else []
    )
    for action in actions:
        env.step([print_action(action)])
    _, reward, terminated, _, _ = env.step([print_action(WebAction("exit", argument=find_answer(entry)))])
    return {
        "starts_there": start in first.text,
        "needs_login": any(task.start_urls[0].startswith(url) for url in logins),
        "is_logged_in": is_logged_in,
        "is_kept_in": "not allowed" in away.text,
        "is_judged": bool(terminated),
        "reward": float(reward),
    }


def find_answer(entry: Mapping[str, Any]) -> str:
    """An answer that the string evaluator may take, so that the others are asked too."""
    references = entry["eval"].get("reference_answers") or {}
    texts = next(iter(references.values()), "done")
    return texts if isinstance(texts, str) else ", ".join(map(str, texts))


def play_entries(driver: str, entries: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Play tasks under a driver; what came out, in numbers."""
    rows, errors = list[dict[str, Any]](), list[str]()
    evaluators: Counter[str] = Counter()
    with serve_five() as (webarena, apps), listen_elsewhere() as (elsewhere, calls):
        sites = WebArenaSites(**webarena["sites"])
        options = {"source": "webarena", "driver": driver, "webarena": webarena, "max_tokens": 20_000}
        with make_env("web", options) as env:
            for entry in entries:
                try:
                    rows.append(play_entry(env, entry, sites, elsewhere))
                    evaluators.update(entry["eval"]["eval_types"])
                except Exception as error:
                    errors.append(f"task {entry['task_id']}: {type(error).__name__}: {error}"[:300])
                    print(errors[-1], flush=True)
        hits = {name: dict(app.hits) for name, app in apps.items()}
    return {
        "tasks": len(entries),
        "judged": sum(row["is_judged"] for row in rows),
        "by_evaluator": dict(evaluators),
        "errors": errors,
        "start_page_is_the_task's": sum(row["starts_there"] for row in rows),
        "need_login": sum(row["needs_login"] for row in rows),
        "begin_logged_in": sum(row["needs_login"] and row["is_logged_in"] for row in rows),
        "refused_elsewhere": sum(row["is_kept_in"] for row in rows),
        "calls_elsewhere": len(calls),
        "successes": sum(row["reward"] == 1.0 for row in rows),
        "requests": hits,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--driver", choices=("light", "chromium"), help="only this driver")
    parser.add_argument("--per-group", type=int, default=2, help="tasks of each group in Chromium")
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    found: dict[str, Any] = json.loads(args.output.read_text()) if args.output.exists() else {}
    for driver, per_group in (("light", 0), ("chromium", args.per_group)):
        if args.driver in (None, driver):
            began = count_cpu_s()
            row = play_entries(driver, group_entries(per_group))
            found[driver] = {**row, "cpu_s": round(count_cpu_s() - began), "machine": platform.machine()}
            print(driver, json.dumps(found[driver], indent=1), flush=True)
    args.output.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
