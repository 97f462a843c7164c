#!/usr/bin/env bash
# Tests the monitors for Trackio, MLflow and W&B (offline) against the real packages, in an environment of their own.
#
#   scripts/test_extra_trackers.sh [arguments for pytest]
#
# .venvs/trackers is made on first use (about 1 GB). It sees what .venv has.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venvs/trackers
export PIP_DISABLE_PIP_VERSION_CHECK=1

if [ ! -e "$VENV/.installed" ]; then
  .venv/bin/python -m venv "$VENV"
  "$VENV/bin/pip" install -q mlflow trackio wandb
  place='import sysconfig; print(sysconfig.get_path("purelib"))'
  .venv/bin/python -c "$place" > "$("$VENV/bin/python" -c "$place")/stepwell.pth"
  touch "$VENV/.installed"
fi

PYTHONPATH=src OMP_NUM_THREADS=1 "$VENV/bin/python" -m pytest \
  tests/monitors/test_trackers.py tests/monitors/test_tensorboard.py "$@"
