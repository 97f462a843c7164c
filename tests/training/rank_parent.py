"""A process that starts a trainer's other rank, tells its number and folder, and waits to be killed."""

from __future__ import annotations

import time

from tests.policies.vla.made import policy

from stepwell.training.ranks import Ranks

if __name__ == "__main__":
    ranks = Ranks(policy("token"), ["cpu", "cpu"])
    print(ranks.peers[0].process.pid, ranks._folder.name, flush=True)
    time.sleep(600)
