"""Random lives of a pool, against a model of a few dictionaries that says what must be."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tests.pool.made import TASK, step
from tests.properties import examples

from stepwell.core import InputError, Status
from stepwell.pool import Pool, open_pool
from stepwell.pool.schema import metadata

FINISHED = (Status.SUCCESS, Status.FAILURE, Status.INFRA_ERROR)
CONSUMERS = ("c0", "c1")


@dataclass
class Group:
    """What the pool must know of a group."""

    size: int
    members: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    state: str = "filling"
    consumer: str = ""
    checkpoint: int | None = None

    def free(self) -> None:
        self.state, self.consumer, self.checkpoint = "ready", "", None


class PoolLifetime(RuleBasedStateMachine):
    """Every rule does the same to the pool and to the model; what they say must agree."""

    place = ""
    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.pool: Pool = open_pool(self.place)
        _empty(self.pool)
        self.steps: dict[str, dict[int, int]] = {}
        self.status: dict[str, Status | None] = {}
        self.group_of: dict[str, str] = {}
        self.groups: dict[str, Group] = {}  # in order of creation

    def teardown(self) -> None:
        self.pool.close()

    @rule(target=ids, group=st.integers(0, 3))
    def begin(self, group: int) -> str:
        id, name = f"t{len(self.status)}", f"g{group}"
        known = self.groups.get(name)
        if known is not None and known.state != "filling":
            with pytest.raises(InputError, match="already complete"):
                self.pool.begin(TASK, id=id, group=name, group_size=1 + group % 2)
            return next(iter(self.status))
        self.pool.begin(TASK, id=id, group=name, group_size=1 + group % 2)
        self.groups.setdefault(name, Group(1 + group % 2)).members.append(id)
        self.steps[id], self.status[id], self.group_of[id] = {}, None, name
        return id

    @rule(id=ids, number=st.integers(0, 4), content=st.integers(0, 2))
    def append(self, id: str, number: int, content: int) -> None:
        before = self.steps[id].get(number)
        if before is None and self.status[id] is None:
            self.pool.append(id, number, [step(content)])
            self.steps[id][number] = content
        elif before == content:
            self.pool.append(id, number, [step(content)])
        else:
            with pytest.raises(InputError, match=r"a different step|too late"):
                self.pool.append(id, number, [step(content)])

    @rule(id=ids, status=st.sampled_from(FINISHED))
    def finish(self, id: str, status: Status) -> None:
        if self.status[id] not in (None, status):
            with pytest.raises(InputError, match="already finished"):
                self.pool.finish(id, status, error="x")
            return
        self.pool.finish(id, status, error="x")
        group = self.groups[self.group_of[id]]
        if self.status[id] is None and status is not Status.INFRA_ERROR and len(group.places) < group.size:
            group.places.append(id)
            if len(group.places) == group.size:
                group.state = "ready"
        self.status[id] = status

    @rule(consumer=st.sampled_from(CONSUMERS), num=st.integers(1, 2))
    def take(self, consumer: str, num: int) -> None:
        expected = [name for name, group in self.groups.items() if group.state == "ready"][:num]
        taken = self.pool.take(consumer, num)
        assert [each.group for each in taken] == expected
        for each in taken:
            group = self.groups[each.group]
            group.state, group.consumer = "leased", consumer
            assert [t.id for t in each.trajectories] == [id for id in group.members if id in group.places]
            for found in each.trajectories:
                contents = [self.steps[found.id][number] for number in sorted(self.steps[found.id])]
                assert found.steps == [step(content) for content in contents]
                assert found.status is self.status[found.id]

    @rule(consumer=st.sampled_from(CONSUMERS), name=st.integers(0, 3), checkpoint=st.integers(0, 3))
    def acknowledge(self, consumer: str, name: int, checkpoint: int) -> None:
        group = self.groups.get(f"g{name}")
        held = group is not None and (group.state, group.consumer) == ("leased", consumer)
        again = group is not None and (group.consumer, group.checkpoint) == (consumer, checkpoint)
        if not held and not again:
            with pytest.raises(InputError):
                self.pool.acknowledge(consumer, [f"g{name}"], checkpoint)
            return
        self.pool.acknowledge(consumer, [f"g{name}"], checkpoint)
        assert group is not None
        group.state, group.checkpoint = "consumed", checkpoint

    @rule(consumer=st.sampled_from(CONSUMERS), checkpoint=st.none() | st.integers(0, 3))
    def restore(self, consumer: str, checkpoint: int | None) -> None:
        lost = [
            group for group in self.groups.values()
            if group.consumer == consumer
            and (group.checkpoint is None or checkpoint is None or group.checkpoint > checkpoint)
        ]  # fmt: skip
        assert self.pool.restore(consumer, checkpoint) == len(lost)
        for group in lost:
            group.free()

    @rule(name=st.integers(0, 3))
    def give_back(self, name: int) -> None:
        group = self.groups.get(f"g{name}")
        leased = group is not None and group.state == "leased"
        assert self.pool.give_back([f"g{name}"]) == leased
        if leased and group is not None:
            group.free()

    @rule()
    def reopen(self) -> None:
        """As a process that is killed and started again: no lease is lost, none comes back by itself."""
        self.pool.close()
        self.pool = open_pool(self.place)

    @invariant()
    def the_pool_is_as_the_model(self) -> None:
        found = {entry.id: entry for entry in self.pool.find()}
        assert list(found) == list(self.status)
        for id, entry in found.items():
            group = self.groups[self.group_of[id]]
            known = (self.status[id], len(self.steps[id]), group.state, id in group.places)
            assert (entry.status, entry.num_steps, entry.state, entry.is_served) == known


def _empty(pool: Pool) -> None:
    def work(connection: object) -> None:
        for table in reversed(metadata.sorted_tables):
            connection.execute(table.delete())  # type: ignore[attr-defined]

    pool._db.write(work)


def test_any_life_of_a_pool_is_as_the_model_says(place: str) -> None:
    machine = type("PoolLifetimeHere", (PoolLifetime,), {"place": place})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples(20, 4), stateful_step_count=20)
    )
