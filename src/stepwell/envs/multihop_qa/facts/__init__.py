"""Facts that ship in packages, as passages to search and questions that need several of them."""

from stepwell.envs.multihop_qa.facts.answers import is_right, normalise_answer
from stepwell.envs.multihop_qa.facts.collection import Collection, MultihopQuestion
from stepwell.envs.multihop_qa.facts.sources import SOURCES, open_collection

__all__ = ["SOURCES", "Collection", "MultihopQuestion", "is_right", "normalise_answer", "open_collection"]
