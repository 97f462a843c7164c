"""What throughput to expect, before it is paid for: profiles, forecasts and recommended settings."""
