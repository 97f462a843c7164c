"""The Python API: `import stepwell as sw`. Thin over `runs/`: objects become names, then a run as any other.

    settings.py     keywords, functions and classes ─► key=value settings ─► RunConfig
    training.py     train: settings ─► a run in this process ─► Run
    run.py          Run: what a run folder holds, as attributes; load_run
    evaluation.py   evaluate: a run, a checkpoint or a model on held-out tasks
    plot.py         curves of one or several runs, with matplotlib

What your own environment or credit function needs (`sw.Env`, `sw.credit`, …) comes from the
folders that hold it. `stepwell/__init__.py` lists every name.

Invariants
* The API and the command line make the same run from the same settings, and leave the same folder.
* Settings hold names, never objects (`core/user_objects.py`). A run whose names only this process knows
  trains here, and is refused where another process would have to find them.
"""

from stepwell.monitors.notebook import hide_widget_warning

hide_widget_warning()  # before transformers is imported
