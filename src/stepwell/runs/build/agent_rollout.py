"""Episodes of a user's own agent in step: its function calls a gateway in this process (`agent_sessions.py`).

    jobs ─► sessions ─► agent processes ─► HTTP ─► gateway ─► engine of this process

The interface is that of `Rollout`, so that the loop does not know who plays. Two things differ: episodes run
at their own pace, so a rollout does not repeat bit for bit; and episodes are in the pool already when `run`
returns (`RolloutResult.is_stored`). After a failure of the system an episode is tried again in a new session.
With workers (`workers.mode`), `agent_driver.py` plays instead.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepwell.config.run import RunConfig
from stepwell.core import Sampler, SamplingParams
from stepwell.pool import Pool
from stepwell.rendering import Renderer
from stepwell.rollout import AgentJob, AgentProcesses, AgentResult, Job, RolloutResult
from stepwell.runs.build.agent_sessions import AgentSessions

_AT_ONCE = 16  # sessions that share a commit when they end


def list_process_settings(config: RunConfig, folder: Path | None) -> dict[str, Any]:
    """The settings of the agent's processes."""
    own = config.own_agent
    return {
        "num_processes": own.num_processes,
        "concurrency": own.concurrency,
        "retries": config.train.max_env_retries,
        "memory_mb": own.memory_mb,
        "log_folder": None if folder is None else folder / "agent_logs",
    }


@dataclass(eq=False)
class AgentRollout:
    """Plays jobs with the user's function."""

    sessions: AgentSessions
    processes: AgentProcesses

    @classmethod
    def start(
        cls,
        config: RunConfig,
        engine: Sampler,
        renderer: Renderer,
        pool: Pool,
        folder: Path | None,
        run_name: str,
    ) -> AgentRollout:
        """Start the gateway and the agent's processes; refuses an agent that cannot be called."""
        assert config.own_agent.function is not None
        processes = AgentProcesses(config.own_agent.function, **list_process_settings(config, folder))
        try:
            return cls(AgentSessions.start(config, engine, renderer, pool, run_name), processes)
        except BaseException:
            processes.close()
            raise

    def run(
        self, jobs: Sequence[Job], params: SamplingParams, *, retries: int = 0, timeout_s: float | None = None
    ) -> RolloutResult:
        """Play every job. Trajectories of evaluations are returned, the others are in the pool.

        The number of retries after a failure of the system is a setting of the processes (`retries` there).
        """
        sessions, sizes = self.sessions, Counter(job.group for job in jobs)
        episodes = [sessions.make_episode(job, params, sizes[job.group]) for job in jobs]
        sessions.run_call(sessions.open_sessions(episodes))
        endings: list[Coroutine[Any, Any, None]] = []
        num_retries = 0

        def retry_job(failed: AgentJob, result: AgentResult) -> AgentJob:
            nonlocal num_retries
            place = int(failed.id)
            before = episodes[place]
            fresh = episodes[place] = sessions.make_episode(before.job, params, before.group_size)
            num_retries += 1
            sessions.run_call(sessions.finish_session(before, result))
            sessions.run_call(sessions.open_sessions([fresh]))
            return replace(failed, base_url=sessions.make_job(failed.id, fresh, timeout_s).base_url)

        def end_job(result: AgentResult) -> None:
            endings.append(sessions.finish_session(episodes[int(result.id)], result))
            if len(endings) >= _AT_ONCE:
                sessions.run_call(_gather_all(endings))
                endings.clear()

        agent_jobs = [
            sessions.make_job(str(place), episode, timeout_s) for place, episode in enumerate(episodes)
        ]
        try:
            results = self.processes.run(agent_jobs, end_job, on_retry=retry_job)
        finally:
            sessions.run_call(_gather_all(endings))
        rolled = RolloutResult([], num_retries=num_retries, is_stored=True)
        for episode, result in zip(episodes, results, strict=True):
            if result.status == "infra_error":
                rolled.failures.append(sessions.load_trajectory(episode.session))
            elif episode.job.channel == "eval":
                rolled.trajectories.append(sessions.load_trajectory(episode.session))
        return rolled

    def close(self) -> None:
        """End the agent's processes and the gateway."""
        self.processes.close()
        self.sessions.close()


async def _gather_all(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*work)
