"""The rule judge: compares the claims of a description with the true state, without a model.

    description ─► claims ─► which things are meant ─► right, wrong, stated ─► verdict
    Env.state() ─► scene ────────────┘

A claim is wrong if it is false, if another claim of the same text contradicts it (both are wrong, so
that listing every relation gains nothing), if it is about a thing that does not exist, or if it is
repeated more than twice. A denial ("the goal is not above") can be wrong but adds no recall. If the
task is to find something, a text that does not say where it is has one error for that.
Recall counts the true relations of the vocabulary's `pairs`, each axis separately; a pair also counts
if both of its places were given correctly.

Invariants: scores are in [0, 1]; any text is judged, in time linear in its length; case and order
of sentences do not matter, except for what "it" means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from stepwell.core.env_description import StateForm
from stepwell.core.state_vocabulary import StateVocabulary
from stepwell.rewards.judge.claims import Claim, PlaceClaim, parse_claims
from stepwell.rewards.judge.fields import judge_dictionary, judge_grid
from stepwell.rewards.judge.items import Mention
from stepwell.rewards.judge.lexicon import BEARING, FAR
from stepwell.rewards.judge.matcher import (
    Meaning,
    MentionMatcher,
    count_wrong,
    expand_claims,
    is_at,
    make_key,
)
from stepwell.rewards.judge.points import parse_place_claims
from stepwell.rewards.judge.scene import Bearing, JudgedScene, SceneObject, parse_bearings, parse_scene
from stepwell.rewards.judge.verdict import NOTHING, Verdict, make_verdict
from stepwell.rewards.state_match import match_state

MAX_SAID = 2
_OPPOSITES = ({"left", "right"}, {"ahead", "behind"})


class RuleJudge:
    """Judges descriptions of one environment's states, with the vocabulary of its `EnvDescription`.

    Without a vocabulary, `match_state` compares every text with the true state.
    """

    def __init__(self, vocabulary: StateVocabulary | None) -> None:
        self.vocabulary = vocabulary or StateVocabulary()
        self._remembered = lru_cache(maxsize=8192)(self._judge_text)  # agents repeat themselves often
        self._claims = lru_cache(maxsize=8192)(self._read_claims)  # also about other states

    def judge(self, form: StateForm, text: str, truth: Mapping[StateForm, str]) -> Verdict:
        """How well `text`, written in `form`, describes the state `truth` (from `Env.state()`).

        If the vocabulary can read no places in the truth, `match_state` is used.
        """
        return self._remembered(form, text, tuple(truth.items()))

    def _judge_text(self, form: StateForm, text: str, truths: tuple[tuple[StateForm, str], ...]) -> Verdict:
        truth = dict(truths)
        scene = parse_scene(truth, self.vocabulary)
        if scene is None:
            score = match_state(form, text, truth[form]) if form in truth else 0.0
            return Verdict(score, score, score, score)
        if form is StateForm.SYMBOLIC and form in truth:
            return judge_grid(text, truth[form], scene)
        if form is StateForm.STRUCTURED and scene.places:
            return judge_dictionary(text, truth.get(form, ""), scene)
        if form is StateForm.STRUCTURED:
            return _judge_structured_bearings(parse_bearings(text), scene)
        return self.judge_words(text, scene)

    def judge_words(self, text: str, scene: JudgedScene) -> Verdict:
        """How well free text describes a scene."""
        if scene.vocabulary.frame == "coordinates":
            placed = parse_place_claims(text, scene.vocabulary)
            return _Tally(placed, scene).verdict() if placed else NOTHING
        is_own = scene.vocabulary is self.vocabulary  # not one to which the scene has added names
        claims = self._claims(text) if is_own else parse_claims(text, scene.vocabulary)
        if not claims:
            return NOTHING
        return _judge_bearings(claims, scene) if scene.bearings else _Tally(claims, scene).verdict()

    def _read_claims(self, text: str) -> tuple[Claim | PlaceClaim, ...]:
        return tuple(parse_claims(text, self.vocabulary))


class _Tally:
    """Counts right and wrong claims and stated facts of one text about one scene."""

    def __init__(self, claims: Sequence[Claim | PlaceClaim], scene: JudgedScene) -> None:
        self.scene = scene
        known = [
            claim for claim in claims if all(scene.count_things(end.kind) for end in _list_mentions(claim))
        ]
        self.num_foreign = sum(_count_claims(claim) for claim in claims) - sum(
            _count_claims(claim) for claim in known
        )
        self.claims = expand_claims(known, scene)
        self.meaning: Meaning = MentionMatcher(self.claims, scene).find_meaning()

    def verdict(self) -> Verdict:
        right, wrong, stated = self._count_relations()
        counted = [claim for claim in self.claims if isinstance(claim, PlaceClaim)]
        places_right, places_wrong, placed = min(
            (self._count_places(counted, base) for base in (0, 1)), key=lambda found: found[1]
        )
        facts = self._count_facts(stated, placed)
        num_wrong = wrong + places_wrong + self._count_denied() + self.num_foreign
        return make_verdict(right + places_right, num_wrong, *facts)

    def _count_facts(
        self, stated: set[tuple[SceneObject, SceneObject, int]], placed: set[SceneObject]
    ) -> tuple[int, int]:
        if self.scene.vocabulary.frame == "coordinates":
            return len(placed), sum(map(len, self.scene.places.values()))
        facts = self.scene.list_facts()
        num_stated = sum(fact in stated or (fact[0] in placed and fact[1] in placed) for fact in facts)
        return num_stated, len(facts)

    def _count_relations(self) -> tuple[int, int, set[tuple[SceneObject, SceneObject, int]]]:
        said: dict[tuple[SceneObject, SceneObject, int], Counter[tuple[int, float | None]]] = {}
        wrong = 0
        for claim in self.claims:
            if not isinstance(claim, Claim) or claim.is_negated:
                continue
            a, b = (self.meaning[make_key(end, self.scene)] for end in (claim.subject, claim.object))
            if a is None or b is None or a == b:
                wrong += len(claim.toward)
                continue
            for toward in claim.toward:
                if isinstance(toward.axis, int) and isinstance(toward.sign, int):
                    pair, sign = self._order_pair(a, b, toward.sign)
                    said.setdefault((*pair, toward.axis), Counter())[sign, toward.distance] += 1
        stated = {fact for fact, ways in said.items() if self._is_right(fact, ways)}
        right = len(stated)
        for fact, ways in said.items():
            wrong += max(ways.total() - MAX_SAID, 0) if fact in stated else len(ways)
        return right, wrong, stated

    def _order_pair(
        self, a: SceneObject, b: SceneObject, sign: int
    ) -> tuple[tuple[SceneObject, SceneObject], int]:
        """A pair in the order of the vocabulary: "the player is below the goal" is about the goal."""
        kinds = a[0], b[0]
        turned = kinds not in self.scene.vocabulary.pairs and (
            kinds[::-1] in self.scene.vocabulary.pairs or a > b
        )
        return ((b, a), -sign) if turned else ((a, b), sign)

    def _is_right(
        self, fact: tuple[SceneObject, SceneObject, int], ways: Counter[tuple[int, float | None]]
    ) -> bool:
        a, b = (self.scene.places[kind][number] for kind, number in fact[:2])
        far = a[fact[2]] - b[fact[2]]
        truth = (far > 0) - (far < 0)
        return all(sign == truth and distance in (None, abs(far)) for sign, distance in ways)

    def _count_places(self, claims: Sequence[PlaceClaim], base: int) -> tuple[int, int, set[SceneObject]]:
        said: dict[SceneObject, Counter[tuple[tuple[int, float], ...]]] = {}
        placed: set[SceneObject] = set()
        wrong = 0
        false: set[SceneObject] = set()
        for claim in claims:
            thing = self.meaning[make_key(claim.subject, self.scene)]
            if thing is None:
                wrong += 1
                continue
            said.setdefault(thing, Counter())[claim.place] += 1
            place = self.scene.places[thing[0]][thing[1]]
            if not is_at(claim, place, base, self.scene.vocabulary.tolerance):
                false.add(thing)
            elif len(claim.place) == len(place):
                placed.add(thing)
        right = [thing for thing in said if thing not in false]
        wrong += sum(max(said[thing].total() - MAX_SAID, 0) for thing in right)
        return len(right), wrong + sum(len(said[thing]) for thing in false), placed - false

    def _count_denied(self) -> int:
        """The number of denials of something true."""
        wrong = 0
        for claim in self.claims:
            if isinstance(claim, Claim) and claim.is_negated:
                pairs = (
                    (a, b) for a in self._find_things(claim.subject) for b in self._find_things(claim.object)
                )
                wrong += any(not count_wrong(claim, a, b, self.scene) for a, b in pairs)
        return wrong

    def _find_things(self, mention: Mention) -> list[SceneObject]:
        known = self.meaning.get(make_key(mention, self.scene))
        if known is not None:
            return [known]
        return [(mention.kind, at) for at in range(self.scene.count_things(mention.kind))]


def _list_mentions(claim: Claim | PlaceClaim) -> tuple[Mention, ...]:
    return (claim.subject, claim.object) if isinstance(claim, Claim) else (claim.subject,)


def _count_claims(claim: Claim | PlaceClaim) -> int:
    """How many claims it counts as; a denial about a missing thing is not a mistake."""
    if isinstance(claim, PlaceClaim):
        return 1
    return 0 if claim.is_negated else len(claim.toward)


def _judge_bearings(claims: Sequence[Claim | PlaceClaim], scene: JudgedScene) -> Verdict:
    """Judge directions and distances seen from the anchor."""
    anchor = scene.vocabulary.anchor
    said: dict[str, list[set[str]]] = {}
    far: dict[str, set[float]] = {}
    num_denied = 0
    for claim in claims:
        if not isinstance(claim, Claim) or claim.object.kind != anchor or claim.subject.kind == anchor:
            continue
        kind = claim.subject.kind
        ways = {str(toward.sign) for toward in claim.toward if toward.axis == BEARING}
        if claim.is_negated:
            num_denied += any(one.direction in ways for one in scene.bearings.get(kind, ()))
            continue
        if ways:
            said.setdefault(kind, []).append(ways)
        for toward in claim.toward:
            if toward.axis == FAR and toward.distance is not None:
                far.setdefault(kind, set()).add(toward.distance)
    return _count_bearings(said, far, scene, num_denied)


def _judge_structured_bearings(bearings: Mapping[str, Sequence[Bearing]], scene: JudgedScene) -> Verdict:
    """Judge bearings in JSON; the target may appear twice, by itself and among the things in view."""
    said = {
        name: [{direction} for direction in {one.direction for one in seen}]
        for name, seen in bearings.items()
    }
    far = {
        name: {one.distance for one in seen if one.distance is not None} for name, seen in bearings.items()
    }
    return _count_bearings(said, far, scene)


def _count_bearings(
    said: Mapping[str, list[set[str]]], far: Mapping[str, set[float]], scene: JudgedScene, num_denied: int = 0
) -> Verdict:
    """Count things whose bearing is right or wrong; a missing target is an error too.

    "Ahead and to the left" is two directions, one of them wrong: a text with two would be right twice as
    often.
    """
    right, wrong = 0, num_denied
    for kind, directions in said.items():
        ways = set().union(*directions)
        fits = any(
            _matches_bearing(ways, far.get(kind, set()), one, scene) for one in scene.bearings.get(kind, ())
        )
        right += fits
        wrong += len(ways) - fits + (max(len(directions) - MAX_SAID, 0) if fits else 0)
    wrong += scene.aim is not None and scene.aim not in said
    return make_verdict(right, wrong, right, len(scene.bearings))


def _matches_bearing(ways: set[str], far: set[float], bearing: Bearing, scene: JudgedScene) -> bool:
    if bearing.direction not in ways or len(ways) > 2 or any(pair <= ways for pair in _OPPOSITES):
        return False
    tolerance = scene.vocabulary.tolerance
    distance = bearing.distance
    return all(distance is not None and abs(one - distance) <= tolerance * distance for one in far)
