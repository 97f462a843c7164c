"""The pages of the package `miniwob`, and what is added to them so that an episode has a seed and a reward.

    page of the package ─► + a script at its end ─► sets the seed, starts the problem, notes the reward

A page of MiniWoB++ waits for a click on START, draws its problem by chance and ends after ten seconds. The
script that is added sets the seed and starts at once, takes the time limit away, and writes the first reward
into attributes of the page's root (`data-reward`, `data-reason`). Later rewards do not count: who clicks
on after the end changes nothing. The browser keeps the first reward of a page and seed in the storage of its
context, which lasts for one episode: a page that is loaded again, or in another tab, is over with it.

Loading a page costs more than drawing a problem. Pages of `BEGIN_AGAIN` offer `window.beginAgain(address)` to
the driver (`chromium.py`), which starts the problem of another seed in the page as it is. A page is in this
list if it shows then what a fresh one shows (`tests/envs/web/miniwob/test_begin_again.py`).

Invariant: the package's files are read and served, and never copied or changed.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from stepwell.core import ConfigError, InputError

BEGIN_AGAIN = frozenset(
    {"click-button", "click-dialog-2", "click-tab", "click-widget", "focus-text-2", "grid-coordinate"}
)
_REWARD = re.compile(r'<html[^>]*\sdata-reward="(-?[\d.eE+-]+)"')
_SCRIPT = """<script>
window.addEventListener('load', function () {
  var root = document.documentElement, end = core.endEpisode;
  var nameTask = function () { return 'stepwell ' + location.pathname + location.search; };
  core.EPISODE_MAX_TIME = 2000000000;
  core.endEpisode = function (reward, timed, reason) {
    if (root.hasAttribute('data-reward')) { return; }
    var first = localStorage.getItem(nameTask());
    end(first === null ? reward : Number(first), timed && first === null, reason);
    if (!WOB_DONE_GLOBAL) { return; }
    localStorage.setItem(nameTask(), String(WOB_RAW_REWARD_GLOBAL));
    root.setAttribute('data-reward', String(WOB_RAW_REWARD_GLOBAL));
    root.setAttribute('data-reason', String(reason || ''));
    core.cover_div.onclick = null;
    core.cover_div.innerHTML = 'The episode is over.';
  };
  var begin = function (seed) {
    Math.seedrandom(seed);
    core.startEpisodeReal();
    core.hideDisplay();
  };
  if (%(again)s) { window.beginAgain = function (address) {
    var url = new URL(address), seed = url.searchParams.get('seed');
    var isSamePage = url.origin === location.origin && url.pathname === location.pathname;
    if (!isSamePage || seed === null) { return false; }
    localStorage.clear(); sessionStorage.clear(); window.name = '';
    history.replaceState(null, '', address);
    if (document.activeElement) { document.activeElement.blur(); }
    document.querySelectorAll('input, textarea').forEach(function (field) {
      field.value = field.defaultValue; field.checked = field.defaultChecked;
    });
    root.removeAttribute('data-reward');
    root.removeAttribute('data-reason');
    begin(seed);
    return true;
  }; }
  begin(%(seed)r);
  if (localStorage.getItem(nameTask()) !== null) { core.endEpisode(0, false, 'loaded again'); }
});
</script>
"""


@cache
def find_pages() -> Path:
    """The folder of the package's pages; `ConfigError` with the command that installs it."""
    try:
        folder = Path(str(distribution("miniwob").locate_file("miniwob/html")))
    except PackageNotFoundError:
        folder = None
    if folder is None or not folder.is_dir():
        raise ConfigError(
            "MiniWoB++ is not installed: pip install --no-deps miniwob (its pages alone are used)"
        )
    return folder


@cache
def list_pages() -> tuple[str, ...]:
    """The names of all tasks, in the order of the alphabet: `ascending-numbers`, …"""
    return tuple(sorted(path.stem for path in (find_pages() / "miniwob").glob("*.html")))


def read_file(path: str, seed: str | None) -> bytes | None:
    """A file of the package by its path in a URL; a page with a seed starts itself. None: there is none."""
    folder = find_pages().resolve()
    file = (folder / path.lstrip("/")).resolve()
    if not file.is_relative_to(folder) or not file.is_file():
        return None
    content = file.read_bytes()
    if seed is None or file.suffix != ".html":
        return content
    if not re.fullmatch(r"\d{1,20}", seed):
        raise InputError(f"a seed of MiniWoB++ is a whole number, got {seed[:40]!r}")
    again = "true" if file.stem in BEGIN_AGAIN else "false"
    return content + (_SCRIPT % {"seed": seed, "again": again}).encode()


def read_reward(html: str) -> float | None:
    """The reward (-1 to 1) that a page has noted; None while the episode goes on."""
    found = _REWARD.search(html[: html.find(">", html.find("<html")) + 1])
    return None if found is None else float(found[1])
