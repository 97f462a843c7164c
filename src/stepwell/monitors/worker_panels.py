"""Charts of the processes of a run: simulators, generators, trainers, and what travels between them."""

from __future__ import annotations

from stepwell.monitors.panel import Panel

WORKER_PANELS = (
    Panel(
        "Busy share",
        ("simulators/busy", "generators/busy", "trainers/busy"),
        "Share of the time that each kind of worker is busy. The slowest should be near 1.",
        0.0,
        1.0,
        labels={f"{group}/busy": group for group in ("simulators", "generators", "trainers")},
    ),
    Panel(
        "Waiting work",
        ("generators/queue", "trainers/queue"),
        "Requests that wait for a generator, and groups that wait for the trainer. Low is good.",
        0.0,
        labels={"generators/queue": "requests", "trainers/queue": "groups"},
    ),
    Panel(
        "Episodes under way",
        ("simulators/episodes",),
        "Episodes that are being played. It should be stable.",
        0.0,
    ),
    Panel(
        "Requests per batch",
        ("generators/batch",),
        "Requests that a generator answers at a time. High is good.",
        0.0,
    ),
    Panel(
        "Wait for a generator, ms",
        ("generators/wait_ms",),
        "Mean time until a request is taken up. Low is good.",
        0.0,
    ),
    Panel(
        "Age of samples, versions",
        ("staleness/mean", "staleness/max"),
        "How many updates old the weights were that sampled. It should stay within workers.max_staleness.",
        0.0,
    ),
    Panel(
        "Samples that are too old",
        ("staleness/over", "staleness/dropped"),
        "Groups older than workers.max_staleness: used anyway (over), or dropped. Should be 0.",
        0.0,
    ),
    Panel(
        "Seconds for new weights",
        tuple(
            f"sync/{name}_s" for name in ("trainer_wait", "snapshot", "pause_max", "pause_mean", "transfer")
        ),
        "How long the trainer waited, and how long generators could not sample; should be near 0. "
        "While weights are on the way, nobody waits, but samples are older.",
        0.0,
        labels={
            "sync/trainer_wait_s": "trainer waits",
            "sync/snapshot_s": "copy of the weights",
            "sync/pause_max_s": "longest pause of a generator",
            "sync/pause_mean_s": "mean pause",
            "sync/transfer_s": "on the way",
        },
    ),
    Panel(
        "Weights sent, MB",
        ("sync/sent_mb", "sync/weights_mb"),
        "What was sent to all generators, and the size of one whole copy. With adapters little is sent.",
        0.0,
        labels={"sync/sent_mb": "sent", "sync/weights_mb": "one copy"},
    ),
    Panel(
        "Weights sent again",
        ("sync/retries",),
        "Transfers that were repeated, because bytes were damaged or a generator died. Should be 0.",
        0.0,
    ),
    Panel(
        "GPU memory, GB",
        ("memory/gpu_peak_gb",),
        "The most that tensors of this process have held so far. The plan forecasts it.",
        0.0,
    ),
    Panel(
        "Memory, MB",
        ("simulators/memory_mb", "generators/memory_mb", "trainers/memory_mb"),
        "Memory of each kind of worker. A line that only rises is a leak.",
        0.0,
        labels={f"{group}/memory_mb": group for group in ("simulators", "generators", "trainers")},
    ),
    Panel(
        "Restarts of workers",
        ("simulators/restarts", "generators/restarts"),
        "Workers that died and were started again, since the start. Should be 0.",
        0.0,
        labels={"simulators/restarts": "simulators", "generators/restarts": "generators"},
    ),
)
