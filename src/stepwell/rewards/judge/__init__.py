"""Judges of what an agent says about a state: by rules, or by a model behind an endpoint."""
