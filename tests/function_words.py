"""Which words a function's name may begin with, and the names that are no verbs for a reason."""

from __future__ import annotations

VERBS = """
    abandon abort accept acknowledge act adapt add adjust admit adopt aim align allocate allow
    animate answer answers append apply approve ask assemble assign attempt attend average await
    backward beat begin blur bootstrap bound break broadcast build calibrate call cancel cap
    capitalise capitalize capture cast catch change check checkpoint choose claim clamp classify
    clean clear click clip close collect combine comment commit compare compile complete compose
    compute connect continue control convert convolve copy correct count create crop cut
    cycle deal decide declare decode decorate defer delete deliver demonstrate dequantize derive
    describe destroy detect diagnose digest disable discount do download drain draw drive drop dump
    edit embed enable encode end enlarge enqueue ensure enter equal escape estimate eval evaluate
    exclude excuse expand expect explain export extend extract fail feed fence fetch fill film
    filter find fingerprint finish fire fit fix flatten flush fold follow forecast forget fork form
    format forward free freeze furnish fuse gather generate get give go greet group grow guard guess
    hand handle hash have hide hold identify ignore imitate import indent index initialize insert
    inspect install interrupt invert invite iter iterate join judge jump keep kill label launch lay
    lead learn lease leave let lift limit link list load locate lock log look lose lower main make
    map mark mask match mean measure merge mirror mix move multiply name need normalise normalize
    note number obey observe occupy open order orthogonalize override pack pad parse pass pause
    peek pick place plan play plot poll pool pop post predict prefill prepare present press price
    print probe project protect prune publish pull push put query quote raise rank rate reach read
    recall receive recommend recompute record recover refresh refuse register regroup reinforce
    release reload remember remove rename render renew reorder repeat replace replay report repr
    request require rescore reset resize resolve respond rest restart restore resume retry
    return revive reward rewind rewrite roll rotate round run sample save say scale
    scatter score scroll search seat seed segment select send serve set settle shade shard share
    shift shorten show shrink shuffle shutdown silence simplify simulate size skip smooth solve sort
    spare spawn split spread squash stack start step stop store stream strip submit subscribe
    subtract suggest sum summarize swap sweep switch sync tabulate tag take teach tell thin tick
    time title toggle trace track train translate transpose trim truncate try tune turn type undo
    unpack unstack untag update upgrade upload use validate verify view visit vote wait wake walk
    warm warn watch welcome whiten widen withdraw word wrap write zero
"""
OPENINGS = """
    are as can could for from has is may of on should to was with without
"""
"""Of questions, conversions, constructors and handlers: `is_`, `to_`, `from_`, `with_`, `on_`."""
STATEMENTS = """
    accepts agrees computes contains counts ends equals fits holds includes keeps leaves looks
    matches meets runs mentions overlaps override overrides precedes reaches repeats selects solves
    starts stays stops submits supports takes wants writes
"""
"""Of questions that read as a sentence: `writes_tools`, `reaches_goal`."""
EXCEPTIONS = {
    "of an environment, a robot, a page driver, a recorded task (their contracts)": """
        arrays expert facts goal golden_steps image layout oracle random_action raw_html result
        screenshot state table user state_async
    """,
    "of a policy, a model or an engine (their contracts, some by torch)": """
        entropies keys live_weights logits logprobs model_weights named_parameters parameters
        positions reference_logprobs row_logprobs value values velocity weight_parts
        state_dict state_values sampling_params
    """,
    "algorithms and kernels by the name of the field": """
        attention_function awr_loss bilevel_gae blockwise_attention digirl_advantage dpo_loss
        entropy_bonus filtered_bc_loss flex_tree_attention full gae gigpo grpo k1 k2 k3 kl_loss
        kl_reward mc_advantage median path_attention ppo_loss rloo rms_norm rms_norm_kernel
        sequence_attention sft_loss silu_mul silu_mul_kernel token_gae token_scores
        token_weights tree_attention value_bce value_mse webrl_advantage webrl_loss
    """,
    "callbacks of asyncio, uvicorn, ASGI and argparse": """
        connection_lost connection_made data_received error lifespan unsupported_upgrade_warning
    """,
    "documented for users: prompts, messages, decorators, the Python API, the pool": """
        against assistant credit first_prompt first_turn gc lazy_names loss microbatch
        next_prompt problem prompt_after_summary recipe stats system system_prompt tool trajectories
        versions
    """,
    "parts of a page, a report or a plan, written as what they are": """
        area bullet_list chain choice code console fact field figures frame lines page reply
        verdict words
    """,
    "short words inside one class or file": """
        aclose at at_last atomic_write batch documents early env extra first groups jobs late longest
        num_left oom_as_config_error per_step per_token per_trajectory phase results seq
        staleness steps tasks token_ids tool_calls whole work
    """,
}
