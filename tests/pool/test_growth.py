"""No statement of a producer or consumer reads more because the pool holds more.

Every statement that a piece of work sends is planned and run once more, as the database explains it:
PostgreSQL says how many rows it read, SQLite whether it searched an index or went through a table.
The pool was just filled, so that PostgreSQL has no statistics yet; that is when it guesses worst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, event, func, select, text
from tests.pool.made import TASK, dialogue, step, trajectory
from tests.pool.postgres import database

from stepwell.core import Status
from stepwell.pool import Filter, Pool, open_pool
from stepwell.pool.schema import groups, steps, tags, trajectories

BASE = 32  # groups that are consumed, as many that are leased, and as many that are ready
SMALL, LARGE = 3, 8  # how often all of them are doubled
Statement = tuple[str, Any]
_READING = {"Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Heap Scan"}


def filled(pool: Pool, num_doublings: int) -> Pool:
    """A store of trajectories of two steps: some are added, the others copied from them."""
    pool.add([trajectory(f"old {i}", [step(0), step(1)]) for i in range(3 * BASE)], tags=["all"])
    pool.acknowledge("before", [taken.group for taken in pool.take("before", BASE)], 0)
    pool.take("other", BASE)
    for number in range(num_doublings):
        pool._db.write(lambda connection, known=3 * BASE * 2**number: double(connection, known))
    if pool._db.is_postgres:
        pool._db.write(count_on)
    return pool


def double(connection: Connection, known: int) -> None:
    for table, numbered, named in (
        (groups, ("seq",), "name"),
        (trajectories, ("seq", "group"), "id"),
        (steps, ("trajectory",), ""),
        (tags, ("trajectory",), ""),
    ):
        moved = {name: table.c[name] + known for name in numbered}
        renamed = {named: table.c[named] + f" {known}"} if named else {}
        chosen = [{**moved, **renamed}.get(column.name, column) for column in table.c]
        connection.execute(table.insert().from_select([column.name for column in table.c], select(*chosen)))


def count_on(connection: Connection) -> None:
    for table in (groups, trajectories):
        newest = connection.execute(select(func.max(table.c.seq))).scalar_one()
        connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{table.name}', 'seq'), {newest})"))


def play(pool: Pool) -> None:
    id = pool.begin(TASK, id="played", tags=["all"])
    for number, turn in enumerate(dialogue(3)):
        pool.append(id, number, [turn])
    pool.reward(id, 1.0)
    pool.finish(id, Status.SUCCESS)


def take(num: int, where: Filter | None = None) -> Callable[[Pool], None]:
    def work(pool: Pool) -> None:
        taken = pool.take("me", num, where=where)
        assert len(taken) == num and all(len(group.trajectories[0].steps) == 2 for group in taken)
        pool.acknowledge("me", [group.group for group in taken[1:]], 1)
        pool.give_back([taken[0].group])

    return work


WORK = {
    "play": play,
    "take 8": take(8),
    "take 64": take(64),
    "take 8 of a version": take(8, Filter(min_version=0)),
    "take 8 with a tag that all have": take(8, Filter(tags=["all"])),
    "take 8 without a tag": take(8, Filter(without_tags=["other"])),
    "resume": lambda pool: pool.restore("before", 0),
    "renew": lambda pool: pool.renew("before"),
    "get": lambda pool: pool.get("old 7"),
    "has": lambda pool: pool.has("old 7"),
    "tag": lambda pool: pool.tag(["old 3", "old 4"], "good"),
}


def statements(pool: Pool, work: Callable[[Pool], Any]) -> list[Statement]:
    """What `work` sends to the database."""
    sent: list[Statement] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        rows = parameters if isinstance(parameters, list) else [parameters]
        sent.extend((statement, row) for row in rows)

    event.listen(pool._db._engine, "before_cursor_execute", note)
    work(pool)
    event.remove(pool._db._engine, "before_cursor_execute", note)
    assert sent
    return [each for each in sent if each[0].split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE")]


def explained(pool: Pool, explain: str, sent: list[Statement]) -> Iterator[tuple[str, list[Any]]]:
    """Each statement with its explanation; what it changes is rolled back."""
    for statement, values in sent:
        yield statement, pool._db.read(partial(explain_one, query=f"{explain} {statement}", values=values))


def explain_one(connection: Connection, query: str, values: Any) -> list[Any]:
    return list(connection.exec_driver_sql(query, values))


def rows_read(plan: dict[str, Any]) -> int:
    """How many rows a plan took from tables, whether it kept or passed over them."""
    passed_over = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
    own = (plan["Actual Rows"] + passed_over) * plan["Actual Loops"] if plan["Node Type"] in _READING else 0
    return own + sum(rows_read(part) for part in plan.get("Plans", ()))


def rows_of(pool: Pool, work: Callable[[Pool], Any]) -> int:
    """How many rows all statements of `work` read."""
    sent = statements(pool, work)
    found = explained(pool, "EXPLAIN (ANALYZE, FORMAT JSON)", sent)
    return sum(rows_read(rows[0][0][0]["Plan"]) for _, rows in found)


@pytest.fixture(scope="module")
def postgres_pools(postgres_server: str) -> Iterator[tuple[Pool, Pool]]:
    """A small and a large store on a server that has looked at neither."""
    with (
        database(postgres_server) as small,
        database(postgres_server) as large,
        open_pool(small) as one,
        open_pool(large) as other,
    ):
        yield filled(one, SMALL), filled(other, LARGE)


@pytest.fixture(scope="module")
def sqlite_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with open_pool(tmp_path_factory.mktemp("growth") / "pool.db") as pool:
        yield filled(pool, SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORK)
def test_postgres_reads_as_many_rows_in_a_store_of_32_times_the_size(
    postgres_pools: tuple[Pool, Pool], name: str
) -> None:
    small, large = (rows_of(pool, WORK[name]) for pool in postgres_pools)
    assert large == small


@pytest.mark.parametrize("name", WORK)
def test_sqlite_searches_and_never_goes_through_a_table(sqlite_pool: Pool, name: str) -> None:
    sent = statements(sqlite_pool, WORK[name])
    for statement, rows in explained(sqlite_pool, "EXPLAIN QUERY PLAN", sent):
        assert not [row[3] for row in rows if row[3].startswith("SCAN")], statement
