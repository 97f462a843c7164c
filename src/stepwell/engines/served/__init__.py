"""Inference servers (vLLM, SGLang) as the engine of a training run: sampling, and weights without restart."""
