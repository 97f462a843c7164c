"""The parts of the core fit: what is rendered, sampled, recorded, packed and scored is one and the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stepwell.core import ParityError, Request, SamplingParams, Status, Step, Task, Trajectory
from stepwell.core.encoding import decode_trajectory, encode_trajectory
from stepwell.engines import EmbeddedEngine, check_parity, fingerprint_of
from stepwell.packing import pack
from stepwell.policies import CausalLMPolicy
from stepwell.rendering import Conversation, Message, Renderer, load_tokenizer

TURNS, EPISODES = 3, 4


@pytest.fixture(scope="module")
def policy() -> CausalLMPolicy:
    return CausalLMPolicy.from_pretrained("tiny-0.3m", critic="shared")


def episodes(policy: CausalLMPolicy, engine: EmbeddedEngine) -> tuple[list[Trajectory], list[int]]:
    """A few dialogues, all turns sampled by the engine, and how much of each prompt was cached."""
    renderer = Renderer(load_tokenizer(policy.source))
    params = SamplingParams(max_tokens=12, temperature=0.8, stop_ids=renderer.end_ids)
    made, cached = [], []
    for number in range(EPISODES):
        talk = Conversation(renderer, [Message.system("You walk on ice."), Message.user("P _ O G")])
        steps: list[Step] = []
        for turn in range(TURNS):
            (sampled,) = engine.generate_blocking([Request(talk.state, params, f"episode-{number}")])
            steps.append(sampled.step(talk.state))
            cached.append(sampled.num_cached)
            talk.record_action(sampled.action.action_ids)
            talk.add(Message.user(f"Turn {turn}: _ P O G"))
        assert talk.num_restarts == 0
        made.append(Trajectory(Task("ice", {"n": number}), steps, Status.FAILURE))
    return made, cached


def test_recorded_dialogues_train_on_exactly_what_was_sampled(policy: CausalLMPolicy) -> None:
    with EmbeddedEngine(policy.model, load_tokenizer(policy.source)) as engine:
        made, cached = episodes(policy, engine)
    stored = [decode_trajectory(encode_trajectory(trajectory)) for trajectory in made]
    assert stored == made
    steps = [step for trajectory in stored for step in trajectory.steps]

    report = check_parity(policy, steps)
    assert report.num_tokens == sum(step.num_units for step in steps)
    assert report.max_abs < 1e-4

    for trajectory in stored:  # every prompt continues the one before it, ids as sampled
        for before, after in zip(trajectory.steps, trajectory.steps[1:], strict=False):
            ids = np.concatenate([before.state.prompt_ids, before.action.action_ids])
            assert after.state.prompt_ids[: ids.size].tolist() == ids.tolist()
    assert all(count > 0 for count in cached[1:])  # later turns and later episodes reuse the cache
    packed = pack(steps)
    assert packed.num_tokens < 0.55 * packed.num_step_tokens


def test_engine_and_trainer_agree_after_an_update_and_not_before_it_is_loaded(policy: CausalLMPolicy) -> None:
    with EmbeddedEngine(policy.model, load_tokenizer(policy.source)) as engine:
        fresh = episodes(policy, engine)[0][0]
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.mul_(1.05)
        assert fingerprint_of(policy.model_weights()) != engine.fingerprint()
        with pytest.raises(ParityError):
            check_parity(policy, fresh.steps)
        engine.load_weights(1, policy.model_weights(), fingerprint=fingerprint_of(policy.model_weights()))
        assert fingerprint_of(policy.model_weights()) == engine.fingerprint()
        again = episodes(policy, engine)[0][0]
        assert check_parity(policy, again.steps).max_abs < 1e-4
        assert {step.policy_version.first for step in again.steps} == {1}
