"""Navigation: walk through a room, seen by one's own eyes, to the thing an instruction means."""
