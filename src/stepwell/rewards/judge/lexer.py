"""Text as items: things, directions, distances, places, and the small words between them.

One pass over the tokens of `tokens.py` with bounded lookahead, so the time is linear in the text. Unknown
words are left out. Items keep the order of the text.

Directions are those of `lexicon.py`; an environment with bearings has left, right, ahead and behind instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from stepwell.core.state_vocabulary import OTHER, StateVocabulary
from stepwell.rewards.judge.items import Item, ItemKind, Mention
from stepwell.rewards.judge.lexicon import (
    ABSOLUTE,
    AHEAD,
    AND,
    BEARING,
    BEFORE_WHICH_RIGHT_IS_NO_SIDE,
    BUT,
    COLUMN,
    COPULAS,
    DETERMINERS,
    DIRECTIONS,
    FAR,
    HERE,
    IT,
    MAYBE,
    MOVES,
    NOT,
    NUMBERS,
    ONTO,
    ORDINALS,
    PUSHES,
    REGION,
    ROW,
    SAME,
    SEES,
    STRAIGHT,
    UNITS,
    VAGUE,
)
from stepwell.rewards.judge.tokens import NUMBER, parse_number, split_tokens

_BOUNDS = frozenset({"than", "under", "within", "over", "beyond"})
_SLIGHTLY = frozenset({"slightly", "bit", "little"})
_SPOT = frozenset({"spot", "tile", "cell", "square", "number"})
_GOES_ON = COPULAS | {"can", "will"}


class _Lexer:
    """Reads the tokens once; each method reads one kind of item at `at`, or nothing."""

    def __init__(self, text: str, vocabulary: StateVocabulary) -> None:
        self.tokens = split_tokens(text)
        self.vocabulary = vocabulary
        self.at = 0
        self.items: list[Item] = []
        self.serial = 0
        self.kind = ""  # of the last thing that is not the anchor

    def run(self) -> list[Item]:
        while self.at < len(self.tokens):
            before = self.at
            for read in self._choose_readers(self.tokens[before]):
                read()
                if self.at > before:
                    break
            else:
                self.at += 1
        return self.items

    def _choose_readers(self, token: str) -> tuple[Callable[[], None], ...]:
        """The methods that may read a token, in order."""
        if token in ("the", ""):
            return ()
        if token[0] in "([":
            return (self._read_tuple,)
        if token in ("row", "column", "col"):
            return (self._read_counted_place,)
        if token in NUMBERS or token[0].isdigit() or token[0] == "-":
            return self._read_distance, self._read_thing
        return self._read_thing, self._read_same, self._read_word

    def peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.tokens[at] if 0 <= at < len(self.tokens) else ""

    def add(self, what: ItemKind, size: int = 1, **fields: object) -> None:
        self.items.append(Item(what, **fields))  # type: ignore[arg-type]
        self.at += size

    def _read_tuple(self) -> None:
        token = self.peek()
        if len(token) > 2 and token[0] in "([":
            values = [float(number) for number in re.findall(NUMBER, token)]
            self.add(ItemKind.PLACE, place=tuple(enumerate(values)))

    def _read_counted_place(self) -> None:
        """`row 2`, `column three`; both together are one place."""
        axis = {"row": ROW, "column": COLUMN, "col": COLUMN}.get(self.peek())
        value = parse_number(self.peek(1)) if self.peek(1) not in ("a", "an") else None
        if axis is None or value is None or self.peek(2) in UNITS:
            return
        last = self.items[-1] if self.items else None
        joined = next(
            (i for i in reversed(self.items[-2:]) if i.what not in (ItemKind.COMMA, ItemKind.AND)), last
        )
        if joined and joined.what is ItemKind.PLACE and joined.is_counted and axis not in dict(joined.place):
            while self.items[-1] is not joined:
                self.items.pop()
            self.items[-1] = replace(joined, place=(*joined.place, (axis, value)))
            self.at += 2
        else:
            self.add(ItemKind.PLACE, 2, place=((axis, value),), is_counted=True)

    def _read_distance(self) -> None:
        number = parse_number(self.peek())
        if number is None or self.peek(1) not in UNITS:
            return
        if UNITS[self.peek(1)] == FAR and self.peek(-1) in _BOUNDS:  # "less than a metre" is no distance
            self.at += 2
        else:
            self.add(ItemKind.DISTANCE, 2, number=number, axis=UNITS[self.peek(1)])

    def _read_thing(self) -> None:
        if self._read_substitute():
            return
        thing, skip = self._read_quantity()
        found = self._find_name(skip)
        if found is None:
            return
        kind, is_plural, size, owns = found
        self.at += skip + size
        if owns and self._skip_place():  # "my position" is me
            owns = False
        is_plural |= self.peek() == "positions"
        self.at += kind != OTHER and self.peek() in _SPOT
        label = self._read_label() if thing.label is None and kind != OTHER else thing.label
        many = thing.many
        if many is not None:
            many = (many if many > 1 else 0) if is_plural else 1
        self.serial += 1
        thing = replace(thing, kind=kind, label=label, many=many, serial=self.serial)
        self.items.append(Item(ItemKind.THING, thing=thing, is_owner=owns))
        if kind not in (OTHER, self.vocabulary.anchor):
            self.kind = kind

    def _read_quantity(self) -> tuple[Mention, int]:
        """The quantity before a name ("all the", "another", "no", "two"), and its number of words."""
        word, skip = self.peek(), 1
        number = None if word in ("a", "an") else parse_number(word)
        thing = Mention(OTHER)
        if word in ("all", "every", "each", "both"):
            thing = Mention(OTHER, many=None)
            skip += self.peek(skip) == "of"
            skip += self.peek(skip) in DETERMINERS
        elif word in ("another", "other"):
            thing = Mention(OTHER, is_another=True, group=0)
        elif word in ORDINALS:
            thing = Mention(OTHER, label=ORDINALS[word])
        elif word == "no" or number == 0:
            thing = Mention(OTHER, is_none=True)
        elif number is not None:
            thing = Mention(OTHER, many=int(min(number, 99)))
        else:
            return thing, 0
        if skip == 1 and self.peek(1) in ("the", "other", "more"):
            skip += 1
        return thing, skip

    def _read_substitute(self) -> bool:
        """`one is …, the other one is …`: things of the last mentioned kind."""
        size = 2 if self.peek() in ("other", "another") and self.peek(1) == "one" else 1
        if self.peek() not in ("one", "other", "another") or self.peek(size) not in _GOES_ON or not self.kind:
            return False
        self.serial += 1
        thing = Mention(self.kind, is_another=True, serial=self.serial, group=0)
        self.add(ItemKind.THING, size, thing=thing)
        return True

    def _find_name(self, skip: int) -> tuple[str, bool, int, bool] | None:
        """The longest name here: its kind, plural, number of tokens, and whether it is a possessive."""
        if self.peek(skip).removesuffix("'s") not in self.vocabulary.first_words:
            return None
        for size in range(self.vocabulary.max_words, 0, -1):
            words = tuple(self.tokens[self.at + skip : self.at + skip + size])
            if len(words) < size:
                continue
            last = words[-1]
            owns = last.endswith("'s") or last in ("my", "your")
            if last.endswith("'s"):
                words = (*words[:-1], last[:-2])
            known = self.vocabulary.phrases.get(words)
            if known is not None:
                return (*known, size, owns)
        return None

    def _skip_place(self) -> bool:
        skip = 1 if self.peek() == "current" else 0
        is_place = self.peek(skip) in ("position", "location", "place", "spot", "cell")
        self.at += skip + 1 if is_place else 0
        return is_place

    def _read_label(self) -> int | None:
        token = self.peek()
        if token.isdigit() and len(token) < 4 and self.peek(1) not in UNITS:
            self.at += 1
            return int(token)
        return None

    def _read_same(self) -> None:
        word, second = self.peek(), self.peek(1)
        if word == "same" and second in SAME:
            directions = list(SAME[second])
            size = 2
            if self.peek(2) in ("and", "or") and self.peek(3) in SAME:
                directions += SAME[self.peek(3)]
                size = 4
            self.add(ItemKind.DIRECTION, size, directions=tuple(directions))
        elif word in ("shares", "share") and second in ("the", "a", "its"):
            if self.peek(2) in SAME:
                self.add(ItemKind.DIRECTION, 3, directions=SAME[self.peek(2)])
        elif word in ("vertically", "horizontally") and second in ("aligned", "in"):
            self.add(ItemKind.DIRECTION, 2, directions=((COLUMN if word[0] == "v" else ROW, 0),))
        elif word == "aligned" and second in ("vertically", "horizontally"):
            self.add(ItemKind.DIRECTION, 2, directions=((COLUMN if second[0] == "v" else ROW, 0),))
        elif second == "of" and (
            word in ("position", "place", "spot", "location") or (word == "top" and self.peek(-1) == "on")
        ):
            self.add(ItemKind.DIRECTION, 2, directions=HERE)

    def _read_word(self) -> None:
        word = self.peek()
        if word.endswith("n't"):
            self.add(ItemKind.NOT)
        elif word == "right" and self.peek(1) in BEFORE_WHICH_RIGHT_IS_NO_SIDE and not self._is_owned():
            self.add(ItemKind.STRAIGHT)
        elif word in DIRECTIONS:
            self._read_direction(word)
        elif word in AHEAD:
            directions = ((BEARING, AHEAD[word]),) if self.vocabulary.frame == "bearing" else ()
            self.add(ItemKind.DIRECTION, directions=directions)
        elif word in _SLIGHTLY and self.vocabulary.frame == "bearing" and (size := self._count_side_tokens()):
            self.add(ItemKind.DIRECTION, size, directions=((BEARING, "ahead"),))
        elif word == "before" and self.vocabulary.frame == "bearing" and self._precedes_anchor():
            self.add(ItemKind.DIRECTION, directions=((BEARING, "ahead"),))
        elif word in VAGUE or (word == "to" and self.peek(1) == "reach"):
            self.add(ItemKind.DIRECTION, 2 if word == "to" else 1)
        elif word in ONTO:
            self._read_onto()
        elif word == "there":
            self.at += 1
            self._read_there()
        else:
            self._read_small(word)

    def _is_owned(self) -> bool:
        return self.peek(-1) in ("my", "your", "the")

    def _count_side_tokens(self) -> int:
        """Tokens up to the side in "slightly to the left", which is still ahead; 0 if none follows."""
        sides = (at for at in range(1, 5) if self.peek(at) in ("left", "right"))
        return next(sides, -1) + 1

    def _precedes_anchor(self) -> bool:
        found = self._find_name(2 if self.peek(1) == "the" else 1)
        return found is not None and found[0] == self.vocabulary.anchor

    def _read_direction(self, word: str) -> None:
        directions = DIRECTIONS[word]
        if self.vocabulary.frame == "bearing":
            directions = tuple((BEARING, word) for _ in directions) if word in ("left", "right") else ()
        absolute = word in REGION and not (self.peek(-1) == "the" and self.peek(-2) == "to")
        after = self.peek(1)
        if after.isdigit() and len(after) < 4 and self._find_name(2) is None:  # "up 2"
            self.items.append(Item(ItemKind.DISTANCE, number=float(after)))
            self.tokens[self.at + 1] = ""
        self.add(ItemKind.DIRECTION, directions=directions, is_absolute=absolute)

    def _read_onto(self) -> None:
        """`on the goal` is its place; `on the left` is not."""
        self.at += 1
        skip = 1 if self.peek() in ("the", "a", "an") else 0
        found = self._find_name(skip)
        if found and found[0] != OTHER and not found[3]:
            self.items.append(Item(ItemKind.DIRECTION, directions=HERE))

    def _read_there(self) -> None:
        upto = 2 if self.peek() in ("will", "would") else 1
        self.items.append(Item(ItemKind.THERE))
        if self.peek(upto - 1) in COPULAS:
            self.at += upto

    def _read_small(self, word: str) -> None:
        if word in IT:
            self.add(ItemKind.THING, is_it=True, is_owner=word in ("its", "his"), thing=Mention(OTHER))
        elif word in COPULAS:
            self.add(ItemKind.COPULA)
        elif word in SEES:
            self.add(ItemKind.THERE)
        elif word in MOVES or word in PUSHES:
            self.add(ItemKind.MOVE, pushes=word in PUSHES)
        else:
            what = next((what for words, what in _SMALL if word in words), None)
            if what is not None:
                self.add(what)


_SMALL: tuple[tuple[frozenset[str], ItemKind], ...] = (
    (MAYBE, ItemKind.MAYBE),
    (NOT, ItemKind.NOT),
    (BUT, ItemKind.BUT),
    (AND, ItemKind.AND),
    (frozenset({","}), ItemKind.COMMA),
    (frozenset({":", "="}), ItemKind.COLON),
    (frozenset({"of", "from", "as", "than", "relative", "compared"}), ItemKind.OF),
    (STRAIGHT, ItemKind.STRAIGHT),
    (ABSOLUTE, ItemKind.ABSOLUTE),
    (frozenset({".", ";", "!", "\n"}), ItemKind.END),
    (frozenset({"?"}), ItemKind.QUESTION),
)


def parse_items(text: str, vocabulary: StateVocabulary) -> list[Item]:
    """The items of a text, in order, with an end after the last."""
    return [*_Lexer(text, vocabulary).run(), Item(ItemKind.END)]
