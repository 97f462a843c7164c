#!/usr/bin/env bash
# Tests `LeRobotSampler` against the real package, in a Python environment of its own.
#
#   scripts/test_extra_lerobot.sh [arguments for pytest]
#
# .venvs/lerobot is made on first use (about 700 MB).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/venv_beside.sh

venv_beside lerobot lerobot==0.4.4 torchvision==0.28.0 transformers==4.57.3 huggingface-hub==0.35.3 \
  tokenizers==0.22.1 accelerate==1.11.0 datasets==4.1.1 diffusers==0.35.2 draccus==0.10.0 av==15.1.0 \
  opencv-python-headless==4.12.0.88 einops==0.8.2 deepdiff==9.1.0 cachebox==6.2.10 orderly-set==5.5.0 \
  jsonlines==4.0.0 attrs termcolor pyserial mergedeep typing-inspect mypy-extensions toml pyyaml-include==1.4.1 \
  imageio pandas pyarrow dill==0.4.0 multiprocess==0.70.16 xxhash fsspec requests python-dateutil pytz tzdata \
  six importlib-metadata zipp

# LeRobot imports torchvision and does not use it here. Its compiled part looks for CUDA and is not loaded
# beside a torch without; two of its operators must have been named all the same.
PYTHONPATH=src:. OMP_NUM_THREADS=1 .venvs/lerobot/bin/python - "$@" <<'PYTHON'
import sys

import pytest
import torch

for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
files = ["tests/policies/vla/test_lerobot_package.py", "tests/policies/vla/test_lerobot.py"]
sys.exit(pytest.main(["--noconftest", "-p", "no:cacheprovider", *files, *sys.argv[1:]]))
PYTHON
