"""MiniWoB++: 130 small pages with a task, a seed and a reward each, out of the package `miniwob`."""
