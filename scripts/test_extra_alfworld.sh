#!/usr/bin/env bash
# Tests the environment `household` against ALFWorld's own engine, in a Python environment of its own.
#
#   scripts/test_extra_alfworld.sh [arguments for pytest]
#
# .venvs/alfworld is made on first use (about 450 MB). ALFWorld's games are not in the package; those of the
# tests are households made here, written as games.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
VENV=.venvs/alfworld
export PIP_DISABLE_PIP_VERSION_CHECK=1

if [ ! -e "$VENV/.installed" ]; then
  "$PYTHON" -m venv "$VENV"
  "$VENV/bin/pip" install -q -c constraints.txt numpy pydantic rich gymnasium pillow pytest pytest-asyncio hypothesis
  "$VENV/bin/pip" install -q -c constraints.txt alfworld==0.4.2
  touch "$VENV/.installed"
fi

# without the shared set-up of the tests, which wants torch: the environments do not need it
PYTHONPATH=src OMP_NUM_THREADS=1 "$VENV/bin/python" -m pytest --noconftest tests/envs/household/test_alfworld.py "$@"
