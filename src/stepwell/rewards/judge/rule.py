"""The rule judge: what a description claims against what is true, without any model.

    description ─► claims ─► which things are meant ─► right, wrong, told ─► verdict
    Env.state() ─► scene ────────────┘

What makes a claim wrong: it is false; it is contradicted by another claim of the same text (both
are wrong, so that listing every relation earns nothing); it is about a thing that is not there; it is
said more than twice. What a text denies ("the goal is not above") can be wrong but is never told, and
where something is looked for, a text that does not say where it is has an error for that.
Recall counts the true relations of the vocabulary's `pairs`, each axis apart; a pair whose two
places were both given rightly is told as well.

Invariants: scores lie in [0, 1]; any text is judged, in time linear in its length; case and order
of sentences do not matter, except for what "it" means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from stepwell.core.env_description import StateForm
from stepwell.core.state_vocabulary import StateVocabulary
from stepwell.rewards.judge.claims import Claim, PlaceClaim, claims_of
from stepwell.rewards.judge.fields import judge_dictionary, judge_grid
from stepwell.rewards.judge.items import Mention
from stepwell.rewards.judge.lexicon import BEARING, FAR
from stepwell.rewards.judge.matching import Matching, Meaning, expanded, is_at, key_of, num_wrong
from stepwell.rewards.judge.points import place_claims_of
from stepwell.rewards.judge.scene import Bearing, Scene, Thing, bearings_of, scene_of
from stepwell.rewards.judge.verdict import NOTHING, Verdict, verdict_of
from stepwell.rewards.state_match import match_state

MAX_SAID = 2
_OPPOSITES = ({"left", "right"}, {"ahead", "behind"})


class RuleJudge:
    """Judges descriptions of one environment's states, by the vocabulary in its description.

    Without a vocabulary every text is compared with the true state by `match_state`.
    """

    def __init__(self, vocabulary: StateVocabulary | None) -> None:
        self.vocabulary = vocabulary or StateVocabulary()
        self._remembered = lru_cache(maxsize=8192)(self._judge)  # agents say the same thing often
        self._claims = lru_cache(maxsize=8192)(self._read)  # also of other states

    def judge(self, form: StateForm, said: str, truth: Mapping[StateForm, str]) -> Verdict:
        """How well `said`, written in `form`, describes the state `truth` (what `Env.state()` gives).

        Where the truth has no places that the vocabulary can read, it is matched by `match_state`.
        """
        return self._remembered(form, said, tuple(truth.items()))

    def _judge(self, form: StateForm, said: str, told: tuple[tuple[StateForm, str], ...]) -> Verdict:
        truth = dict(told)
        scene = scene_of(truth, self.vocabulary)
        if scene is None:
            score = match_state(form, said, truth[form]) if form in truth else 0.0
            return Verdict(score, score, score, score)
        if form is StateForm.SYMBOLIC and form in truth:
            return judge_grid(said, truth[form], scene)
        if form is StateForm.STRUCTURED and scene.places:
            return judge_dictionary(said, truth.get(form, ""), scene)
        if form is StateForm.STRUCTURED:
            return _judge_told_bearings(bearings_of(said), scene)
        return self.judge_words(said, scene)

    def judge_words(self, said: str, scene: Scene) -> Verdict:
        """How well free text describes a scene."""
        if scene.vocabulary.frame == "coordinates":
            placed = place_claims_of(said, scene.vocabulary)
            return _Tally(placed, scene).verdict() if placed else NOTHING
        is_own = scene.vocabulary is self.vocabulary  # not one that the scene has added names to
        claims = self._claims(said) if is_own else claims_of(said, scene.vocabulary)
        if not claims:
            return NOTHING
        return _judge_bearings(claims, scene) if scene.bearings else _Tally(claims, scene).verdict()

    def _read(self, said: str) -> tuple[Claim | PlaceClaim, ...]:
        return tuple(claims_of(said, self.vocabulary))


class _Tally:
    """Counts what is right, wrong and told in one text about one scene."""

    def __init__(self, claims: Sequence[Claim | PlaceClaim], scene: Scene) -> None:
        self.scene = scene
        known = [claim for claim in claims if all(scene.count(end.kind) for end in _ends(claim))]
        self.num_foreign = sum(_weight(claim) for claim in claims) - sum(_weight(claim) for claim in known)
        self.claims = expanded(known, scene)
        self.meaning: Meaning = Matching(self.claims, scene).meaning()

    def verdict(self) -> Verdict:
        right, wrong, told = self._relations()
        counted = [claim for claim in self.claims if isinstance(claim, PlaceClaim)]
        places_right, places_wrong, placed = min(
            (self._places(counted, base) for base in (0, 1)), key=lambda found: found[1]
        )
        facts = self._facts(told, placed)
        num_wrong_ = wrong + places_wrong + self._num_denied() + self.num_foreign
        return verdict_of(right + places_right, num_wrong_, *facts)

    def _facts(self, told: set[tuple[Thing, Thing, int]], placed: set[Thing]) -> tuple[int, int]:
        if self.scene.vocabulary.frame == "coordinates":
            return len(placed), sum(map(len, self.scene.places.values()))
        facts = self.scene.facts()
        num_told = sum(fact in told or (fact[0] in placed and fact[1] in placed) for fact in facts)
        return num_told, len(facts)

    def _relations(self) -> tuple[int, int, set[tuple[Thing, Thing, int]]]:
        said: dict[tuple[Thing, Thing, int], Counter[tuple[int, float | None]]] = {}
        wrong = 0
        for claim in self.claims:
            if not isinstance(claim, Claim) or claim.is_negated:
                continue
            a, b = (self.meaning[key_of(end, self.scene)] for end in (claim.subject, claim.object))
            if a is None or b is None or a == b:
                wrong += len(claim.toward)
                continue
            for toward in claim.toward:
                if isinstance(toward.axis, int) and isinstance(toward.sign, int):
                    pair, sign = self._in_order(a, b, toward.sign)
                    said.setdefault((*pair, toward.axis), Counter())[sign, toward.distance] += 1
        told = {fact for fact, ways in said.items() if self._is_right(fact, ways)}
        right = len(told)
        for fact, ways in said.items():
            wrong += max(ways.total() - MAX_SAID, 0) if fact in told else len(ways)
        return right, wrong, told

    def _in_order(self, a: Thing, b: Thing, sign: int) -> tuple[tuple[Thing, Thing], int]:
        """A pair as the vocabulary orders it: "the player is below the goal" is about the goal."""
        kinds = a[0], b[0]
        turned = kinds not in self.scene.vocabulary.pairs and (
            kinds[::-1] in self.scene.vocabulary.pairs or a > b
        )
        return ((b, a), -sign) if turned else ((a, b), sign)

    def _is_right(self, fact: tuple[Thing, Thing, int], ways: Counter[tuple[int, float | None]]) -> bool:
        a, b = (self.scene.places[kind][number] for kind, number in fact[:2])
        far = a[fact[2]] - b[fact[2]]
        truth = (far > 0) - (far < 0)
        return all(sign == truth and distance in (None, abs(far)) for sign, distance in ways)

    def _places(self, claims: Sequence[PlaceClaim], base: int) -> tuple[int, int, set[Thing]]:
        said: dict[Thing, Counter[tuple[tuple[int, float], ...]]] = {}
        placed: set[Thing] = set()
        wrong = 0
        false: set[Thing] = set()
        for claim in claims:
            thing = self.meaning[key_of(claim.subject, self.scene)]
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

    def _num_denied(self) -> int:
        """How much is denied that is true."""
        wrong = 0
        for claim in self.claims:
            if isinstance(claim, Claim) and claim.is_negated:
                pairs = ((a, b) for a in self._meant(claim.subject) for b in self._meant(claim.object))
                wrong += any(not num_wrong(claim, a, b, self.scene) for a, b in pairs)
        return wrong

    def _meant(self, mention: Mention) -> list[Thing]:
        known = self.meaning.get(key_of(mention, self.scene))
        if known is not None:
            return [known]
        return [(mention.kind, at) for at in range(self.scene.count(mention.kind))]


def _ends(claim: Claim | PlaceClaim) -> tuple[Mention, ...]:
    return (claim.subject, claim.object) if isinstance(claim, Claim) else (claim.subject,)


def _weight(claim: Claim | PlaceClaim) -> int:
    """How many claims it counts as; what is denied of a thing that is not there is no mistake."""
    if isinstance(claim, PlaceClaim):
        return 1
    return 0 if claim.is_negated else len(claim.toward)


def _judge_bearings(claims: Sequence[Claim | PlaceClaim], scene: Scene) -> Verdict:
    """Directions and distances as seen from the anchor."""
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


def _judge_told_bearings(told: Mapping[str, Sequence[Bearing]], scene: Scene) -> Verdict:
    """Bearings given as JSON; the target may stand there twice, as such and among what is in view."""
    said = {
        name: [{direction} for direction in {one.direction for one in seen}] for name, seen in told.items()
    }
    far = {name: {one.distance for one in seen if one.distance is not None} for name, seen in told.items()}
    return _count_bearings(said, far, scene)


def _count_bearings(
    said: Mapping[str, list[set[str]]], far: Mapping[str, set[float]], scene: Scene, num_denied: int = 0
) -> Verdict:
    """What is told of each thing is right as a whole or wrong; a target not told is an error too.

    "Ahead and to the left" is two directions, one of them wrong: who says two is right twice as often.
    """
    right, wrong = 0, num_denied
    for kind, told in said.items():
        ways = set().union(*told)
        fits = any(_fits(ways, far.get(kind, set()), one, scene) for one in scene.bearings.get(kind, ()))
        right += fits
        wrong += len(ways) - fits + (max(len(told) - MAX_SAID, 0) if fits else 0)
    wrong += scene.aim is not None and scene.aim not in said
    return verdict_of(right, wrong, right, len(scene.bearings))


def _fits(ways: set[str], far: set[float], bearing: Bearing, scene: Scene) -> bool:
    if bearing.direction not in ways or len(ways) > 2 or any(pair <= ways for pair in _OPPOSITES):
        return False
    tolerance = scene.vocabulary.tolerance
    distance = bearing.distance
    return all(distance is not None and abs(one - distance) <= tolerance * distance for one in far)
