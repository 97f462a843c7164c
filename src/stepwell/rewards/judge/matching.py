"""Which thing a text means: numbers, "a hole", "two holes", matched to the things that are there.

A number is a name: `hole 1` is the same hole in every sentence, and two numbers are two holes. Which
of the true ones it is follows their order where that makes every claim right, and otherwise whatever
fits best, because an agent may count in another order. A thing without a number is any that fits and
was not named yet; where none is left, one that was, so that nothing is gained by saying it again.

Time is the number of claims times the number of true things, which the text cannot change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from stepwell.rewards.judge.claims import Claim, PlaceClaim
from stepwell.rewards.judge.fields import is_near
from stepwell.rewards.judge.items import Mention
from stepwell.rewards.judge.scene import Place, Scene, Thing

Key = tuple[str, int | None, int]
"""Kind and number, or kind and serial: who is meant, before it is known which thing that is."""
Meaning = dict[Key, Thing | None]


def key_of(mention: Mention, scene: Scene) -> Key:
    """Whom a mention means; a thing without number of which there is one is always the same."""
    if mention.label is not None:
        return mention.kind, mention.label, 0
    return mention.kind, None, 0 if scene.count(mention.kind) == 1 else mention.serial


def expanded(claims: Iterable[Claim | PlaceClaim], scene: Scene) -> list[Claim | PlaceClaim]:
    """The claims with "all holes" and "two holes" said one by one, and what nobody needs left out.

    Things without a number of which the same is said twice are one thing, unless it is "another".
    """
    told: list[Claim | PlaceClaim] = []
    for claim in claims:
        subject = claim.subject
        if isinstance(claim, Claim) and subject.many is None:
            number = scene.count(subject.kind)
            told += [replace(claim, subject=replace(subject, label=at + 1, many=1)) for at in range(number)]
        elif isinstance(claim, Claim) and subject.many and subject.many > 1:
            copies = range(min(subject.many, scene.count(subject.kind) + 1))
            told += [replace(claim, subject=_copy(subject, at)) for at in copies]
        else:
            told.append(claim)
    return _merged(told, scene)


def _copy(subject: Mention, at: int) -> Mention:
    serial = subject.serial * 100 + at + 1_000_000
    return replace(subject, serial=serial, many=1, is_another=True, group=subject.serial)


def _merged(claims: Sequence[Claim | PlaceClaim], scene: Scene) -> list[Claim | PlaceClaim]:
    said: dict[int, list[object]] = {}
    for claim in claims:
        if _is_anonymous(claim.subject, scene):
            gist = claim.toward if isinstance(claim, Claim) else claim.place
            whom = key_of(claim.object, scene) if isinstance(claim, Claim) else None
            said.setdefault(claim.subject.serial, []).append((gist, whom))
    first: dict[object, int] = {}
    same: dict[int, int] = {}
    for claim in claims:
        serial = claim.subject.serial
        if serial in said and serial not in same:
            whole = (claim.subject.kind, tuple(said[serial]))
            same[serial] = serial if claim.subject.is_another else first.setdefault(whole, serial)
    return [
        replace(claim, subject=replace(claim.subject, serial=same[claim.subject.serial]))
        if claim.subject.serial in same and _is_anonymous(claim.subject, scene)
        else claim
        for claim in claims
    ]


def _is_anonymous(mention: Mention, scene: Scene) -> bool:
    return mention.label is None and scene.count(mention.kind) > 1


class Matching:
    """Finds for every key the thing it means."""

    def __init__(self, claims: Sequence[Claim | PlaceClaim], scene: Scene) -> None:
        self.scene = scene
        self.claims: dict[Key, list[tuple[Claim | PlaceClaim, Key | None]]] = {}
        for claim in claims:
            if isinstance(claim, Claim) and claim.is_negated:
                continue
            ends = [claim.subject, claim.object] if isinstance(claim, Claim) else [claim.subject]
            keys = [key_of(end, scene) for end in ends]
            for key, other in zip(keys, [*keys[1:], *keys[:1]], strict=True):
                self.claims.setdefault(key, []).append((claim, other if len(keys) > 1 else None))
        self.group = {key_of(claim.subject, scene): claim.subject.group for claim in claims}
        self.labelled = [key for key in self.claims if key[1] is not None]

    def meaning(self) -> Meaning:
        """Every key's thing, or None where there is none left for it."""
        alone: Meaning = {key: (key[0], 0) for key in self.claims if key[1] is None and not key[2]}
        in_order = {**alone, **self._in_order()}
        if self._num_wrong(self.labelled, in_order):
            fitted = self._fit(self.labelled, dict(alone))
            if self._num_wrong(self.labelled, fitted) < self._num_wrong(self.labelled, in_order):
                in_order = fitted
        loose = [key for key in self.claims if key not in in_order]
        loose.sort(key=lambda key: -sum(_size(claim) for claim, _ in self.claims[key]))
        return self._fit(loose, in_order)

    def _in_order(self) -> Meaning:
        found: Meaning = {}
        for kind in {key[0] for key in self.labelled}:
            labels = [key[1] for key in self.labelled if key[0] == kind]
            base = 0 if 0 in labels else 1
            for label in labels:
                assert label is not None
                found[kind, label, 0] = (
                    (kind, label - base) if label - base < self.scene.count(kind) else None
                )
        return found

    def _fit(self, keys: Sequence[Key], meaning: Meaning) -> Meaning:
        used = {thing for key, thing in meaning.items() if key[1] is not None or key[2]}
        apart: set[tuple[int | None, Thing | None]] = set()
        for key in keys:
            kind, group = key[0], self.group.get(key)
            things: list[Thing] = [(kind, at) for at in range(self.scene.count(kind))]
            free = [thing for thing in things if thing not in used]
            best = self._best(key, free, meaning)
            if key[1] is None and (best is None or self._cost(key, best, meaning)):
                left = [thing for thing in things if group is None or (group, thing) not in apart]
                best = self._best(key, left, meaning)
            meaning[key] = best
            used.add(best)
            apart.add((group, best))
        return meaning

    def _best(self, key: Key, things: Sequence[Thing], meaning: Meaning) -> Thing | None:
        return min(things, key=lambda thing: (self._cost(key, thing, meaning), thing), default=None)

    def _num_wrong(self, keys: Sequence[Key], meaning: Meaning) -> int:
        return sum(self._cost(key, meaning[key], meaning) for key in keys)

    def _cost(self, key: Key, thing: Thing | None, meaning: Meaning) -> int:
        """How much of what is said of a key would be wrong if it meant `thing`."""
        wrong = 0
        for claim, other in self.claims[key]:
            if isinstance(claim, PlaceClaim):
                wrong += thing is None or not _is_at(claim, self._place(thing), self.scene)
            elif other in meaning:
                ends = (thing, meaning[other])
                if key_of(claim.subject, self.scene) != key:
                    ends = ends[1], ends[0]
                wrong += num_wrong(claim, *ends, self.scene)
        return wrong

    def _place(self, thing: Thing) -> Place:
        places = self.scene.places.get(thing[0], ())
        return places[thing[1]] if thing[1] < len(places) else ()


def _size(claim: Claim | PlaceClaim) -> int:
    return len(claim.toward) if isinstance(claim, Claim) else 2


def _is_at(claim: PlaceClaim, place: Place, scene: Scene) -> bool:
    return any(is_at(claim, place, base, scene.vocabulary.tolerance) for base in (0, 1))


def is_at(claim: PlaceClaim, place: Place, base: int, tolerance: float) -> bool:
    """Whether a claimed place is that place; only counted words may start at 1."""
    shift = base if claim.is_counted else 0
    if not claim.is_counted:
        return is_near(tuple(value for _, value in claim.place), place, tolerance)
    return all(axis < len(place) and place[axis] == value - shift for axis, value in claim.place)


def num_wrong(claim: Claim, subject: Thing | None, seen_from: Thing | None, scene: Scene) -> int:
    """How many directions of a claim are wrong of these two things of a grid."""
    if subject is None or seen_from is None:
        return len(claim.toward)
    a, b = scene.places[subject[0]][subject[1]], scene.places[seen_from[0]][seen_from[1]]
    wrong = 0
    for toward in claim.toward:
        if isinstance(toward.axis, int):
            far = a[toward.axis] - b[toward.axis]
            is_right = (far > 0) - (far < 0) == toward.sign
            wrong += not is_right or toward.distance not in (None, abs(far))
    return wrong
