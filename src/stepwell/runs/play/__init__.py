"""One episode, turn by turn: played by a person or by an agent that a person watches."""
