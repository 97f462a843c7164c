"""WebArena: its published tasks, its evaluators written anew, and the log-in to its sites."""
