"""Rows of data files and data sets, and a cache of products built from them."""
