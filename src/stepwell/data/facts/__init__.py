"""Facts that ship in packages, as passages to search and questions that need several of them."""

from stepwell.data.facts.answers import is_right, normalised
from stepwell.data.facts.collection import Collection, Question
from stepwell.data.facts.sources import SOURCES, collection

__all__ = ["SOURCES", "Collection", "Question", "collection", "is_right", "normalised"]
