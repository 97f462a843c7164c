"""The machine of a run, for its summary."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

import stepwell


def describe_machine() -> dict[str, Any]:
    """The machine on which figures were measured."""
    return {
        "system": platform.platform(),
        "processor": _find_processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "stepwell": stepwell.__version__,
    }


def _find_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
