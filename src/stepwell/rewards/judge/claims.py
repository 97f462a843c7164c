"""The claims of a text: where a thing is relative to another, or at which place.

A small state machine reads each sentence from left to right. It keeps one open clause: its
`subjects`, the directions, and the things they are seen from (`objects`). It understands

    the goal is above and left of the player        subject, directions, object
    above the player is a hole                      directions, object, subject
    there is a hole two rows below                  subject, directions; the object is the anchor
    the box is to my left, and the target above it  elided verbs, owners, "it"
    seen from the player, the goal is above         object, subject, directions

A clause ends where a new subject begins, and becomes claims. Questions, conditions and "maybe"
claim nothing. A place on the board alone ("in the top left corner") claims nothing either, because
it relates no two things. Directions after a verb of motion say where somebody goes, not where
anything is. Any text can be read, in time linear in its length.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

from stepwell.core.state_vocabulary import OTHER, StateVocabulary
from stepwell.rewards.judge.items import Item, ItemKind, Mention
from stepwell.rewards.judge.lexer import parse_items
from stepwell.rewards.judge.lexicon import BEARING, COLUMN, FAR, ROW, Axis, Sign

_PREDICATE = {
    ItemKind.COPULA,
    ItemKind.COLON,
    ItemKind.DIRECTION,
    ItemKind.PLACE,
    ItemKind.DISTANCE,
    ItemKind.STRAIGHT,
    ItemKind.NOT,
}


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a claim. `distance` is a number of cells, if given."""

    axis: Axis
    sign: Sign
    distance: float | None = None
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """`subject` is in all directions `toward`, seen from `object`; or it is not, if negated."""

    subject: Mention
    toward: tuple[Direction, ...]
    object: Mention
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class PlaceClaim:
    """`subject` is at `place`, (axis, value) pairs. `is_counted`: in words, perhaps counted from 1."""

    subject: Mention
    place: tuple[tuple[int, float], ...]
    is_counted: bool = False


@dataclass(slots=True)
class _Clause:
    subjects: list[Mention] = field(default_factory=list)
    toward: list[Direction] = field(default_factory=list)
    objects: list[Mention] = field(default_factory=list)
    places: list[Item] = field(default_factory=list)
    has_direction: bool = False  # also a vague one: near, beside
    is_inverted: bool = False
    has_copula: bool = False
    is_there: bool = False
    is_acting: bool = False
    is_straight: bool = False
    is_absolute: bool = False
    is_negated: bool = False
    is_unsure: bool = False
    is_possessive: bool = False
    object_comes_first: bool = False  # "relative to the player, …": the object comes first

    @property
    def has_statement(self) -> bool:
        return self.has_direction or bool(self.places)


class _Reader:
    """Turns items into claims; `last` is what "it" refers to."""

    def __init__(self, items: list[Item], vocabulary: StateVocabulary) -> None:
        self.items, self.vocabulary = items, vocabulary
        self.claims: list[Claim | PlaceClaim] = []
        self.clause = _Clause()
        self.last: Mention | None = None
        self.distance: Item | None = None
        self.moving: Item | None = None
        self.straight = False  # "directly" belongs to the next direction, or to the last one
        self.has_break = False  # a comma or "and" since the last direction or thing

    def run(self) -> list[Claim | PlaceClaim]:
        for at, item in enumerate(self.items):
            if item.what is ItemKind.THING:
                self._read_thing(at, item)
            elif item.what is ItemKind.DIRECTION or item.what is ItemKind.PLACE:
                self._read_predicate(at, item)
            else:
                self._read_small(item)
        return self.claims

    # ---- one item --------------------------------------------------------------------------

    def _read_small(self, item: Item) -> None:
        clause, what = self.clause, item.what
        if what is ItemKind.END or what is ItemKind.QUESTION:
            clause.is_unsure |= what is ItemKind.QUESTION
            clause.is_straight |= self.straight
            self._close_clause()
        elif what is ItemKind.COLON and clause.has_statement and clause.subjects:
            self._close_clause()
        elif what is ItemKind.COPULA or what is ItemKind.COLON:
            self._read_copula()
        elif what is ItemKind.THERE:
            self._read_there()
        elif what is ItemKind.MOVE:
            self.moving = item
            clause.is_acting = not clause.has_statement
        elif what in (ItemKind.AND, ItemKind.COMMA, ItemKind.BUT):
            self.has_break = True
            clause.is_negated &= what is not ItemKind.BUT
        elif what is ItemKind.OF:
            self.has_break = False
            clause.object_comes_first = not clause.subjects and not clause.has_statement
        elif what is ItemKind.NOT:
            clause.is_negated = True
        elif what is ItemKind.MAYBE:
            clause.is_unsure = True
        elif what is ItemKind.STRAIGHT:
            self.straight = True
        elif what is ItemKind.ABSOLUTE:
            clause.is_absolute = True
        elif what is ItemKind.DISTANCE:
            self._read_distance(item)

    def _read_copula(self) -> None:
        clause, self.moving = self.clause, None
        if not clause.subjects:
            if clause.has_statement:
                clause.is_inverted = True
            else:
                clause.subjects = [Mention(OTHER)]
        clause.has_copula = True

    def _read_there(self) -> None:
        clause, self.moving = self.clause, None
        if not clause.subjects and clause.has_statement:
            clause.is_inverted = clause.has_copula = True
            return
        self._close_clause()
        self.clause.is_there = True

    def _read_distance(self, item: Item) -> None:
        """A distance belongs to the next direction, or to the last one."""
        self.distance = item
        toward = self.clause.toward
        if toward and not self.has_break and toward[-1].distance is None:
            fits = [at for at, t in enumerate(toward) if item.axis in (None, t.axis) and t.distance is None]
            if item.axis == FAR or not fits:
                return
            if self.clause.objects:  # "above the player by two rows"
                toward[fits[-1]] = replace(toward[fits[-1]], distance=item.number)
                self.distance = None

    def _read_predicate(self, at: int, item: Item) -> None:
        if self.moving is not None and item.what is ItemKind.DIRECTION and not self._is_here(item):
            return
        self.moving = None
        clause = self.clause
        if clause.is_inverted:
            self._close_clause()
        elif clause.subjects and clause.has_statement:
            if self.has_break and self._starts_inverted(at):
                self._close_clause()
            elif clause.objects and not clause.is_possessive:
                self._continue_subject()
        clause = self.clause
        if not clause.subjects and clause.is_there:
            clause.subjects = [Mention(OTHER)]
        if item.what is ItemKind.PLACE:
            clause.places.append(item)
        else:
            clause.has_direction = True
            clause.is_straight |= self.straight
            self.straight = False
            clause.is_absolute |= item.is_absolute
            for axis, sign in item.directions:
                clause.toward.append(Direction(axis, sign, self._take_distance(axis), clause.is_negated))
        self.has_break = False

    def _read_thing(self, at: int, item: Item) -> None:
        clause, thing = self.clause, self._resolve_mention(item)
        pushed, self.moving = self.moving is not None and self.moving.pushes, None
        parted, self.has_break = self.has_break, False
        if clause.object_comes_first:
            clause.objects, clause.is_possessive, clause.object_comes_first = [thing], True, False
        elif item.is_owner:
            if clause.has_statement and clause.subjects and clause.objects and parted and not item.is_it:
                if self._starts_inverted(at):
                    self._close_clause()
                elif not clause.is_possessive:
                    self._continue_subject()
            self.clause.objects, self.clause.is_possessive = [thing], True
        elif pushed or (clause.is_inverted and parted and self._has_verb(at)):
            self._close_clause()
            self.clause.subjects = [thing]
        elif clause.is_inverted:
            clause.subjects.append(thing)
        elif not clause.has_statement:
            self._add_subject(thing)
        elif not clause.subjects:
            self._read_leading_thing(at, thing, parted)
        elif not parted and (not clause.objects or clause.is_possessive):
            clause.objects, clause.is_possessive = [thing], False
        elif self._has_predicate(at) or not clause.objects or not parted:
            self._close_clause()
            self.clause.subjects = [thing]
        else:
            clause.objects.append(thing)

    def _add_subject(self, thing: Mention) -> None:
        clause = self.clause
        if clause.is_acting or (clause.subjects and clause.has_copula and thing.kind != OTHER):
            clause.subjects, clause.is_acting = [thing], False
        elif not clause.has_copula or not clause.subjects:
            clause.subjects.append(thing)

    def _read_leading_thing(self, at: int, thing: Mention, parted: bool) -> None:
        """A thing after directions without a subject: the object, or the thing that is there."""
        clause = self.clause
        if not clause.objects and not parted:
            clause.objects = [thing]
        elif self._has_predicate(at):
            self._close_clause()
            self.clause.subjects = [thing]
        else:
            clause.subjects, clause.is_inverted = [thing], True

    # ---- looking around ----------------------------------------------------------------------

    def _resolve_mention(self, item: Item) -> Mention:
        assert item.thing is not None
        if not item.is_it:
            return item.thing
        clause = self.clause
        if clause.objects and (item.is_owner or clause.subjects):
            return clause.objects[-1]
        return self.last or Mention(OTHER)

    def _has_predicate(self, at: int) -> bool:
        """Whether the thing at `at` has a predicate, alone or with others: "hole 2 and hole 3 are"."""
        ahead = self.items[at + 1 : at + 12]
        for item, after in pairwise(ahead):
            if item.what in _PREDICATE:
                return True
            joins = item.what in (ItemKind.AND, ItemKind.COMMA) and after.what is ItemKind.THING
            if item.what is not ItemKind.THING and not joins:
                return False
        return False

    def _has_verb(self, at: int) -> bool:
        """Whether the thing at `at` has its own verb: "on the left is a hole, and the goal is"."""
        return at + 1 < len(self.items) and self.items[at + 1].what is ItemKind.COPULA

    def _starts_inverted(self, at: int) -> bool:
        """Whether the direction at `at` begins "to the left (of the player) is …"."""
        things = 0
        for item in self.items[at + 1 : at + 10]:
            if item.what in (ItemKind.COPULA, ItemKind.THERE):
                return True
            if item.what in (ItemKind.END, ItemKind.QUESTION, ItemKind.COMMA) or (
                item.what is ItemKind.AND and things
            ):
                return False
            things += item.what is ItemKind.THING
            if things > 1:
                return False
        return False

    @staticmethod
    def _is_here(item: Item) -> bool:
        return item.directions == ((ROW, 0), (COLUMN, 0))

    def _take_distance(self, axis: Axis) -> float | None:
        found = self.distance
        if found is None or found.axis == FAR or found.axis not in (None, axis):
            return None
        self.distance = None
        return found.number

    # ---- closing -----------------------------------------------------------------------------

    def _continue_subject(self) -> None:
        """Add the claims so far; the same subject continues with another direction."""
        clause = self.clause
        self._add_claims(clause)
        self.clause = _Clause(
            subjects=[replace(s, is_another=False) for s in clause.subjects],
            objects=clause.objects,
            is_possessive=True,
            has_copula=True,
            is_negated=clause.is_negated,
            is_unsure=clause.is_unsure,
        )

    def _close_clause(self) -> None:
        self._add_claims(self.clause)
        self.clause, self.distance, self.moving, self.has_break = _Clause(), None, None, False

    def _add_claims(self, clause: _Clause) -> None:
        judged = [subject for subject in clause.subjects if subject.kind != OTHER]
        if clause.subjects:
            self.last = clause.subjects[-1]
        if clause.is_unsure or not judged:
            return
        if not clause.is_negated:
            self._claim_places(clause, judged)
        for negated in (False, True):
            toward = _select_directions(clause, negated)
            if not negated and self.distance is not None and self.distance.axis == FAR:
                toward = (*toward, Direction(FAR, 0, self.distance.number))
            for subject in judged if toward else ():
                for seen_from in self._find_viewpoints(clause, subject):
                    parts = _split_directions(subject, toward, clause.is_straight)
                    for part in parts:
                        one = self._pick_one(subject) if len(parts) > 1 else subject
                        self.claims.append(Claim(one, part, seen_from, negated or subject.is_none))

    def _claim_places(self, clause: _Clause, judged: list[Mention]) -> None:
        for item in clause.places:
            for subject in judged:
                one = self._pick_one(subject) if subject.many == 0 else subject
                self.claims.append(PlaceClaim(one, item.place, item.is_counted))

    def _pick_one(self, subject: Mention) -> Mention:
        """One of several things, as a separate mention."""
        return replace(subject, serial=-1 - len(self.claims), many=1)

    def _find_viewpoints(self, clause: _Clause, subject: Mention) -> list[Mention]:
        if clause.objects:
            return [thing for thing in clause.objects if thing.kind != OTHER and thing != subject]
        if len(clause.subjects) > 1 and all(one.sign == 0 for one in clause.toward):
            after = clause.subjects[clause.subjects.index(subject) + 1 :]
            return [thing for thing in after if thing.kind != OTHER]  # "both are in the same row"
        if clause.is_absolute or not self.vocabulary.anchor or subject.kind == self.vocabulary.anchor:
            return []
        return [Mention(self.vocabulary.anchor)]


def _select_directions(clause: _Clause, negated: bool) -> tuple[Direction, ...]:
    """The directions that are claimed, or those that are denied."""
    toward = tuple(one for one in clause.toward if one.is_negated == negated)
    return _add_alignment(toward) if clause.is_straight else toward


def _add_alignment(toward: tuple[Direction, ...]) -> tuple[Direction, ...]:
    """`directly above` also means the same column."""
    axes = {one.axis for one in toward}
    if len(axes) == 1 and not axes & {BEARING, FAR} and toward[0].sign != 0:
        return (*toward, Direction(ROW if COLUMN in axes else COLUMN, 0))
    return toward


def _split_directions(
    subject: Mention, toward: tuple[Direction, ...], is_straight: bool
) -> list[tuple[Direction, ...]]:
    """For several things ("holes are above and left"), each direction is about one of them."""
    if subject.many != 0 or subject.is_none or len(toward) == 1:
        return [toward]
    parts: list[tuple[Direction, ...]] = [(one,) for one in toward if one.sign != 0] or [
        (one,) for one in toward
    ]
    return [_add_alignment(part) for part in parts] if is_straight else parts


def parse_claims(text: str, vocabulary: StateVocabulary) -> list[Claim | PlaceClaim]:
    """All claims of a text, in order."""
    return _Reader(parse_items(text, vocabulary), vocabulary).run()
