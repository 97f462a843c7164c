"""Judges of an agent's state descriptions: by rules, or by a model behind an endpoint."""
