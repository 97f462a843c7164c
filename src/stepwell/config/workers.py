"""Settings of an asynchronous run: its workers, their devices and how far they overlap.

mode            while an epoch of episodes is played          while the trainer learns
sync            every turn waits for all environments         nothing is played
rollout_async   each environment continues when answered      nothing is played
train_async     as rollout_async                              the next epoch is played; the trainer
                                                              waits for a full epoch of data
stream          as rollout_async                              episodes never stop; the trainer starts
                                                              on the first `global_batch`
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stepwell.config.base import ObjectName, OptionalObjectName, Settings

OnDeadRank = Literal["shrink", "wait", "stop"]


class SimulatorsConfig(Settings):
    """Worker processes that host environments."""

    num_workers: int = Field(2, ge=1, description="simulator processes")
    env_batches: int = Field(2, ge=1, description="environment batches per simulator")
    batch_size: int = Field(8, ge=1, description="vectorised environments per batch")
    devices: tuple[str, ...] = Field(
        (), description="devices of simulators, such as cuda:0 or HOST/cpu; empty: the CPU's cores"
    )
    num_cpus: float = Field(1.0, gt=0, description="CPUs of a Ray node, reserved for each simulator")


class GeneratorsConfig(Settings):
    """Processes with a copy of the policy each."""

    num_workers: int = Field(1, ge=1, description="generator processes")
    max_batch: int = Field(64, ge=1, description="samples with which an inference batch starts")
    max_wait_ms: float = Field(
        5.0, ge=0, description="age of the oldest request at which a smaller batch starts"
    )
    shard: ObjectName = Field(
        "none",
        description="how the requests of an environment batch are divided: none, even, by_latency, "
        "or module:function",
    )
    priority: OptionalObjectName = Field(
        None,
        description="module:function that gives the sort key of requests that wait; None: order of arrival",
    )
    max_inflight: int | None = Field(
        None,
        ge=1,
        description="inference batches under way in one generator; None: one of a robot policy, four of a "
        "language model, whose engine lets new requests join",
    )
    num_threads: int | None = Field(
        None, ge=1, le=1024, description="CPU threads of each generator; None: torch's choice"
    )
    devices: tuple[str, ...] = Field(
        (), description="devices of generators in turn, such as cuda:0 or HOST/cuda:0; empty: policy.device"
    )
    num_cpus: float | None = Field(
        None, gt=0, description="CPUs of a Ray node, reserved for each generator; None: num_threads, or 1"
    )


class TrainersConfig(Settings):
    """Who learns."""

    devices: tuple[str, ...] = Field(
        (), description="devices of the trainer's ranks, such as cuda:0; empty: policy.device"
    )
    num_cpus: float = Field(1.0, gt=0, description="CPUs of a Ray node, reserved for each rank")


class RayConfig(Settings):
    """The Ray cluster of `backend = "ray"`."""

    address: str = Field(
        "auto",
        description="address of the cluster: auto (the one of this machine), HOST:6379 (this machine belongs "
        "to it), ray://HOST:10001, or local (started for this run)",
    )
    strategy: Literal["spread", "pack"] = Field(
        "spread", description="workers on many nodes, or on few, as far as there is room"
    )
    wait_s: float = Field(60.0, gt=0, description="how long to wait for room in the cluster")


class WorkersConfig(Settings):
    """An asynchronous run. `mode = "off"`: everything in one process, in step (the default loop)."""

    mode: Literal["off", "sync", "rollout_async", "train_async", "stream"] = Field(
        "off", description="how far simulation, generation and training overlap"
    )
    placement: Literal["colocated", "hybrid", "disaggregated"] = Field(
        "colocated",
        description="colocated: each device hosts all three kinds of workers; hybrid: a trainer and either "
        "simulators or a generator; disaggregated: rollout devices apart from trainer devices",
    )
    processes: bool = Field(
        True, description="simulators and generators are processes; false: threads of this one, for tests"
    )
    backend: Literal["local", "ray"] = Field(
        "local", description="local: processes here, and on hosts that devices name; ray: actors of a cluster"
    )
    hosts: dict[str, str] = Field(
        default_factory=dict,
        description="URLs of machines that serve workers, by the HOST of devices; a HOST that is not here is "
        "http://HOST:8096. The key is read from STEPWELL_WORKER_KEY",
    )
    ray: RayConfig = Field(default_factory=RayConfig)
    simulators: SimulatorsConfig = Field(default_factory=SimulatorsConfig)
    generators: GeneratorsConfig = Field(default_factory=GeneratorsConfig)
    trainers: TrainersConfig = Field(default_factory=TrainersConfig)
    rollout_epochs: int = Field(1, ge=1, description="global batches of trajectories that make an epoch")
    global_batch: int | None = Field(
        None, ge=1, description="trajectories of one update; None: train.tasks_per_update x group_size"
    )
    tune: bool = Field(
        False,
        description="adjust generators.max_batch, .max_wait_ms and .shard while the run plays; what does not "
        "help is taken back",
    )
    sync_interval: int = Field(1, ge=1, description="updates between weight syncs to the generators")
    weight_sync: Literal["overlapped", "blocking"] = Field(
        "overlapped",
        description="overlapped: the trainer goes on while generators take new weights; blocking: it waits",
    )
    sync_bucket_mb: float = Field(32.0, gt=0, description="weights that travel to a generator at a time")
    max_staleness: int = Field(
        2, ge=0, description="how many versions old data may be when they are learnt from"
    )
    stale_data: Literal["drop", "weight"] = Field(
        "weight",
        description="older data: dropped, or learnt from under the truncated ratio; both are counted",
    )
    on_dead_rank: OnDeadRank = Field(
        "stop",
        description="a trainer rank that died: shrink goes on from the last update with the ranks that are "
        "left, wait starts it again (or waits for it to join), stop ends the run; the first two collect the "
        "optimizer's state after every update",
    )
    heartbeat_s: float = Field(5.0, gt=0, description="time between signs of life of a worker")
    hang_s: float = Field(60.0, gt=0, description="silence after which a worker is killed and restarted")
    max_restarts: int = Field(100, ge=0, description="restarts of one worker before the run gives up")
