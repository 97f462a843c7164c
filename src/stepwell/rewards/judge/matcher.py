"""Match the mentions of a text ("hole 1", "a hole", "two holes") to the true things.

A number is a name: `hole 1` is the same hole in every sentence, and two numbers are two holes. The
true order is used if it makes every claim right; otherwise the best match, because an agent may
count in another order. A thing without a number is any matching one that was not named yet; if none
is left, one that was named, so that repeating it gains nothing.

The time is the number of claims times the number of true things, which the text cannot change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from stepwell.rewards.judge.claims import Claim, PlaceClaim
from stepwell.rewards.judge.fields import is_near
from stepwell.rewards.judge.items import Mention
from stepwell.rewards.judge.scene import JudgedScene, Place, SceneObject

Key = tuple[str, int | None, int]
"""Kind and number, or kind and serial: identifies a mention before its thing is known."""
Meaning = dict[Key, SceneObject | None]


def make_key(mention: Mention, scene: JudgedScene) -> Key:
    """The key of a mention; the only thing of a kind always has the same key."""
    if mention.label is not None:
        return mention.kind, mention.label, 0
    return mention.kind, None, 0 if scene.count_things(mention.kind) == 1 else mention.serial


def expand_claims(claims: Iterable[Claim | PlaceClaim], scene: JudgedScene) -> list[Claim | PlaceClaim]:
    """The claims with "all holes" and "two holes" split into single things.

    Things without a number and with the same claims are one thing, unless it is "another".
    """
    expanded: list[Claim | PlaceClaim] = []
    for claim in claims:
        subject = claim.subject
        if isinstance(claim, Claim) and subject.many is None:
            number = scene.count_things(subject.kind)
            expanded += [
                replace(claim, subject=replace(subject, label=at + 1, many=1)) for at in range(number)
            ]
        elif isinstance(claim, Claim) and subject.many and subject.many > 1:
            copies = range(min(subject.many, scene.count_things(subject.kind) + 1))
            expanded += [replace(claim, subject=_copy_mention(subject, at)) for at in copies]
        else:
            expanded.append(claim)
    return _merge_claims(expanded, scene)


def _copy_mention(subject: Mention, at: int) -> Mention:
    serial = subject.serial * 100 + at + 1_000_000
    return replace(subject, serial=serial, many=1, is_another=True, group=subject.serial)


def _merge_claims(claims: Sequence[Claim | PlaceClaim], scene: JudgedScene) -> list[Claim | PlaceClaim]:
    said: dict[int, list[object]] = {}
    for claim in claims:
        if _is_anonymous(claim.subject, scene):
            gist = claim.toward if isinstance(claim, Claim) else claim.place
            whom = make_key(claim.object, scene) if isinstance(claim, Claim) else None
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


def _is_anonymous(mention: Mention, scene: JudgedScene) -> bool:
    return mention.label is None and scene.count_things(mention.kind) > 1


class MentionMatcher:
    """Finds the thing that each key means."""

    def __init__(self, claims: Sequence[Claim | PlaceClaim], scene: JudgedScene) -> None:
        self.scene = scene
        self.claims: dict[Key, list[tuple[Claim | PlaceClaim, Key | None]]] = {}
        for claim in claims:
            if isinstance(claim, Claim) and claim.is_negated:
                continue
            ends = [claim.subject, claim.object] if isinstance(claim, Claim) else [claim.subject]
            keys = [make_key(end, scene) for end in ends]
            for key, other in zip(keys, [*keys[1:], *keys[:1]], strict=True):
                self.claims.setdefault(key, []).append((claim, other if len(keys) > 1 else None))
        self.group = {make_key(claim.subject, scene): claim.subject.group for claim in claims}
        self.labelled = [key for key in self.claims if key[1] is not None]

    def find_meaning(self) -> Meaning:
        """The thing that each key means; None for a key if no thing is left."""
        alone: Meaning = {key: (key[0], 0) for key in self.claims if key[1] is None and not key[2]}
        in_order = {**alone, **self._match_in_order()}
        if self._count_wrong(self.labelled, in_order):
            fitted = self._fit_keys(self.labelled, dict(alone))
            if self._count_wrong(self.labelled, fitted) < self._count_wrong(self.labelled, in_order):
                in_order = fitted
        loose = [key for key in self.claims if key not in in_order]
        loose.sort(key=lambda key: -sum(_count_directions(claim) for claim, _ in self.claims[key]))
        return self._fit_keys(loose, in_order)

    def _match_in_order(self) -> Meaning:
        found: Meaning = {}
        for kind in {key[0] for key in self.labelled}:
            labels = [key[1] for key in self.labelled if key[0] == kind]
            base = 0 if 0 in labels else 1
            for label in labels:
                assert label is not None
                found[kind, label, 0] = (
                    (kind, label - base) if label - base < self.scene.count_things(kind) else None
                )
        return found

    def _fit_keys(self, keys: Sequence[Key], meaning: Meaning) -> Meaning:
        used = {thing for key, thing in meaning.items() if key[1] is not None or key[2]}
        apart: set[tuple[int | None, SceneObject | None]] = set()
        for key in keys:
            kind, group = key[0], self.group.get(key)
            things: list[SceneObject] = [(kind, at) for at in range(self.scene.count_things(kind))]
            free = [thing for thing in things if thing not in used]
            best = self._find_best(key, free, meaning)
            if key[1] is None and (best is None or self._count_cost(key, best, meaning)):
                left = [thing for thing in things if group is None or (group, thing) not in apart]
                best = self._find_best(key, left, meaning)
            meaning[key] = best
            used.add(best)
            apart.add((group, best))
        return meaning

    def _find_best(self, key: Key, things: Sequence[SceneObject], meaning: Meaning) -> SceneObject | None:
        return min(things, key=lambda thing: (self._count_cost(key, thing, meaning), thing), default=None)

    def _count_wrong(self, keys: Sequence[Key], meaning: Meaning) -> int:
        return sum(self._count_cost(key, meaning[key], meaning) for key in keys)

    def _count_cost(self, key: Key, thing: SceneObject | None, meaning: Meaning) -> int:
        """How many claims about a key would be wrong if it meant `thing`."""
        wrong = 0
        for claim, other in self.claims[key]:
            if isinstance(claim, PlaceClaim):
                wrong += thing is None or not _is_at(claim, self._find_place(thing), self.scene)
            elif other in meaning:
                ends = (thing, meaning[other])
                if make_key(claim.subject, self.scene) != key:
                    ends = ends[1], ends[0]
                wrong += count_wrong(claim, *ends, self.scene)
        return wrong

    def _find_place(self, thing: SceneObject) -> Place:
        places = self.scene.places.get(thing[0], ())
        return places[thing[1]] if thing[1] < len(places) else ()


def _count_directions(claim: Claim | PlaceClaim) -> int:
    return len(claim.toward) if isinstance(claim, Claim) else 2


def _is_at(claim: PlaceClaim, place: Place, scene: JudgedScene) -> bool:
    return any(is_at(claim, place, base, scene.vocabulary.tolerance) for base in (0, 1))


def is_at(claim: PlaceClaim, place: Place, base: int, tolerance: float) -> bool:
    """Whether a claimed place equals `place`; only places in words may be counted from 1."""
    shift = base if claim.is_counted else 0
    if not claim.is_counted:
        return is_near(tuple(value for _, value in claim.place), place, tolerance)
    return all(axis < len(place) and place[axis] == value - shift for axis, value in claim.place)


def count_wrong(
    claim: Claim, subject: SceneObject | None, seen_from: SceneObject | None, scene: JudgedScene
) -> int:
    """How many directions of a claim are wrong for these two things of a grid."""
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
