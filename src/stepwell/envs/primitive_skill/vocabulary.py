"""What a judge must know to check descriptions of things on a table."""

from __future__ import annotations

from stepwell.core.state_vocabulary import StateVocabulary

_CRITERIA = """\
- Objects must be identified rightly.
- A coordinate is right within 10 units of the true one, on every axis.
- Relations between objects that are stated must be true."""

VOCABULARY = StateVocabulary(frame="coordinates", anchor="", tolerance=10.0, criteria=_CRITERIA)
