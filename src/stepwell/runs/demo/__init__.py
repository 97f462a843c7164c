"""The demo: an agent learns FrozenLake in about four minutes, beside imitation."""
