"""Which workers a run will have: settings checked, devices placed, and lines for its plan. Starts nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from stepwell.algos.recipes import Recipe
from stepwell.config.run import RunConfig
from stepwell.config.workers import WorkersConfig
from stepwell.core import ConfigError
from stepwell.envs.registry import count_places
from stepwell.workers.placement import (
    DevicePlacement,
    are_ranks_actors,
    list_devices,
    list_trainer_devices,
    resolve_placement,
)
from stepwell.workers.shards import find_shard_rule
from stepwell.workers.staleness import check_staleness


def check_workers(config: RunConfig) -> DevicePlacement:
    """Refuse what an asynchronous run cannot do; returns the devices of its workers."""
    check_staleness(config.workers)
    if config.offline.pool is not None:
        raise ConfigError("workers.mode: an offline run plays nothing; set it to 'off'")
    _check_backend(config.workers)
    _check_servers(config)
    find_shard_rule(config.workers.generators.shard)
    check_places(config)
    placement = resolve_placement(config.workers, config.policy.device, list_devices())
    return placement if config.own_agent.function is None else replace(placement, simulators=())


def _check_backend(workers: WorkersConfig) -> None:
    """Refuse a backend that is not installed, and threads in other places."""
    devices = (*workers.simulators.devices, *workers.generators.devices)
    elsewhere = [device for device in devices if "/" in device]
    if not workers.processes and (workers.backend == "ray" or elsewhere):
        what = "workers.backend=ray" if workers.backend == "ray" else elsewhere[0]
        raise ConfigError(
            f"workers.processes=false keeps all workers in this process, but {what} places them elsewhere; "
            "leave one of them out"
        )
    if workers.backend == "ray":
        from stepwell.workers.ray_cluster import import_ray

        import_ray()


def _check_servers(config: RunConfig) -> None:
    """Refuse generators without a server of their own, and hosts that would have to reach the servers."""
    engine, generators = config.engine, config.workers.generators
    if engine.backend == "embedded":
        return
    if generators.num_workers > len(engine.urls):
        raise ConfigError(
            f"workers.generators.num_workers ({generators.num_workers}) exceeds the servers in engine.urls "
            f"({len(engine.urls)}); one generator can ask all of them"
        )
    if elsewhere := [device for device in generators.devices if "/" in device]:
        raise ConfigError(
            f"workers.generators.devices: {elsewhere[0]} runs engines of its own; with engine.backend="
            f"{engine.backend} generators are on this machine and ask the servers of engine.urls"
        )


def check_places(config: RunConfig) -> None:
    """Refuse simulators with more episodes under way than a process of this machine can have."""
    sims, env = config.workers.simulators, config.env
    if config.own_agent.function is not None:
        return
    places, asked = count_places(env.name, env.options), sims.env_batches * sims.batch_size
    if places is not None and asked > places:
        raise ConfigError(
            f"workers.simulators: env_batches x batch_size are {asked} episodes under way in one process, "
            f"but {env.name} can have {places} with these options; lower them, or set more num_workers"
        )


def check_old_samples(config: RunConfig, recipe: Recipe) -> None:
    """Refuse a loss that is wrong for samples of older weights, where the run learns from such samples."""
    workers = config.workers
    has_old_samples = workers.mode in ("train_async", "stream") or workers.sync_interval > 1
    if has_old_samples and recipe.loss_traits.old_samples == "refused":
        raise ConfigError(
            f"workers.mode={workers.mode}: {recipe.loss.name} does not say what it does with samples of "
            'older weights; declare @loss(old_samples="corrected") if it weighs them by their ratio, '
            '"allowed" if it is right for samples of any policy, or set workers.mode to off, sync or '
            "rollout_async"
        )


def describe_workers(config: RunConfig, recipe: Recipe) -> Iterator[str]:
    """Lines for the plan of a run: where its workers are, and how far they overlap."""
    placement, workers, train = check_workers(config), config.workers, config.train
    check_old_samples(config, recipe)
    yield (
        f"{workers.mode}: {_describe_places(config)}; inference at {workers.generators.max_batch} "
        f"samples or after {workers.generators.max_wait_ms:g} ms"
    )
    where = f" (Ray cluster {workers.ray.address})" if workers.backend == "ray" else ""
    yield f"{placement.kind}: {'; '.join(placement.describe_devices())}{where}"
    size = workers.global_batch or train.tasks_per_update * train.group_size
    unit = train.group_size if recipe.needs_groups else 1
    yield (
        f"an update learns from {math.ceil(size / unit) * unit} trajectories, at most "
        f"{workers.max_staleness} versions behind (older: {workers.stale_data}); generators get weights "
        f"{'every update' if workers.sync_interval == 1 else f'every {workers.sync_interval} updates'}"
    )


def _describe_places(config: RunConfig) -> str:
    """Where episodes are played: in simulators, or in the processes of a user's own agent."""
    sims, own = config.workers.simulators, config.own_agent
    if own.function is not None:
        most = own.num_processes * own.concurrency
        return f"up to {most} episodes = {own.num_processes} agent processes x {own.concurrency}"
    num_envs = sims.num_workers * sims.env_batches * sims.batch_size
    shape = f"{sims.num_workers} simulators x {sims.env_batches} batches x {sims.batch_size}"
    return f"{num_envs} environments = {shape}"


def place_policy(config: RunConfig) -> RunConfig:
    """Settings with the policy on the device of the trainer's first rank, and every rank named."""
    workers, own = config.workers, config.policy.device
    if workers.mode == "off":
        devices = list_trainer_devices(workers, own, list_devices())
    else:
        devices = check_workers(config).trainers
    if not workers.trainers.devices and len(devices) == 1:
        return config
    changes = {
        "trainers": workers.trainers.model_copy(update={"devices": devices}),
        "generators": workers.generators.model_copy(update={"devices": workers.generators.devices or (own,)}),
    }
    first = "cpu" if are_ranks_actors(workers, devices) else devices[0]
    policy = config.policy.model_copy(update={"device": first})
    return config.model_copy(update={"policy": policy, "workers": workers.model_copy(update=changes)})
