"""What a process of pytest-xdist runs when it was forked: execnet says over standard input what to do."""

import sys

if __name__ == "__main__":  # a process that this one spawns imports the module, too
    exec(eval(sys.stdin.readline()))
