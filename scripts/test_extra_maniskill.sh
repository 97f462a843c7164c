#!/usr/bin/env bash
# Tests the environment `maniskill`, and `primitive_skill` in it, against the real package.
#
#   scripts/test_extra_maniskill.sh [arguments for pytest]
#
# .venvs/maniskill is made on first use (about 700 MB, x86_64).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/venv_beside.sh

venv_beside maniskill mani_skill==3.0.1 sapien==3.0.3 mplib==0.1.1 pytorch_kinematics==0.7.6 \
  arm-pytorch-utilities pytorch-seed fast_kinematics transforms3d trimesh lxml defusedxml dacite h5py scipy \
  GitPython gitdb smmap tabulate imageio nvidia-ml-py tyro==0.9.2 docstring_parser shtab typeguard networkx \
  importlib_resources opencv-python-headless==4.12.0.88 matplotlib pyparsing cycler kiwisolver fonttools \
  contourpy absl-py ipython traitlets decorator jedi parso stack-data asttokens executing pure-eval \
  matplotlib-inline prompt-toolkit wcwidth pexpect ptyprocess pygments ipython-pygments-lexers typing-extensions

PYTHONPATH=src:. OMP_NUM_THREADS=1 .venvs/maniskill/bin/python -m pytest --noconftest -p no:cacheprovider \
  tests/envs/robots/test_maniskill_package.py "$@"
