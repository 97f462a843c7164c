#!/usr/bin/env bash
# Tests the environment `robosuite` against the real package, in a Python environment of its own.
#
#   scripts/test_extra_robosuite.sh [arguments for pytest]
#
# .venvs/robosuite is made on first use (about 1.3 GB). robosuite asks for mink, which asks for an old
# numpy and serves only whole-body robots: robosuite is installed without its dependencies, and what it
# needs here is installed beside it.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
VENV=.venvs/robosuite
export PIP_DISABLE_PIP_VERSION_CHECK=1

if [ ! -e "$VENV/.installed" ]; then
  "$PYTHON" -m venv "$VENV"
  "$VENV/bin/pip" install -q -c constraints.txt numpy pydantic rich gymnasium pillow pytest pytest-asyncio hypothesis
  "$VENV/bin/pip" install -q -c constraints.txt mujoco==3.3.0 numba scipy opencv-python-headless termcolor tqdm
  "$VENV/bin/pip" install -q --no-deps robosuite==1.5.2
  touch "$VENV/.installed"
fi

# without the shared set-up of the tests, which wants torch: the environments do not need it
PYTHONPATH=src OMP_NUM_THREADS=1 "$VENV/bin/python" -m pytest --noconftest tests/envs/robots/test_robosuite.py "$@"
