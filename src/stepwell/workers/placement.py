"""Placement: which device hosts which workers, and whether the hardware allows it.

    colocated       each device hosts simulators, generators and trainers
    hybrid          each device hosts a trainer and either simulators or a generator
    disaggregated   rollout devices (simulators, generators) apart from trainer devices

A device is `cpu`, `cuda:0`, … of this machine, or `HOST/cpu`, `HOST/cuda:0` of another that serves workers
(`stepwell serve worker`). With `workers.backend = "ray"` simulators and generators get devices of the cluster
(`ray_cluster.py`), and so do the ranks of a trainer if there are several; otherwise trainers are on this
machine. Defaults: generators and trainers get `policy.device` (in `hybrid`, trainers get all named devices).
Simulators get the cores of the CPU, which all placements share; in `hybrid` the cores can be named like any
other device.

Each trainer device is a rank (`training/ranks.py`). The cores may host several ranks, every other device one.

`resolve_placement` refuses what the settings or the hardware rule out, and says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stepwell.config.workers import WorkersConfig
from stepwell.core import ConfigError

CORES = "cpu"


@dataclass(frozen=True, slots=True)
class DevicePlacement:
    """One device per simulator and per generator, and the devices of the trainers."""

    kind: str
    simulators: tuple[str, ...]
    generators: tuple[str, ...]
    trainers: tuple[str, ...]

    def describe_devices(self) -> Iterator[str]:
        """One line per device, with what it hosts."""
        for device in dict.fromkeys((*self.trainers, *self.generators, *self.simulators)):
            hosted = [
                f"{row.count(device)} {word if row.count(device) == 1 else word + 's'}"
                for word, row in (
                    ("simulator", self.simulators),
                    ("generator", self.generators),
                    ("trainer", self.trainers),
                )
                if device in row
            ]
            yield f"{device}: {', '.join(hosted)}"


def resolve_placement(config: WorkersConfig, policy_device: str, available: Sequence[str]) -> DevicePlacement:
    """The placement on these devices. `available` always includes the cores (`cpu`)."""
    simulators, generators, trainers = _list_named_devices(config, policy_device)
    for kind, devices in (("simulators", simulators), ("generators", generators), ("trainers", trainers)):
        is_here = kind == "trainers" and not are_ranks_actors(config, devices)
        elsewhere = [] if is_here else _list_elsewhere(config, devices)
        _check_available(kind, devices, [*available, *elsewhere])
    are_cores = all(device.rpartition("/")[2] == CORES for device in simulators)
    is_shared = are_cores and not (config.placement == "hybrid" and config.simulators.devices)
    check = {"colocated": _check_colocated, "hybrid": _check_hybrid, "disaggregated": _check_disaggregated}
    check[config.placement](() if is_shared else simulators, generators, trainers)
    return DevicePlacement(
        config.placement,
        _deal_out(simulators, config.simulators.num_workers),
        _deal_out(generators, config.generators.num_workers),
        trainers,
    )


def are_ranks_actors(config: WorkersConfig, trainers: Sequence[str]) -> bool:
    """Whether the trainer's ranks are actors of a Ray cluster: several ones of a run on it."""
    return config.backend == "ray" and config.mode != "off" and len(trainers) > 1


def list_trainer_devices(
    config: WorkersConfig, policy_device: str, available: Sequence[str]
) -> tuple[str, ...]:
    """The devices of the trainer's ranks in a run without other workers."""
    devices = tuple(map(_normalize_device, config.trainers.devices)) or (policy_device,)
    if config.trainers.devices:
        _check_available("trainers", devices, available)
    return devices


def list_devices() -> list[str]:
    """The devices of this machine."""
    import torch

    return [CORES, *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]


def check_device(key: str, device: str) -> None:
    """Refuse a device that this machine does not have. `key` is the setting that names it."""
    if device == CORES:
        return
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ConfigError(
            f"{key}: {device!r} is not a device; write cpu, or cuda:0 for the first GPU"
        ) from None
    if kind == CORES:  # torch accepts every index: all are the same cores
        return
    other = torch.accelerator.current_accelerator()  # such as mps
    here = list_devices()
    if _normalize_device(device) in here or (kind != "cuda" and other is not None and kind == other.type):
        return
    reason = "" if torch.cuda.is_available() else " (torch finds no CUDA: look at nvidia-smi and the driver)"
    raise ConfigError(
        f"{key}: there is no {device} here; this machine has {', '.join(here)}{reason}. Set {key}={here[-1]}"
    )


def _list_named_devices(config: WorkersConfig, policy_device: str) -> tuple[tuple[str, ...], ...]:
    default = _normalize_device(policy_device)
    simulators = tuple(map(_normalize_device, config.simulators.devices))
    generators = tuple(map(_normalize_device, config.generators.devices)) or (default,)
    trainers = tuple(map(_normalize_device, config.trainers.devices))
    if not trainers:
        named = tuple(dict.fromkeys((*simulators, *generators)))
        trainers = named if config.placement == "hybrid" else (default,)
    return simulators or (CORES,), generators, trainers


def _list_elsewhere(config: WorkersConfig, devices: Sequence[str]) -> list[str]:
    """Devices that this machine cannot check: of the cluster, or of a host that serves workers."""
    return [device for device in devices if config.backend == "ray" or "/" in device]


def _normalize_device(device: str) -> str:
    return f"{device}:0" if device.rpartition("/")[2] == "cuda" else device


def _check_available(kind: str, devices: Sequence[str], available: Sequence[str]) -> None:
    if missing := [device for device in devices if device not in available]:
        only = " Trainers are on this machine." if "/" in missing[0] else ""
        raise ConfigError(
            f"workers.{kind}.devices: there is no {missing[0]} here; this machine has "
            f"{', '.join(available)}.{only}"
        )
    one_each = devices if kind != "trainers" else [device for device in devices if device != CORES]
    if len(set(one_each)) < len(one_each):
        raise ConfigError(
            f"workers.{kind}.devices names a device twice: {', '.join(devices)}; name each once: workers "
            "are spread over them in turn"
        )


def _check_colocated(simulators: Sequence[str], generators: Sequence[str], trainers: Sequence[str]) -> None:
    for kind, devices in (("generators", generators), ("simulators", simulators)):
        if devices and set(devices) != set(trainers):
            odd = sorted(set(devices) ^ set(trainers))[0]
            raise ConfigError(
                f"workers.placement: colocated means that each device hosts all kinds of workers, but {odd} "
                f"is not named for both trainers and {kind}; give both the same devices, or choose hybrid or "
                "disaggregated"
            )


def _check_hybrid(simulators: Sequence[str], generators: Sequence[str], trainers: Sequence[str]) -> None:
    if len(set(trainers)) < 2:
        raise ConfigError(
            "workers.placement: hybrid needs at least two devices, one with simulators and one with a "
            f"generator, and a trainer on each; there is only {trainers[0]}. Name more, or choose colocated"
        )
    if not simulators:
        raise ConfigError(
            "workers.simulators.devices: hybrid places simulators on devices of their own; name some, "
            "apart from those of the generators, or choose colocated"
        )
    if both := sorted(set(simulators) & set(generators)):
        raise ConfigError(
            f"workers.placement: in hybrid a device has either simulators or a generator, but {both[0]} is "
            "named for both; choose colocated, or separate the lists"
        )
    if set(trainers) != {*simulators, *generators}:
        odd = sorted(set(trainers) ^ {*simulators, *generators})[0]
        raise ConfigError(
            f"workers.placement: in hybrid each device has a trainer and either simulators or a generator; "
            f"{odd} has only one of the two"
        )


def _check_disaggregated(
    simulators: Sequence[str], generators: Sequence[str], trainers: Sequence[str]
) -> None:
    if shared := sorted(set(trainers) & {*simulators, *generators}):
        raise ConfigError(
            f"workers.placement: disaggregated keeps rollout devices apart from trainer devices, but "
            f"{shared[0]} is named for both; name others in workers.generators.devices or "
            "workers.trainers.devices, or choose colocated"
        )


def _deal_out(devices: Sequence[str], count: int) -> tuple[str, ...]:
    return tuple(devices[i % len(devices)] for i in range(count))
