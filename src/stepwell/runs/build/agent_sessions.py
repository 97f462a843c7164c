"""The sessions of a user's own agent: a gateway in this process, one session for every try of an episode.

    make_episode ─► open_sessions ─► the agent's calls ─► HTTP ─► gateway ─► sampler
                                           └─► pool: steps, as they are sampled
                    finish_session ◄─ result: reward, status ─► pool: the trajectory is finished

* An agent that fails gives one `agent_error`, with its kind in `info["failure"]`. So does an agent that
  never called the model: the policy had no part in what it returned. A failure of the engine or of a process
  gives one `infra_error`. Failed tries are never trained on.
* Calls are sampled as the run's settings say, whatever the agent asks for (`own_agent.keep_sampling`
  leaves it to the agent); the seed of a call follows from the job's seed and the call's place.
* Sessions that an earlier process of the run left open are ended as `infra_error` at the start.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from stepwell.config.gateway import GatewayConfig
from stepwell.config.run import RunConfig
from stepwell.core import Sampler, SamplingParams, Status, Trajectory, make_id
from stepwell.pool import Filter, Pool
from stepwell.rendering import Renderer
from stepwell.rollout import AgentJob, AgentResult, Job
from stepwell.rollout.agent_outcome import NO_REWARD
from stepwell.services.gateway.chat import ChatRequest
from stepwell.services.gateway.gateway import Gateway
from stepwell.services.gateway.registry import TAG, SessionOptions
from stepwell.services.gateway.sessions import GatewaySession

T = TypeVar("T")
DEFAULT_TIMEOUT_S = 600.0
_SEED_STEP = 1_000_003
_DAY_S = 86_400.0


@dataclass(slots=True, eq=False)
class AgentEpisode:
    """One try of one job: a session of the gateway."""

    job: Job
    params: SamplingParams
    group_size: int
    session: str
    num_calls: int = 0


@dataclass(eq=False)
class AgentSessions:
    """Opens and ends sessions of a gateway that runs in a thread of this process."""

    gateway: Gateway
    url: str
    stop: Callable[[], None]
    reward_scale: float
    keep_sampling: bool
    run_name: str
    timeout_s: float
    episodes: dict[str, AgentEpisode] = field(default_factory=dict)  # under way, by session

    @classmethod
    def start(
        cls, config: RunConfig, sampler: Sampler, renderer: Renderer, pool: Pool, run_name: str
    ) -> AgentSessions:
        """Start the gateway."""
        from stepwell.services.gateway.app import create_app
        from stepwell.services.http_server import serve_in_thread

        if run_name:
            _end_left_sessions(pool, run_name)
        settings = GatewayConfig(
            port=0,
            model_name="policy",
            max_tokens=config.sampling.max_tokens,
            silent_timeout_s=_DAY_S,  # an episode's end is known here
        )
        gateway = Gateway(sampler, renderer, pool, settings)
        url, stop = serve_in_thread(create_app(gateway))
        limit_s = config.train.episode_timeout_s or DEFAULT_TIMEOUT_S
        own = config.own_agent
        sessions = cls(gateway, url, stop, config.rewards.scale, own.keep_sampling, run_name, limit_s)
        gateway.adjust = sessions._adjust_request
        return sessions

    def start_call(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run a coroutine on the gateway's event loop; to be awaited on the caller's."""
        assert self.gateway.loop is not None
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.gateway.loop))

    def run_call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the gateway's event loop and wait for it."""
        assert self.gateway.loop is not None
        return asyncio.run_coroutine_threadsafe(work, self.gateway.loop).result()

    def make_episode(self, job: Job, params: SamplingParams, group_size: int) -> AgentEpisode:
        """A new try of a job. Its session is not open yet."""
        plain = re.sub(r"[^A-Za-z0-9._:-]", "-", job.group)[-80:].strip("-.:_")
        episode = AgentEpisode(job, params, group_size, make_id(plain or "episode"))
        self.episodes[episode.session] = episode
        return episode

    def make_job(self, id: str, episode: AgentEpisode, timeout_s: float | None) -> AgentJob:
        """What the agent's processes play."""
        job, url = episode.job, f"{self.url}/s/{episode.session}"
        return AgentJob(id, job.task, url, seed=job.seed % 2**32, timeout_s=timeout_s or self.timeout_s)

    async def open_sessions(self, episodes: Sequence[AgentEpisode]) -> None:
        """Open the sessions of these tries."""
        tags = (self.run_name,) if self.run_name else ()
        openings = []
        for episode in episodes:
            job, is_trained = episode.job, episode.job.channel == "train"
            options = SessionOptions(
                task=job.task,
                group=job.group if is_trained else "",
                group_size=episode.group_size if is_trained else 1,
                channel=job.channel,
                tags=tags,
            )
            openings.append(self.gateway.registry.open_session(episode.session, "", options))
        await asyncio.gather(*openings)

    async def finish_session(self, episode: AgentEpisode, result: AgentResult) -> None:
        """Reward and end the session of a try that has ended."""
        registry = self.gateway.registry
        self.episodes.pop(episode.session, None)
        session = await registry.find_session(episode.session, "")
        if not isinstance(session, GatewaySession) or session.is_over:
            return
        numbers = session.select_path()
        result = _check_result(result, len(numbers), episode.num_calls)
        has_value = result.reward is not None or result.success is not None or bool(session.rewards)
        given = partial(registry.reward_session, session, part="task", source="agent")
        if result.step_rewards is not None:
            for number, value in zip(numbers, result.step_rewards, strict=True):
                await given(self.reward_scale * value, step=number)
        elif numbers and (result.reward is not None or not session.rewards):
            await given(self.reward_scale * (result.reward or 0.0), step=None)
        info = _collect_info(result) | {"seed": episode.job.seed}
        if result.status == "done" and result.step_rewards is None and not has_value:
            info[NO_REWARD] = True
        await registry.finish_session(session, _choose_status(result), result.error, info=info)

    async def finish_episode(self, episode: AgentEpisode, result: AgentResult) -> Trajectory:
        """End the session of a try, and read its trajectory from the pool."""
        await self.finish_session(episode, result)
        return await self.gateway.registry.run_in_thread(self.load_trajectory, episode.session)

    def load_trajectory(self, session: str) -> Trajectory:
        """The trajectory of a session, from the pool."""
        return self.gateway.registry.pool.get(session).trajectory

    def close(self) -> None:
        """End the gateway."""
        self.stop()

    def _adjust_request(self, session: str, ask: ChatRequest) -> ChatRequest:
        """Change a call to the sampling settings of the run."""
        episode = self.episodes.get(session)
        if episode is None:
            return ask
        seed = (episode.job.seed + episode.num_calls * _SEED_STEP) % 2**63
        episode.num_calls += 1
        if self.keep_sampling:
            return ask if ask.seed is not None else replace(ask, seed=seed)
        params = episode.params
        most = params.max_tokens if ask.max_tokens is None else min(ask.max_tokens, params.max_tokens)
        return replace(ask, seed=seed, temperature=params.temperature, top_p=params.top_p, max_tokens=most)


def _end_left_sessions(pool: Pool, run_name: str) -> None:
    """End what an earlier process of this run left open: nobody plays it any more."""
    for entry in list(pool.find(Filter(is_open=True, tags=(TAG, run_name)))):
        pool.finish(entry.id, Status.INFRA_ERROR, error="the run was ended while this episode was played")


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
