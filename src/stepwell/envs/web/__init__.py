"""The web as an environment: pages as an agent sees them, fourteen actions, two drivers, task sources."""
