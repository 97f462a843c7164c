"""Numeric settings of torch, the same in every process of a run.

With the same machine, versions and number of threads a run repeats bit for bit. So every process that
computes for a run (its own, a generator, a rank of the trainer, an evaluation, `play`, `serve`, `sft`, `orm`)
calls `set_numerics` first, and nothing else changes these settings.
"""

from __future__ import annotations

from stepwell.core import ConfigError


def set_numerics(num_threads: int | None = None) -> None:
    """Set the options of torch that can change the last bits. `None` leaves the threads to torch."""
    import torch

    if num_threads is not None:
        torch.set_num_threads(num_threads)
    # torch switches oneDNN off for good when one of its products fails
    torch.backends.mkldnn.set_flags(True)  # type: ignore[no-untyped-call]
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.benchmark = False


def check_dtype(dtype: str, device: object) -> None:
    """Refuse half precision on a CPU: most CPUs emulate it, and results would depend on the CPU."""
    if dtype in ("bfloat16", "float16") and str(device).split(":")[0] == "cpu":
        raise ConfigError(
            f"policy.dtype: {dtype} needs a GPU; most CPUs only emulate it, which takes many times as long. "
            "Set dtype to float32, or device to cuda"
        )
