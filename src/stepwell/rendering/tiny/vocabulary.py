"""Words, symbols and tags that are exactly one token of the tiny models' vocabulary.

A word takes one leading space with it (" Up" and "Up" are two tokens), because that
halves the length of English. A board symbol never does: see `tokenizer.py`.
"""

from __future__ import annotations

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)

_TAGS = "think answer action state observation reasoning prediction tool_call tool_response tools"
TAG_TOKENS = tuple(f"<{slash}{tag}>" for tag in _TAGS.split() for slash in ("", "/"))
"""One token each, but not special: they stay when text is decoded."""

BOARD_SYMBOLS = "√×○●□■▲△★☆·…→←↑↓♥✓✗█"
"""Those outside ASCII; every ASCII character is a token anyway."""

_ACTIONS = """
up down left right north south east west forward back stop go turn look take put open close pick drop
move push pull click type scroll search buy press wait done use find
"""
_GAME = """
player goal box target hole wall floor door key agent empty grid board row column position step score
reward move moves moved tile room cell slippery ice
"""
_PLACES = """
kitchen table drawer cabinet fridge sink shelf desk bed lamp apple bread cup plate knife egg clean cool
heat item items price page button link cart color size
"""
_DATA = """
name arguments parameters query text string object number value result error title url id answer question
user assistant system tool direction action state observation
"""
_ENGLISH = """
the of and to in is it you are on at with for from that this be not has have can was as an or if by one
two three four all no yes me my your we he she they will would should there here now then so but what
where which when who how first next last only out over into after before again
"""
_OPENERS = """
The You It There If In To Then Now First Next What Where Which Who Turn Score Step Goal Player Row Column
Action Observation
"""
_PUNCTUATION = ('{"', '":', '"}', '"}}', "}}", "{}", '""')


def list_single_tokens() -> tuple[str, ...]:
    """Every piece of text, outside tags and specials, that must be one token; no doubles."""
    pieces: list[str] = []
    for word in _ACTIONS.split():
        pieces += [word, " " + word, word.capitalize(), " " + word.capitalize()]
    for word in (_GAME + _PLACES + _ENGLISH).split():
        pieces.append(" " + word)
    for word in _DATA.split():
        pieces += [word, " " + word]
    for word in _OPENERS.split():
        pieces += [word, " " + word]
    pieces += [*_PUNCTUATION, *BOARD_SYMBOLS]
    return tuple(dict.fromkeys(pieces))
