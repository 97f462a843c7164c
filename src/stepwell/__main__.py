"""`stepwell` and `python -m stepwell`: the command line, which Ctrl-C ends with one line at any moment.

A command decides itself what Ctrl-C does (`cli/main.py`). Before and after it there is nothing to clean up,
and in the middle of an import `KeyboardInterrupt` can come out as any error: there the process ends at once.
"""

import os
import signal
import sys


def main() -> int:
    """Run the command line of this process."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)
    from stepwell.cli.main import main as run_command  # takes most of a second the first time

    return run_command()


def _end_at_once(number: int, frame: object) -> None:
    os.write(2, b"\ninterrupted.\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
