"""Contract checkers: whether what a user adds keeps the promises that the rest of the system builds on.

One file per kind. `kinds.check_object` finds the kind and runs its checks; `stepwell check NAME` prints the
report. Environments have their own checker in `envs/check.py`, which the same command runs.
"""
