"""Throughput before a run starts: measured profiles, forecasts and recommended settings."""
