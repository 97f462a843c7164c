"""The environment service: environments hosted for callers on other machines."""
