"""The training loop: where its trajectories come from, its state, and its figures."""
