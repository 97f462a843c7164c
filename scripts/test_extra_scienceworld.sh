#!/usr/bin/env bash
# Tests the environment `scienceworld` against the real package, in a Python environment of its own.
#
#   scripts/test_extra_scienceworld.sh [arguments for pytest]
#
# .venvs/scienceworld is made on first use (about 200 MB). Java must be installed (Debian: default-jre-headless).
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
VENV=.venvs/scienceworld
export PIP_DISABLE_PIP_VERSION_CHECK=1

if [ ! -e "$VENV/.installed" ]; then
  "$PYTHON" -m venv "$VENV"
  "$VENV/bin/pip" install -q -c constraints.txt numpy pydantic rich gymnasium pillow pytest pytest-asyncio hypothesis
  "$VENV/bin/pip" install -q -c constraints.txt scienceworld==1.2.3
  touch "$VENV/.installed"
fi

# without the shared set-up of the tests, which wants torch: the environments do not need it; without the plugin of
# hypothesis, whose late import can meet the end of a connection to Java and then fails (a bug of Python 3.11)
PYTHONPATH=src OMP_NUM_THREADS=1 "$VENV/bin/python" -m pytest --noconftest -p no:hypothesispytest tests/envs/test_java_envs.py "$@"
