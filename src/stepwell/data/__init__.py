"""Rows of data files and data sets, and a cache of what was built from them."""
