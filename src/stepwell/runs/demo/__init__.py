"""The demo: an agent learns FrozenLake in minutes, beside imitation."""
