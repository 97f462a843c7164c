"""Household: find things, treat them, and put them where they belong."""
