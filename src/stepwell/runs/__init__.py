"""Training runs from settings to report: building, planning, training, evaluating, exporting."""
