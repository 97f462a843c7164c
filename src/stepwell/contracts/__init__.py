"""Contract checkers: they test whether user-defined objects keep the contracts that the rest of Stepwell
needs.

There is one file per kind. `kinds.check_object` finds the kind and runs its checks; `stepwell check NAME`
prints the report. Environments have their own checker in `envs/check.py`, which the same command runs.
"""
