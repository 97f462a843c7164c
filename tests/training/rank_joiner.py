"""A process that joins a run as one of its ranks, as `stepwell train` under torchrun does."""

from __future__ import annotations

import os
import sys

from stepwell.training.rank_join import Rendezvous, join_ranks

if __name__ == "__main__":
    rank, port = sys.argv[1:]
    variables = {"RANK": rank, "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    meeting = Rendezvous.read_environment(os.environ | variables | {"STEPWELL_RANK_TOKEN": "secret"})
    assert meeting is not None
    sys.exit(
        join_ranks(
            meeting.host,
            meeting.port,
            rank=meeting.rank,
            device=meeting.choose_device("cpu"),
            token=meeting.token,
        )
    )
