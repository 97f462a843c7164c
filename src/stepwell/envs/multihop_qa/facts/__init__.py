"""Facts that ship in packages, as passages to search and questions that need several of them."""

from stepwell.envs.multihop_qa.facts.answers import is_right, normalised
from stepwell.envs.multihop_qa.facts.collection import Collection, Question
from stepwell.envs.multihop_qa.facts.sources import SOURCES, collection

__all__ = ["SOURCES", "Collection", "Question", "collection", "is_right", "normalised"]
