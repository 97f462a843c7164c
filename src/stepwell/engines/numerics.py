"""Numeric settings for processes that only sample: the same as in the rest of the run."""

from stepwell.policies.numerics import check_dtype, set_numerics

__all__ = ["check_dtype", "set_numerics"]
