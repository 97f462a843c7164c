"""Success on held-out tasks: of a run, of a model, of an outside chat API."""
