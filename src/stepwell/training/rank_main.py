"""The process of a trainer's rank (`python -m stepwell.training.rank_main FD`).

`serve_rank` is what every launcher calls: with a socket to the trainer, it runs the trainer's commands until
the trainer closes it. A child process of the trainer gets the socket as a file descriptor; ranks on other
machines connect to it (`rank_join.py`).

Invariant: the process ends with its parent, whatever it is doing, and at the first failure.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
import traceback
from contextlib import suppress

import torch

from stepwell.core.child_process import call_when_parent_ends
from stepwell.policies.numerics import set_numerics
from stepwell.training.rank_join import receive_files
from stepwell.training.rank_link import receive_message, send_message
from stepwell.training.rank_worker import RankWorker

FAILED, BEREFT = 1, 3  # exit codes: this rank failed; another rank left it alone in a collective
_GRACE_S = 1.0  # time for an orderly exit and for removing the folder
_OF_GROUP = ("gloo", "NCCL", "TCPStore", "Connection closed by", "Broken pipe", "Connection reset")


def serve_rank(link: socket.socket) -> int:
    """Run the commands of the trainer at the other end; returns the exit code of this process."""
    try:
        first = receive_message(link)
        if first is None:
            return 0
        words = first[0]
        has_joined = words.get("is") == "files"  # of a run that did not start this process
        if has_joined:
            words = receive_files(link, words)
    except OSError:  # the run has ended meanwhile
        return BEREFT
    set_numerics(words["num_threads"])
    try:
        rank = RankWorker(link, words)
        while (message := receive_message(link)) is not None:
            rank.handle_message(*message)
        shutil.rmtree(words["folder"], ignore_errors=True)  # its creator may have been killed
    except Exception as error:
        traceback.print_exc()
        text = str(error)
        if isinstance(error, OSError) or (
            isinstance(error, RuntimeError) and any(word in text for word in _OF_GROUP)
        ):
            with suppress(OSError):  # the trainer may have no other way to know who has died
                send_message(link, {"is": "bereft", "text": text})
            return BEREFT
        kind = "OutOfMemoryError" if isinstance(error, torch.OutOfMemoryError) else type(error).__name__
        try:
            send_message(link, {"is": "failed", "kind": kind, "text": text})
        except OSError:
            return BEREFT
        return FAILED
    return BEREFT if has_joined else 0  # the run may want it again


def main() -> int:
    """Run as a child of the trainer."""
    call_when_parent_ends(_end_soon)
    with socket.socket(fileno=int(sys.argv[1])) as link:
        return serve_rank(link)


def _end_soon() -> None:
    """Exit soon. A closed socket is not enough for a rank inside a collective or a kernel."""
    time.sleep(_GRACE_S)
    os._exit(BEREFT)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of a broken process group could block an ordinary exit
