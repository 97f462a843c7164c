"""FrozenLake: cross the ice to the goal without falling into a hole."""
