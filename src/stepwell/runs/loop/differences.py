"""Notes at the start of a run: where it differs from what its settings suggest."""

from __future__ import annotations

from collections.abc import Iterator

from stepwell.algos.recipes import Recipe
from stepwell.config.run import RunConfig

CONSTANT_RATIOS = (
    "every ratio is 1: one minibatch and one pass (train.minibatches, train.update_epochs). Nothing is "
    "clipped, and ratios by token, step and trajectory coincide"
)
OLD_EPISODES = (
    "; episodes of older weights are weighted by the truncated correction, which has no part in the clip"
)

LOOSE_CLIP = (
    "the ratio is a mean over a reply, of up to {tokens} tokens (sampling.max_tokens): a clip of {clip:g} "
    "hardly ever acts, so the learning rate alone bounds an update. Watch update_kl; it is bounded by "
    "recipe.loss.ratio=token, a clip of about {clip:g} over the tokens of a reply, or train.guard.max_kl"
)
LOOSE_TOKENS = (
    4.0  # clip times tokens; with 1.1 (0.2, 5.5 tokens) a twentieth to a tenth of the terms was cut
)

IDLE_GUARD = (
    "train.guard.max_kl cannot act: an update of one minibatch and one pass is a single optimizer step, and "
    "the guard leaves out those after the first. Set train.minibatches or train.update_epochs to 2 or more; "
    "train.guard.on_fall works either way"
)


def list_differences(
    config: RunConfig,
    recipe: Recipe,
    *,
    num_tasks: int,
    num_held_out: int,
    has_replay: bool,
    has_words: bool = True,
) -> Iterator[str]:
    """Sentences for the console; `has_words` says that actions are written, not a robot's."""
    if _has_constant_ratios(config, recipe):
        has_old = has_replay or config.workers.mode not in ("off", "sync")
        yield CONSTANT_RATIOS + (OLD_EPISODES if has_old else "")
    clip, tokens = recipe.loss.kwargs.get("clip_high", 0.0), config.sampling.max_tokens
    is_mean = recipe.loss.kwargs.get("ratio") == "step" and not _has_one_step(config)
    if is_mean and has_words and config.train.guard.max_kl is None and clip * tokens > LOOSE_TOKENS:
        yield LOOSE_CLIP.format(tokens=tokens, clip=clip)
    yield from list_idle_settings(config)
    for asked, found, name in (
        (config.train.num_tasks, num_tasks, "train.num_tasks"),
        (config.eval.num_tasks, num_held_out, "eval.num_tasks"),
    ):
        if 0 < found < asked:
            yield f"{name} is {asked}, but this environment has {found}; all of them are used"


def list_idle_settings(config: RunConfig) -> Iterator[str]:
    """Sentences about settings that have no effect because of other settings. Plans print them too."""
    if config.train.guard.max_kl is not None and _has_one_step(config):
        yield IDLE_GUARD
    kind, devices = config.policy.gradient_checkpointing, config.workers.trainers.devices
    if kind in ("mlp", "offload") and {*(devices or (config.policy.device,))} == {"cpu"}:
        yield f"policy.gradient_checkpointing={kind} saves memory on a GPU; on cores it does nothing"


def _has_constant_ratios(config: RunConfig, recipe: Recipe) -> bool:
    """Whether every ratio is 1, because the policy is compared with itself, though the loss uses ratios.

    Old samples are compared with the weights at the start of the update, so they change nothing here. Those
    of a pool are compared with whoever sampled them.
    """
    return "behavior" in recipe.loss_traits.needs and _has_one_step(config) and config.offline.pool is None


def _has_one_step(config: RunConfig) -> bool:
    """Whether an update is a single optimizer step."""
    return config.train.minibatches * config.train.update_epochs == 1
