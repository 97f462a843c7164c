"""The one stylesheet of all sites; a site differs by its colour alone."""

from __future__ import annotations

COLORS = {"shop": "#0b6e4f", "admin": "#5b3a8c", "forum": "#b5442e", "code": "#24517e", "map": "#4c6b1f"}
STYLE = """
:root { --tint: COLOR; --paper: #fbfaf7; --line: #ddd8cc; --ink: #22201c }
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif }
header { background: var(--tint); color: #fff; padding: .6rem max(1rem, calc(50vw - 33rem)); display: flex;
         flex-wrap: wrap; gap: .4rem .9rem; align-items: center }
header a { color: #fff; text-decoration: none } header a:hover { text-decoration: underline }
header .home { font-weight: 700; font-size: 1.15rem }
header form { margin: 0 0 0 auto; display: flex; gap: .3rem; align-items: center }
header input { width: 8rem }
main { max-width: 68rem; margin: 1.2rem auto 3rem; padding: 0 1rem }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .6rem 0 } h2 { font-size: 1.1rem; margin: 1.4rem 0 .3rem }
a { color: var(--tint) } p { margin: .35rem 0 } .notice { background: #fff6d8; border: 1px solid #ead48a;
         padding: .5rem .8rem; border-radius: .4rem }
ul { list-style: none; padding: 0; margin: .5rem 0 } li { background: #fff; border: 1px solid var(--line);
         border-radius: .5rem; padding: .55rem .8rem; margin: .4rem 0 }
main form { background: #fff; border: 1px solid var(--line); border-radius: .5rem; padding: .7rem .9rem;
         margin: .6rem 0; display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: center }
li form { border: 0; padding: 0; margin: .3rem 0 0; background: none }
label { display: block; font-size: .9rem; color: #5a554b } input, select, textarea { font: inherit;
         color: var(--ink); border: 1px solid #b9b2a2; border-radius: .35rem; padding: .25rem .5rem }
textarea { width: min(34rem, 80vw); display: block } button { font: inherit; color: #fff;
         background: var(--tint); border: 0; border-radius: .35rem; padding: .35rem .9rem; cursor: pointer }
header button { background: #fff3; } .fact { color: #45403a } nav.pages { display: flex; gap: 1rem }
pre { background: #fff; border: 1px solid var(--line); border-radius: .5rem; padding: .8rem; overflow: auto }
svg { max-width: 100%; background: #fff; border: 1px solid var(--line); border-radius: .5rem }
"""


def write_style(site: str) -> str:
    """The stylesheet in a site's colour."""
    return STYLE.replace("COLOR", COLORS[site])
