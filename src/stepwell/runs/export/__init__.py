"""A trained policy as a Hugging Face directory with a model card."""
