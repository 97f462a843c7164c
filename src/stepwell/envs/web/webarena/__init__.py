"""WebArena: its published tasks, its evaluators written again, and the log-in to its sites."""
