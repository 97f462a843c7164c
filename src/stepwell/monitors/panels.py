"""The table of metrics: the chart, title and meaning of each, and what is good.

A metric that is not in the table (from a custom recipe or reward) gets a chart under its raw name.
"""

from __future__ import annotations

from stepwell.monitors.panel import Panel
from stepwell.monitors.worker_panels import WORKER_PANELS

PANELS = (
    # --- what is learnt --------------------------------------------------------------------
    Panel(
        "Success while training",
        ("success",),
        "Share of sampled episodes that succeed. It should rise.",
        0.0,
        1.0,
    ),
    Panel("Reward", ("reward",), "Mean reward of an episode. It should rise with success."),
    Panel(
        "Parts of the reward",
        ("reward/",),
        "What the reward consists of. The task's part should grow; another that grows alone is being gamed.",
        absent=0.0,
    ),
    Panel(
        "Well-formed replies",
        ("format_share",),
        "Share of replies in exactly the required form. It should soon be near 1.",
        0.0,
        1.0,
    ),
    Panel(
        "Turns per episode",
        ("turns",),
        "Mean number of turns. It falls as plans get shorter; at the limit nothing gets solved.",
        0.0,
    ),
    Panel(
        "Judge against checker",
        ("outcome/agreement", "outcome/false_yes", "outcome/false_no"),
        "How often the judge of outcomes says what the environment's checker said, and its two errors.",
        0.0,
        1.0,
    ),
    Panel(
        "Groups with equal rewards",
        ("equal_groups",),
        "Share of groups whose episodes all got the same reward: nothing is learnt from them. Low is good.",
        0.0,
        1.0,
    ),
    # --- how it is learnt ------------------------------------------------------------------
    Panel(
        "Entropy",
        ("entropy",),
        "Uncertainty of the policy per token. A slow fall is learning; a sudden one ends exploration.",
        0.0,
    ),
    Panel(
        "Distance (KL)",
        ("kl",),
        "How far the policy has moved from the reference. Steady growth is normal, a jump is not.",
    ),
    Panel(
        "Distance in an update (KL)",
        ("update_kl", "guard/last_kl"),
        "How far the policy is from the one that sampled: mean over the update, and at its end. "
        "It should stay below train.guard.max_kl.",
        0.0,
        labels={"update_kl": "mean", "guard/last_kl": "at the end"},
    ),
    Panel(
        "Probability ratio",
        ("ratio",),
        "New over old probability of sampled actions, on average. It should stay within a few percent of 1.",
    ),
    Panel(
        "Clipped share",
        ("clip_share",),
        "Share of tokens beyond the clip range. 0.01 to 0.2 is usual; above 0.3 the steps are too large.",
        0.0,
    ),
    Panel(
        "Imitated share",
        ("kept_share",),
        "Share of tokens of the episodes that were good enough to imitate. At 0 nothing is learnt.",
        0.0,
        1.0,
    ),
    Panel(
        "Guard",
        ("guard/left_out", "guard/rollbacks"),
        "Optimizer steps left out because the policy moved too far, and returns to earlier weights.",
        0.0,
    ),
    Panel(
        "Success by the checker",
        ("outcome/checker_success",),
        "Success as the environment's checker saw it, where a judge decides.",
        0.0,
        1.0,
    ),
    Panel(
        "Episodes without a verdict",
        ("outcome/unjudged",),
        "Episodes that wait for an answer of the judge of outcomes. Should be 0.",
        0.0,
    ),
    Panel(
        "Replayed",
        ("replay/steps", "replay/trajectories"),
        "Steps and episodes of earlier successes that an update learns from again.",
        0.0,
    ),
    Panel("Replay buffer", ("replay/buffer",), "Earlier successes that could be replayed.", 0.0),
    Panel(
        "Perplexity in the buffer",
        ("replay/perplexity",),
        "How much the policy is surprised by stored steps: the median. Those within the band are replayed.",
        0.0,
    ),
    Panel(
        "Share within the band",
        ("replay/in_band",),
        "Share of stored steps that surprise the policy neither too little nor too much.",
        0.0,
        1.0,
    ),
    Panel(
        "Correction of old samples",
        ("correction",),
        "Mean weight of samples from older weights. It should stay near 1.",
    ),
    Panel(
        "Corrections at the cap",
        ("correction_capped_share",),
        "Share of tokens whose correction was cut off. Low is good; otherwise the samples are too old.",
        0.0,
    ),
    Panel(
        "Explained variance",
        ("explained_variance",),
        "How much of the returns the critic foresees: 1 is all, 0 none, below 0 it misleads. It should rise.",
        -1.0,
        1.0,
    ),
    Panel(
        "Losses",
        ("loss", "loss/"),
        "The value loss should fall. The value of the policy loss alone means nothing.",
        labels={"loss": "total"},
    ),
    Panel(
        "Gradient norm",
        ("grad_norm", "grad_norm/"),
        "Norm of the gradient before clipping. Single peaks are harmless, a rising floor is not.",
        0.0,
        labels={"grad_norm": "policy"},
    ),
    Panel("Learning rate", ("learning_rate",), "It follows the schedule.", 0.0),
    # --- engine and trainer ----------------------------------------------------------------
    Panel(
        "Engine gap, mean",
        ("parity/typical_mean", "parity/mean"),
        "How far the engine's log-probabilities are from the trainer's for the same tokens, on average. "
        "It should be small and constant.",
        labels={"parity/typical_mean": "without outliers", "parity/mean": "all tokens"},
    ),
    Panel(
        "Engine gap, worst",
        ("parity/quantile_99", "parity/max"),
        "The same gap for the worst tokens. A single peak is harmless; a rising level is a fault.",
        labels={"parity/quantile_99": "99 of 100 are below", "parity/max": "worst"},
    ),
    Panel(
        "Distance from float32",
        ("parity/engine_error", "parity/trainer_error"),
        "Mean difference of each from a result in 32 bits. Both are rounding; they should be alike.",
        0.0,
        labels={"parity/engine_error": "engine", "parity/trainer_error": "trainer"},
    ),
    Panel(
        "Engine farther from float32",
        ("parity/engine_farther",),
        "Share of tokens in which the engine is farther from a result in 32 bits than the trainer. "
        "About one half is rounding; more is a fault.",
    ),
    # --- cost ------------------------------------------------------------------------------
    Panel(
        "Tokens per second",
        ("tokens_per_s",),
        "Sampled tokens divided by the time of the whole update. It should be stable.",
        0.0,
    ),
    Panel(
        "Tokens per update",
        ("tokens",),
        "Sampled tokens that an update learns from. Growth without gain in reward is waste.",
        0.0,
    ),
    Panel(
        "Computed positions",
        ("packed_tokens",),
        "Positions that the trainer computes, with prompts; shared beginnings count once. Less is faster.",
        0.0,
    ),
    Panel(
        "Seconds per update",
        ("time/",),
        "Where the time of an update goes. It should be stable.",
        0.0,
        labels={"time/publish_s": "handing out weights", "time/checkpoint_s": "waiting for checkpoints"},
    ),
    # --- tools and judges ------------------------------------------------------------------
    Panel(
        "Tool calls per episode",
        ("calls", "calls/"),
        "How often tools are called, in total and by tool. It should fall to what the task needs.",
        0.0,
        labels={"calls": "all"},
        absent=0.0,
    ),
    Panel(
        "Lost tool calls",
        ("lost_calls",),
        "Calls per episode that were lost because a reply could not be read. Should be 0.",
        0.0,
    ),
    Panel(
        "Agreement of the judge",
        ("judge/agreement",),
        "Share of the judge's answers that a fixed rule gives as well. It should be near 1.",
        0.0,
        1.0,
    ),
    Panel(
        "Tokens of the judge",
        ("judge/prompt_tokens", "judge/completion_tokens"),
        "What judging has cost so far. It should grow slowly.",
        0.0,
        labels={"judge/prompt_tokens": "questions", "judge/completion_tokens": "answers"},
    ),
    Panel(
        "Work of the judge",
        ("judge/",),
        "Counts since the start. Failures, fallbacks and unreadable answers should stay near 0.",
        0.0,
    ),
    Panel(
        "Repeated sentences",
        ("repetition/",),
        "Share of texts with the most repeated sentence (top_share; low is good), and of sentences that "
        "are distinct (high is good).",
        0.0,
        1.0,
    ),
    *WORKER_PANELS,
    # --- failures --------------------------------------------------------------------------
    Panel(
        "Failures of the agent",
        ("agent_failures/",),
        "Episodes that your agent failed, by kind. Should be 0.",
        0.0,
        absent=0.0,
    ),
    Panel(
        "Failures of the system",
        ("infra_errors", "episodes/refilled"),
        "Episodes that were lost to the system and sampled again. Should be 0.",
        0.0,
        labels={"infra_errors": "lost", "episodes/refilled": "sampled again"},
    ),
)

WARM_START_PANELS = (
    Panel(
        "On training tasks",
        ("success", "format_share"),
        "Share of tasks solved and of replies in the required form, at each check of the goal.",
        0.0,
        1.0,
        {"format_share": "in form"},
    ),
    Panel(
        "Imitation loss",
        ("loss/policy",),
        "How unlikely the demonstrations still are to the policy. It should fall, then level off.",
    ),
    Panel("Value loss", ("loss/value",), "The critic's error. It should fall."),
    Panel(
        "Gradient norm",
        ("grad_norm", "grad_norm/"),
        "Norm of the gradient before clipping. Single peaks are harmless.",
        0.0,
        labels={"grad_norm": "policy"},
    ),
)
