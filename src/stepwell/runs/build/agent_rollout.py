"""Episodes of a user's own agent: its function calls a gateway in this process, which records every call.

    jobs ─► sessions ─► agent processes ─► HTTP ─► gateway ─► engine
                              │                       └─► pool: steps, as they are sampled
                              └─► result ─► reward, status ─► pool: the trajectory is finished

The interface is that of `Rollout`, so that the loop does not know who plays. Two things differ: episodes run
at their own pace, so a rollout does not repeat bit for bit; and episodes are in the pool already when `run`
returns (`RolloutResult.is_stored`).

* An agent that fails gives one `agent_error`, with its kind in `info["failure"]`. So does an agent that
  never called the model: the policy had no part in what it returned. A failure of the engine or of a process
  gives one `infra_error`; the episode is tried again in a new session. Failed tries are never trained on.
* Calls are sampled as the run's settings say, whatever the agent asks for (`own_agent.keep_sampling`
  leaves it to the agent); the seed of a call follows from the job's seed and the call's place.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from stepwell.config.gateway import GatewayConfig
from stepwell.config.run import RunConfig
from stepwell.core import Sampler, SamplingParams, Status, Trajectory, new_id
from stepwell.pool import Pool
from stepwell.rendering import Renderer
from stepwell.rollout import AgentJob, AgentProcesses, AgentResult, Job, RolloutResult
from stepwell.services.gateway.chat import ChatRequest
from stepwell.services.gateway.gateway import Gateway
from stepwell.services.gateway.registry import SessionOptions
from stepwell.services.gateway.sessions import GatewaySession

_SEED_STEP = 1_000_003
_DAY_S = 86_400.0
DEFAULT_TIMEOUT_S = 600.0
_AT_ONCE = 16  # sessions that share a commit when they end


@dataclass(slots=True, eq=False)
class _Episode:
    """One try of one job: a session of the gateway."""

    job: Job
    session: str
    num_calls: int = 0


@dataclass(eq=False)
class AgentRollout:
    """Plays jobs with the user's function."""

    gateway: Gateway
    url: str
    stop: Callable[[], None]
    processes: AgentProcesses
    reward_scale: float
    keep_sampling: bool
    run_name: str
    timeout_s: float = DEFAULT_TIMEOUT_S
    _episodes: dict[str, _Episode] = field(default_factory=dict)
    _params: SamplingParams = field(default_factory=SamplingParams)

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
        from stepwell.services.gateway.app import create_app
        from stepwell.services.http_server import serve_in_thread

        own = config.own_agent
        assert own.function is not None
        processes = AgentProcesses(
            own.function,
            num_processes=own.num_processes,
            concurrency=own.concurrency,
            retries=config.train.max_env_retries,
            memory_mb=own.memory_mb,
            log_folder=None if folder is None else folder / "agent_logs",
        )
        try:
            gateway = Gateway(
                engine,
                renderer,
                pool,
                GatewayConfig(
                    port=0,
                    model_name="policy",
                    max_tokens=config.sampling.max_tokens,
                    silent_timeout_s=_DAY_S,  # an episode's end is known here
                ),
            )
            url, stop = serve_in_thread(create_app(gateway))
        except BaseException:
            processes.close()
            raise
        limit_s = config.train.episode_timeout_s or DEFAULT_TIMEOUT_S
        rollout = cls(
            gateway, url, stop, processes, config.rewards.scale, own.keep_sampling, run_name, limit_s
        )
        gateway.adjust = rollout._adjust_request
        return rollout

    def run(
        self,
        jobs: Sequence[Job],
        params: SamplingParams,
        *,
        retries: int = 0,
        timeout_s: float | None = None,
    ) -> RolloutResult:
        """Play every job. Trajectories of evaluations are returned, the others are in the pool.

        The number of retries after a failure of the system is a setting of the processes (`retries` there).
        """
        self._params = params
        sizes = Counter(job.group for job in jobs)
        episodes = [_Episode(job, self._session_name(job)) for job in jobs]
        self._episodes = {episode.session: episode for episode in episodes}
        self._run_on_gateway(self._open_sessions(episodes, sizes))
        endings: list[Coroutine[Any, Any, None]] = []
        finals = [episode.session for episode in episodes]
        retried: Counter[int] = Counter()

        def retry_job(failed: AgentJob, result: AgentResult) -> AgentJob:
            place = int(failed.id)
            before = self._episodes[finals[place]]
            fresh = _Episode(before.job, self._session_name(before.job))
            self._episodes[fresh.session] = fresh
            finals[place] = fresh.session
            retried[place] += 1
            self._run_on_gateway(self._finish_session(before, result))
            self._run_on_gateway(self._open_sessions([fresh], sizes))
            return replace(failed, base_url=f"{self.url}/s/{fresh.session}")

        def end_job(result: AgentResult) -> None:
            endings.append(self._finish_session(self._episodes[finals[int(result.id)]], result))
            if len(endings) >= _AT_ONCE:
                self._run_on_gateway(_gather_all(endings))
                endings.clear()

        agent_jobs = [
            AgentJob(
                str(place),
                episode.job.task,
                f"{self.url}/s/{episode.session}",
                seed=episode.job.seed % 2**32,
                timeout_s=timeout_s or self.timeout_s,
            )
            for place, episode in enumerate(episodes)
        ]
        try:
            results = self.processes.run(agent_jobs, end_job, on_retry=retry_job)
        finally:
            self._run_on_gateway(_gather_all(endings))
        return self._collect_results(jobs, finals, results, sum(retried.values()))

    def close(self) -> None:
        """End the agent's processes and the gateway."""
        self.processes.close()
        self.stop()

    def _collect_results(
        self, jobs: Sequence[Job], finals: Sequence[str], results: Sequence[AgentResult], num_retries: int
    ) -> RolloutResult:
        rolled = RolloutResult([], num_retries=num_retries, is_stored=True)
        for job, session, result in zip(jobs, finals, results, strict=True):
            if result.status == "infra_error":
                rolled.failures.append(self._load_trajectory(session))
            elif job.channel == "eval":
                rolled.trajectories.append(self._load_trajectory(session))
        return rolled

    def _load_trajectory(self, session: str) -> Trajectory:
        return self.gateway.registry.pool.get(session).trajectory

    def _run_on_gateway(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the gateway's event loop and wait for it."""
        assert self.gateway.loop is not None
        return asyncio.run_coroutine_threadsafe(work, self.gateway.loop).result()

    def _session_name(self, job: Job) -> str:
        plain = re.sub(r"[^A-Za-z0-9._:-]", "-", job.group)[-80:].strip("-.:_")
        return new_id(plain or "episode")

    async def _open_sessions(self, episodes: Sequence[_Episode], sizes: Counter[str]) -> None:
        tags = (self.run_name,) if self.run_name else ()
        openings = [
            self.gateway.registry.open_session(
                episode.session,
                "",
                SessionOptions(
                    task=episode.job.task,
                    group=episode.job.group if episode.job.channel == "train" else "",
                    group_size=sizes[episode.job.group] if episode.job.channel == "train" else 1,
                    channel=episode.job.channel,
                    tags=tags,
                ),
            )
            for episode in episodes
        ]
        await asyncio.gather(*openings)

    async def _finish_session(self, episode: _Episode, result: AgentResult) -> None:
        """Reward and end the session of a try that has ended."""
        registry = self.gateway.registry
        session = await registry.find_session(episode.session, "")
        if not isinstance(session, GatewaySession) or session.is_over:
            return
        numbers = session.select_path()
        result = _check_result(result, len(numbers), episode.num_calls)
        given = partial(registry.reward_session, session, part="task", source="agent")
        if result.step_rewards is not None:
            for number, value in zip(numbers, result.step_rewards, strict=True):
                await given(self.reward_scale * value, step=number)
        elif numbers and (result.reward is not None or not session.rewards):
            await given(self.reward_scale * (result.reward or 0.0), step=None)
        await registry.finish_session(
            session, _choose_status(result), result.error, info=_collect_info(result)
        )

    def _adjust_request(self, session: str, ask: ChatRequest) -> ChatRequest:
        """Change a call to the sampling settings of the run."""
        episode = self._episodes.get(session)
        if episode is None:
            return ask
        seed = (episode.job.seed + episode.num_calls * _SEED_STEP) % 2**63
        episode.num_calls += 1
        if self.keep_sampling:
            return ask if ask.seed is not None else replace(ask, seed=seed)
        params = self._params
        most = params.max_tokens if ask.max_tokens is None else min(ask.max_tokens, params.max_tokens)
        return replace(ask, seed=seed, temperature=params.temperature, top_p=params.top_p, max_tokens=most)


async def _gather_all(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*work)


def _check_result(result: AgentResult, num_calls: int, num_asked: int) -> AgentResult:
    """Refuse rewards without a call of the policy, or that do not match the calls."""
    rewards = result.step_rewards
    if result.status == "done" and num_calls == 0:
        asked = f"its {num_asked} calls got no answer" if num_asked else "it never called the model"
        problem = (
            f"{asked}, so what it returned is not the policy's and does not count; send the calls to "
            "base_url (openai), anthropic_base_url, or the addresses in the environment"
        )
        return _mark_failed(result, "no_call", problem)
    if rewards is None or len(rewards) == num_calls:
        return result
    problem = (
        f"it returned {len(rewards)} step_rewards, but called the model {num_calls} times; give one each"
    )
    return _mark_failed(result, "bad_return", problem)


def _mark_failed(result: AgentResult, failure: str, problem: str) -> AgentResult:
    return replace(
        result, status="agent_error", failure=failure, step_rewards=None, reward=None, error=problem
    )


def _choose_status(result: AgentResult) -> Status:
    if result.status != "done":
        return Status(result.status)
    is_success = result.success if result.success is not None else (result.reward or 0.0) > 0
    return Status.SUCCESS if is_success else Status.FAILURE


def _collect_info(result: AgentResult) -> dict[str, Any]:
    failure = {"failure": result.failure} if result.failure else {}
    return {**result.info, **failure, "num_tries": result.num_tries, "agent_s": round(result.wall_s, 4)}
