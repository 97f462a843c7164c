"""The numerics of a process that only samples: those of the run, so that its samples are the run's."""

from stepwell.policies.numerics import check_dtype, set_numerics

__all__ = ["check_dtype", "set_numerics"]
