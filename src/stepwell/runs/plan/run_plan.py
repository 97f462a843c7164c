"""The plan of a run: what it will do, how the work is split and what it needs, without training anything."""

from __future__ import annotations

from stepwell.config.run import RunConfig
from stepwell.policies.numerics import check_dtype
from stepwell.runs.build.components import Components
from stepwell.runs.loop.differences import list_idle_settings
from stepwell.runs.plan.base_plan import BasePlan
from stepwell.runs.plan.text import format_line


def plan_run(config: RunConfig, *, opens_env: bool = False) -> str:
    """What `stepwell train` would do with these settings.

    `opens_env`: also open an environment that takes seconds to open, as one with a browser does.
    """
    if not config.workers.trainers.devices:  # else the policy is placed on the first of them
        check_dtype(config.policy.dtype, config.policy.device)
    if config.pool.url is not None:
        from stepwell.pool.database import parse_database_url

        parse_database_url(config.pool.url)
    components = Components(config, for_plan=True)
    try:
        lines = list(_choose_plan(components, opens_env).lines())
        if config.workers.mode != "off":
            from stepwell.runs.build.worker_groups import describe_workers  # imports torch

            workers = enumerate(describe_workers(config, components.recipe))
            lines += [format_line("" if i else "workers", text) for i, text in workers]
        lines += [format_line("note", text) for text in list_idle_settings(config)]
    finally:
        components.close()
    return "\n".join(lines)


def _choose_plan(components: Components, opens_env: bool) -> BasePlan:
    if components.config.own_agent.function is not None:
        from stepwell.runs.plan.agent_plan import AgentPlan  # imports the gateway and the pool

        return AgentPlan(components)
    if components.is_robot:
        from stepwell.runs.plan.robot_plan import RobotPlan  # a plan imports only what it needs

        return RobotPlan(components)
    from stepwell.runs.plan.language_plan import LanguagePlan

    return LanguagePlan(components, opens_env=opens_env)
