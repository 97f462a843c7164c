"""The database behind a pool: opening it, transactions, and the differences between the two kinds.

SQLite runs in WAL mode: readers never wait, and a commit survives the kill of any process (with
`durable="power"` it is also flushed to disk). SQLite lets one process write at a time; the others
would sleep and try again. A file lock beside the database queues them instead, so that a writer
waits for the commits before it and not for a timer. The system releases the lock of a killed process.

PostgreSQL commits are always flushed by the server (`synchronous_commit` stays on). Otherwise a
killed server process could lose committed steps. Query plans must not depend on the statistics the
server happens to have (`_PLANNING`), or a pool that was just filled is slow.

A SQLite file without write permission is opened read-only (`read_only`).

Leases use one clock for all: the machine's for SQLite, the server's for PostgreSQL.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, TypeVar

from sqlalchemy import Connection, CursorResult, Dialect, create_engine, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.sql.schema import Table

from stepwell.core.disk import make_folder_durably
from stepwell.core.errors import ConfigError, InputError
from stepwell.pool.commits import Committer, retry_transient, to_stepwell_error
from stepwell.pool.read_only import is_read_only, make_read_only_engine
from stepwell.pool.schema import REVISION
from stepwell.pool.schema_version import (
    can_be_created,
    create_schema,
    read_revision,
    require_current,
    upgrade,
)

T = TypeVar("T")
Durable = Literal["process", "power"]
DEFAULT_NAME = "pool.db"
_BUSY_TIMEOUT_S = 60.0
_PATIENCE_TO_OPEN_S = 3.0  # a wrong URL should be refused soon
_PAGE_BYTES = 8192
_WAL_PAGES = 4000  # checkpoint every 32 MB: each one is flushed, so not too often
# Every query of the pool has an index. Until the server has analysed a table (a minute or more after it
# was filled), it assumes that a trajectory has 0.5 % of all steps. It would then read the whole table for
# 64 trajectories, and start parallel workers and a compiler, which cost more than the query, for one.
_PLANNING = "SET enable_seqscan = off; SET max_parallel_workers_per_gather = 0; SET jit = off"
_MIGRATION_LOCK = 0x5357454C  # any number that nobody else uses as an advisory lock


class PreparedStatement:
    """A statement compiled once for one database, for the few that run for every step."""

    def __init__(self, statement: Any, dialect: Dialect) -> None:
        compiled = statement.compile(dialect=dialect)
        self._text = str(compiled)
        self._names: Sequence[str] | None = compiled.positiontup if compiled.positional else None

    def __call__(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> CursorResult[Any]:
        names = self._names
        values: list[Any] = list(rows) if names is None else [tuple(row[n] for n in names) for row in rows]
        options = {"preserve_rowcount": True}
        return connection.exec_driver_sql(
            self._text, values if len(values) > 1 else values[0], execution_options=options
        )


class Database:
    """One open database: `write` and `read` run work in transactions."""

    def __init__(self, where: str | Path, durable: Durable) -> None:
        if durable not in ("process", "power"):
            raise ConfigError(f"durable is {durable!r}; choose 'process' or 'power'")
        self.url = parse_database_url(where)
        self.is_postgres = self.url.get_backend_name() == "postgresql"
        self.path = None if self.is_postgres else Path(str(self.url.database))
        self.is_read_only = self.path is not None and is_read_only(self.path)
        self._prepared: dict[str, PreparedStatement] = {}
        self._insertions: dict[tuple[str, str], Any] = {}
        self._waits_for_commit = (
            self.is_postgres or durable == "power"
        )  # a commit waits for a server or a disk
        self._pid = os.getpid()
        self._is_closed = False
        self._lock_file = self._open_lock_file(durable)
        self._engine = self._make_engine(durable)
        self._committer = Committer(self._connect_to_write, self._exclude_other_processes)
        try:
            retry_transient(self._prepare_schema, patience_s=_PATIENCE_TO_OPEN_S)
        except DBAPIError as error:
            self.close()
            raise to_stepwell_error(error, self._describe_place()) from error
        except ConfigError:
            self.close()
            raise

    def _describe_place(self) -> str:
        return str(self.path) if self.path is not None else self.url.render_as_string(hide_password=True)

    def _open_lock_file(self, durable: Durable) -> int | None:
        if self.path is None or self.is_read_only:
            return None
        try:
            if durable == "power":
                make_folder_durably(self.path.parent)
            else:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(
                f"cannot create a pool at {self.path} ({error.strerror}); choose a folder you can write to"
            ) from error

    def require_write(self) -> None:
        """Raise `ConfigError` if the pool is read-only."""
        if self.is_read_only:
            raise ConfigError(
                f"the pool {self.path} is read-only; give yourself write permission for the file and its "
                "folder, or copy it"
            )

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work(connection)` in a transaction, committed when this returns. It may run more than once."""
        self._check_open()
        self.require_write()
        return self._committer.run(work)

    def is_quick(self) -> bool:
        """Whether a small write would not wait now: for another write, a disk or a server."""
        if self._waits_for_commit or self.is_read_only:
            return False
        return self._committer.is_free(self._is_lock_free)

    def _is_lock_free(self) -> bool:
        assert self._lock_file is not None
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._lock_file, fcntl.LOCK_UN)
        return True

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work(connection)` in its own read transaction. It may run more than once."""
        self._check_open()

        def run_once() -> T:
            with self._engine.connect() as connection:
                return work(connection)

        try:
            return retry_transient(run_once)
        except DBAPIError as error:
            raise to_stepwell_error(error) from error

    def insert_missing(self, table: Table, *, returning: str = "") -> Any:
        """INSERT that skips rows whose key exists; always the same object, so it is compiled once."""
        key = table.name, returning
        if key not in self._insertions:
            insert = postgresql.insert if self.is_postgres else sqlite.insert
            statement: Any = insert(table).on_conflict_do_nothing().execution_options(preserve_rowcount=True)
            self._insertions[key] = statement.returning(table.c[returning]) if returning else statement
        return self._insertions[key]

    def prepare_statement(self, name: str, make: Callable[[], Any]) -> PreparedStatement:
        """The statement that `make` builds, compiled on the first call."""
        if name not in self._prepared:
            self._prepared[name] = PreparedStatement(make(), self._engine.dialect)
        return self._prepared[name]

    def read_clock(self, connection: Connection) -> float:
        """Seconds since 1970, by the clock of the leases."""
        if not self.is_postgres:
            return time.time()
        return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())

    def count_bytes(self) -> int:
        """Bytes of the database on disk."""
        if self.is_postgres:
            query = text("SELECT pg_database_size(current_database())")
            return int(self.read(lambda connection: connection.execute(query).scalar_one()))
        files = [Path(f"{self.path}{ending}") for ending in ("", "-wal")]
        return sum(file.stat().st_size for file in files if file.exists())

    def shrink(self) -> None:
        """Return freed pages to the file system, if the database does not do so itself."""
        self.require_write()
        if self.is_postgres:
            return
        with self._exclude_other_processes(), self._engine.connect() as connection:
            raw = connection.connection.cursor()
            raw.executescript("PRAGMA incremental_vacuum")  # `execute` would stop after one page
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        self._is_closed = True
        self._committer.close()
        self._engine.dispose()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise InputError("a pool cannot be used after a fork; call open_pool again in the new process")
        if self._is_closed:
            raise InputError("this pool is closed; call open_pool again")

    def _make_engine(self, durable: Durable) -> Any:
        if self.path is not None and self.is_read_only:
            return make_read_only_engine(self.path, _BUSY_TIMEOUT_S)
        return self._make_postgres_engine() if self.is_postgres else self._make_sqlite_engine(durable)

    def _make_postgres_engine(self) -> Any:
        engine = create_engine(self.url, pool_pre_ping=True, pool_size=8, max_overflow=-1)

        @event.listens_for(engine, "connect")
        def _set_up(raw: Any, _: Any) -> None:
            raw.execute(_PLANNING)
            raw.commit()  # otherwise rolling back the first transaction would undo the settings

        return engine

    def _make_sqlite_engine(self, durable: Durable) -> Any:
        engine = create_engine(
            self.url,
            connect_args={"timeout": _BUSY_TIMEOUT_S, "check_same_thread": False},
            pool_size=8,
            max_overflow=-1,
        )

        @event.listens_for(engine, "connect")
        def _set_up(raw: Any, _: Any) -> None:
            raw.isolation_level = None  # we send BEGIN and COMMIT ourselves
            for name, value in (
                ("page_size", _PAGE_BYTES),  # these two have an effect only while the file is empty
                ("auto_vacuum", "INCREMENTAL"),
                ("journal_mode", "WAL"),
                ("synchronous", "FULL" if durable == "power" else "NORMAL"),
                ("wal_autocheckpoint", _WAL_PAGES),
                ("foreign_keys", "ON"),
            ):
                raw.execute(f"PRAGMA {name} = {value}")

        @event.listens_for(engine, "begin")
        def _begin_transaction(connection: Connection) -> None:
            writes = connection.get_execution_options().get("writes", False)
            raw = connection.connection.cursor()  # not through the engine: this is half of a small append
            raw.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            raw.close()

        return engine

    def _connect_to_write(self) -> Connection:
        return self._engine.connect().execution_options(writes=True)  # type: ignore[no-any-return]

    @contextmanager
    def _hold_file_lock(self) -> Iterator[None]:
        assert self._lock_file is not None
        fcntl.flock(self._lock_file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock_file, fcntl.LOCK_UN)

    def _exclude_other_processes(self) -> Any:
        return nullcontext() if self.is_postgres else self._hold_file_lock()

    def _prepare_schema(self) -> None:
        """Create or upgrade the schema. The lock also covers the switch to WAL."""
        if self.is_read_only:
            with self._engine.connect() as connection:
                require_current(connection, self.path)
            return
        with self._exclude_other_processes(), self._connect_to_write() as connection:
            if read_revision(connection) == REVISION:
                return
            connection.rollback()
            with connection.begin():
                if self.is_postgres:
                    connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
                if can_be_created(connection):
                    create_schema(connection)
                elif read_revision(connection) != REVISION:
                    upgrade(connection)


def parse_database_url(where: str | Path) -> URL:
    """The URL of a pool given as a file, a folder that holds `pool.db`, or a database URL."""
    if not str(where):
        raise ConfigError("the location of the pool is empty; give a file such as runs/pool.db, or a URL")
    if "://" not in str(where):
        path = Path(where).expanduser()
        path = path / DEFAULT_NAME if path.is_dir() else path
        return URL.create("sqlite", database=str(path.absolute()))
    try:
        url = make_url(str(where))
    except ArgumentError as error:
        raise ConfigError(f"{where!r} is not a database URL: {error}") from error
    backend = url.get_backend_name()
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise ConfigError(f"{backend!r} is not supported for pools; use sqlite:///FILE or postgresql://…")
    if url.database in (None, "", ":memory:"):
        raise ConfigError("a pool in memory would be lost with its process; use a file: sqlite:///pool.db")
    return url.set(drivername="sqlite", database=str(Path(str(url.database)).absolute()))
