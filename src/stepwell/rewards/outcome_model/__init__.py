"""Judges of whole episodes: did the agent do its task? A trained model, an endpoint, or several of them."""
