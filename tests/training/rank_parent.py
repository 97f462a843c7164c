"""A process that starts a trainer's ranks, tells one's number and the folder, and waits to be killed."""

from __future__ import annotations

import time

from tests.policies.vla.made import policy

from stepwell.config.training import TrainConfig
from stepwell.training.rank_launch import ChildLauncher
from stepwell.training.ranks import Ranks

if __name__ == "__main__":
    ranks = Ranks(policy("token"), TrainConfig(), ChildLauncher(["cpu", "cpu"]))
    print(ranks.peers[1].pid, ranks._folder.name, flush=True)
    time.sleep(600)
