"""Makes `pool_0001.db`, a pool as the first revision of the schema left it.

    python tests/pool/data/make_old_pool.py

The file is kept, so that every later version is tested against what an earlier one wrote.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from tests.pool.made import TASK, dialogue, step, trajectory  # noqa: E402

from stepwell.pool import database, open_pool, schema_version  # noqa: E402


def main() -> None:
    file = Path(__file__).parent / "pool_0001.db"
    file.unlink(missing_ok=True)
    database.REVISION = "0001"
    database.upgrade = lambda connection: schema_version.upgrade(connection, "0001")
    with open_pool(file) as pool:
        pool.add([trajectory(f"g/{n}", [step(n, reward=1.0)], group="g") for n in range(2)])
        pool.tag(["g/1"], "old")
        pool.reward("g/1", 0.5, source="judge")
        pool.begin(TASK, id="talk", channel="user")
        pool.append("talk", 0, dialogue(3))
    for ending in (".lock", "-wal", "-shm"):
        Path(f"{file}{ending}").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
