"""Who runs what, where and when: the loop, evaluation, studies, and episodes played by hand."""
