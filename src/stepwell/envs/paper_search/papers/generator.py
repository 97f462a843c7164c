"""The generator of citation graphs: hidden topics first, then texts, then links in order of time.

Every paper has one value of each facet. The first facet is the domain: a few values are popular, many are
rare. Every domain favours some values of the other facets, so many papers share a domain, a task and a
method. A paper may also mention a second value of a facet, without being about it: such a paper is not
relevant for that value. A paper names each facet in one of its forms, and sometimes in two. Some papers do
not name one of their facets (never the domain): search cannot find them by it, but citations lead to them.

References are drawn one by one among older papers. Most are drawn from papers that share the domain and one
or two more facets; some from the domain, from one facet alone, or from all papers. The chance of a paper
grows with the citations that it has, and of two drawn papers the newer one is often taken. So a few papers
gather most citations, and new papers are cited too. A survey shares only two facets with what it cites,
and cites many papers.

The same spec makes the same graph on every machine. `open_generated_graph` keeps it in the cache, by a digest
of the spec and of `VERSION`. Change `VERSION` whenever the generator makes other graphs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from string import ascii_uppercase, digits
from typing import Literal

import numpy as np

from stepwell.core.errors import InputError
from stepwell.core.ids import hash_content
from stepwell.data.cache import open_cached
from stepwell.envs.paper_search.papers.graph import Facet, PaperGraph
from stepwell.envs.paper_search.papers.texts import write_full_text, write_tiny_text
from stepwell.envs.paper_search.papers.vocabulary import make_full_facets, make_tiny_facets

VERSION = 3
STRAY = 0.08  # of facet values come from anywhere, not from those a domain favours
FORM_WEIGHTS = (0.5, 0.3, 0.2)
CIRCLES = ((0.4, "triple"), (0.7, "pair"), (0.82, "domain"), (0.93, "facet"), (1.0, "all"))
NEWER = 0.5  # how often the newer of two draws is taken
SURVEY_REFERENCES = (40, 99)
FIRST_YEAR, NUM_YEARS = 1996, 30


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """What decides a generated graph. `favoured`: values of each further facet that a domain favours."""

    num_papers: int = 24_000
    seed: int = 0
    style: Literal["full", "tiny"] = "full"
    favoured: int = 8
    mean_references: float = 12.0
    max_references: int = 99
    mention_share: float = 0.25
    alias_share: float = 0.1
    silent_share: float = 0.4
    survey_share: float = 0.01

    def __post_init__(self) -> None:
        if self.num_papers < 1:
            raise InputError(f"num_papers must be at least 1, got {self.num_papers}")

    @property
    def digest(self) -> str:
        """Names the graph that this spec makes."""
        return hash_content([VERSION, asdict(self)])


@dataclass(frozen=True, slots=True)
class _Latent:
    """One paper before it has words: value, mentioned value and form of each facet; -1 for none."""

    about: list[int]
    mentions: list[int]
    forms: list[int]
    silent: int  # the facet it does not speak of
    is_survey: bool


def open_generated_graph(spec: GraphSpec, root: Path | None = None) -> PaperGraph:
    """The graph of a spec, from the cache if it is there."""
    name = f"papers/{spec.style}-{spec.num_papers}-{spec.digest}.npz"
    return open_cached(name, lambda path: generate_graph(spec).save(path), PaperGraph.load, root)


def generate_graph(spec: GraphSpec) -> PaperGraph:
    """Make the graph of a spec."""
    facets = make_tiny_facets(spec.seed) if spec.style == "tiny" else make_full_facets(spec.seed)
    latents = list(_draw_latents(spec, facets))
    rng = random.Random(f"{spec.seed}:texts")
    texts = [_write_paper(spec, facets, latent, rng) for latent in latents]
    cited, ends = _draw_citations(spec, latents)
    count = len(latents)
    years = FIRST_YEAR + np.arange(count, dtype=np.int32) * NUM_YEARS // count
    return PaperGraph(
        ids=tuple(_make_ids(spec)),
        titles=tuple(title for title, _ in texts),
        abstracts=tuple(abstract for _, abstract in texts),
        years=years.astype(np.int32),
        cited=np.array(cited, np.int32),
        cited_ends=np.array(ends, np.int32),
        digest=spec.digest,
        facets=facets,
        about=np.array([latent.about for latent in latents], np.int32),
        mentions=np.array([latent.mentions for latent in latents], np.int32),
    )


def _make_ids(spec: GraphSpec) -> list[str]:
    """`p` and a number; in a tiny graph that is small enough two capitals or digits, drawn at random."""
    characters = ascii_uppercase + digits
    short = [a + b for a in characters for b in characters]
    if spec.style == "tiny" and spec.num_papers <= len(short):
        return random.Random(f"{spec.seed}:ids").sample(short, spec.num_papers)
    return [f"p{number}" for number in range(spec.num_papers)]


def _draw_latents(spec: GraphSpec, facets: tuple[Facet, ...]) -> Iterator[_Latent]:
    rng = random.Random(f"{spec.seed}:latents")
    domain, *others = facets
    favoured = [
        [rng.sample(range(len(facet.values)), min(spec.favoured, len(facet.values))) for facet in others]
        for _ in domain.values
    ]
    domain_weights = _make_weights(len(domain.values))
    weights = [_make_weights(len(favoured[0][k])) for k in range(len(others))]

    def value(of_domain: int, k: int) -> int:
        if rng.random() < STRAY:
            return rng.randrange(len(others[k].values))
        return rng.choices(favoured[of_domain][k], cum_weights=weights[k])[0]

    for _ in range(spec.num_papers):
        first = rng.choices(range(len(domain.values)), cum_weights=domain_weights)[0]
        is_survey = rng.random() < spec.survey_share
        about = [first, *(value(first, k) for k in range(len(others)))]
        mentions = [-1] * len(facets)
        for k in range(len(others)):
            other = value(first, k) if rng.random() < spec.mention_share else -1
            mentions[k + 1] = -1 if other == about[k + 1] else other
        if is_survey:  # a survey is about a domain and a task, whatever the means
            about[2:] = mentions[2:] = [-1] * (len(facets) - 2)
        forms = [_draw_form(facet, v, rng) if v >= 0 else -1 for facet, v in zip(facets, about, strict=True)]
        is_silent = not is_survey and rng.random() < spec.silent_share
        silent = rng.randrange(1, len(facets)) if is_silent else -1
        yield _Latent(about, mentions, forms, silent, is_survey)


def _make_weights(count: int) -> list[float]:
    """Cumulative weights 1/3, 1/4, 1/5, ...: some values are popular, none is everything."""
    return list(accumulate(1.0 / (rank + 3) for rank in range(count)))


def _draw_form(facet: Facet, value: int, rng: random.Random) -> int:
    count = len(facet.values[value])
    return rng.choices(range(count), weights=FORM_WEIGHTS[:count])[0]


def _write_paper(
    spec: GraphSpec, facets: tuple[Facet, ...], latent: _Latent, rng: random.Random
) -> tuple[str, str]:
    """Title and abstract of one paper."""
    known = [k for k in range(len(facets)) if latent.about[k] >= 0 and k != latent.silent]
    said = {facets[k].name: facets[k].values[latent.about[k]][latent.forms[k]] for k in known}
    mentioned = [k for k in range(len(facets)) if latent.mentions[k] >= 0]
    other = " and ".join(rng.choice(facets[k].values[latent.mentions[k]]) for k in mentioned)
    alias = ""
    if rng.random() < spec.alias_share:
        k = rng.choice(known)
        alias = rng.choice(facets[k].values[latent.about[k]])
        alias = "" if alias == said[facets[k].name] else alias
    if spec.style == "tiny":
        return write_tiny_text(said, other.replace(" and ", " "), alias)
    return write_full_text(said, other, alias, latent.is_survey, rng)


def _draw_citations(spec: GraphSpec, latents: list[_Latent]) -> tuple[list[int], list[int]]:
    """References of all papers end to end, and where each paper's end."""
    rng = random.Random(f"{spec.seed}:citations")
    circles: dict[tuple[int, ...], list[int]] = {}
    cited: list[int] = []
    ends: list[int] = []
    for number, latent in enumerate(latents):
        found: dict[int, None] = {}  # in the order in which they were drawn
        known = _list_known(latent.about)
        wanted = min(_draw_num_references(spec, latent, rng), number)
        for _ in range(3 * wanted):
            if len(found) == wanted:
                break
            circle = circles.get(_draw_circle(latent.about, known, rng))
            if circle:
                older = rng.choice(circle)
                if rng.random() < NEWER:
                    older = max(older, rng.choice(circle))
                found[older] = None
                circle.append(older)
        for key in _list_circles(latent.about, known):
            circles.setdefault(key, []).append(number)
        cited += found
        ends.append(len(cited))
    return cited, ends


def _draw_num_references(spec: GraphSpec, latent: _Latent, rng: random.Random) -> int:
    if latent.is_survey:
        low, high = (min(bound, spec.max_references) for bound in SURVEY_REFERENCES)
        return rng.randint(low, high)
    # a product of draws, not a gamma variate: sums and products round alike on every machine, logarithms not
    return min(round(4.0 * spec.mean_references * rng.random() * rng.random()), spec.max_references)


def _list_known(about: list[int]) -> list[int]:
    """The facets besides the domain that a paper says something about."""
    return [k for k in range(1, len(about)) if about[k] >= 0]


def _draw_circle(about: list[int], known: list[int], rng: random.Random) -> tuple[int, ...]:
    """The circle of papers to draw a reference from, chosen at random: a key of `_list_circles`."""
    draw = rng.random()
    kind = next(name for bound, name in CIRCLES if draw < bound)
    if kind == "triple" and len(known) > 1:
        a, b = sorted(rng.sample(known, 2))
        return (0, about[0], a, about[a], b, about[b])
    if kind in ("triple", "pair"):
        k = rng.choice(known)
        return (0, about[0], k, about[k])
    if kind == "domain":
        return (0, about[0])
    if kind == "facet":
        k = rng.choice(known)
        return (k, about[k])
    return ()


def _list_circles(about: list[int], known: list[int]) -> Iterator[tuple[int, ...]]:
    """Every circle that a paper belongs to."""
    yield ()
    yield (0, about[0])
    for place, a in enumerate(known):
        yield (a, about[a])
        yield (0, about[0], a, about[a])
        for b in known[place + 1 :]:
            yield (0, about[0], a, about[a], b, about[b])
