"""Stepwell: reinforcement learning for agents that act in many steps.

Importing this package imports nothing heavy: every part is imported from its own
folder (`stepwell.core`, `stepwell.algos`, `stepwell.packing`, ...), and
`docs/structure.md` says what each one holds.
"""

__version__ = "0.1.0"
