"""Builders and loaders of data sets, search over documents, and the download-free cache."""
