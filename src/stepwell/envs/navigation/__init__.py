"""Navigation: walk through a room, in first-person view, to the thing that an instruction means."""
