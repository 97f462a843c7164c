"""How this process computes: the same settings in every process of a run.

The same machine, versions and number of threads repeat a run bit for bit. So whoever computes for a run
(its own process, a generator, a rank of the trainer, the imitation beside the demo, an evaluation, `play`,
`serve`) calls `set_numerics` first, and nobody else changes these switches.
"""

from __future__ import annotations

from stepwell.core import ConfigError


def set_numerics(num_threads: int | None = None) -> None:
    """Set the switches of torch that can change the last bits. `None` leaves the threads to torch."""
    import torch

    if num_threads is not None:
        torch.set_num_threads(num_threads)
    # torch switches oneDNN off for good when one of its products fails
    torch.backends.mkldnn.set_flags(True)  # type: ignore[no-untyped-call]
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.benchmark = False


def check_dtype(dtype: str, device: object) -> None:
    """Refuse half precision on a CPU: most CPUs emulate it, and results would depend on which one it is."""
    if dtype in ("bfloat16", "float16") and str(device).split(":")[0] == "cpu":
        raise ConfigError(
            f"policy.dtype: {dtype} needs a GPU; most CPUs have no units for it and take many times as long. "
            "Set dtype to float32, or device to cuda"
        )
