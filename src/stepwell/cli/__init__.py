"""The command line: one file per command, each thin over the part that does the work.

A command's module has `add(commands)`, which describes it to argparse, and `run(args)`, which
imports what it needs and does it. Modules import nothing heavy at the top, so that every
`--help` is instant.
"""
