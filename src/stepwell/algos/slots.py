"""What may stand in each slot of a recipe: the names of functions, and the arguments that each takes.

The functions themselves (`credit`, `losses`, `kl`) need torch, which takes seconds to import; recipes
are only checked and shown by these tables. `tests/algos/test_recipes.py` compares them with the functions.
"""

from __future__ import annotations

CREDIT_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "token_gae": ("gamma", "lam", "reward_at"),
    "step_gae": ("gamma", "lam"),
    "turn_gae": ("gamma", "lam", "site"),
    "bilevel_gae": ("gamma_turn", "lam_turn", "gamma_token", "lam_token", "final"),
    "grpo": ("normalize_std", "eps"),
    "rloo": (),
    "reinforce_pp": ("gamma", "baseline"),
    "gigpo": ("gamma", "omega", "normalize_std", "eps"),
    "webrl_advantage": ("gamma", "lam"),
    "digirl_advantage": ("lam", "horizon", "keep_top"),
    "mc_advantage": ("gamma",),
}
LOSS_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "ppo_loss": ("ratio", "clip_low", "clip_high", "aggregate", "correction_cap"),
    "webrl_loss": ("beta", "length_normalize"),
    "awr_loss": ("beta", "max_weight"),
    "reinforce_loss": (),
    "sft_loss": (),
    "filtered_bc_loss": ("percentile",),
    "dpo_loss": ("beta",),
}
VALUE_LOSS_NAMES = ("value_mse", "value_bce")
KL_ESTIMATORS = ("k1", "k2", "k3", "full")
