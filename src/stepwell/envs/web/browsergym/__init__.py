"""BrowserGym's benchmarks as an environment, in a Python environment of their own."""
