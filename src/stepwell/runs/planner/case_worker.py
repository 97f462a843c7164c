"""A process of a `CasePool` (`python -m stepwell.runs.planner.case_worker FD`): one case after another."""

from __future__ import annotations

import pickle
import socket
import sys

from stepwell.core.child_process import end_with_parent
from stepwell.runs.planner.forecast import forecast_case


def main() -> None:
    """Answer until the other end is closed."""
    end_with_parent()
    with socket.socket(fileno=int(sys.argv[1])) as link, link.makefile("rwb") as file:
        while True:
            try:
                case, hardware = pickle.load(file)
            except EOFError:
                return
            pickle.dump(forecast_case(case, hardware), file)
            file.flush()


if __name__ == "__main__":
    main()
