"""Environments as a service: worlds hosted for callers on other machines."""
