"""FrozenLake through a chat API: an openai-client agent with the words of the native loop.

    stepwell train frozenlake-easy --agent examples/frozenlake_agent.py:agent

Environment, prompts, seeds and rewards are those of the preset `frozenlake-easy`, but every action comes
from a chat call and every prompt is made from messages. So its learning curve can be compared with the
native loop's: the data take another way, and are the same.
"""

from openai import AsyncOpenAI

from stepwell.agents import Agent
from stepwell.config.run import AgentConfig
from stepwell.envs import make_env

CLIENT = AsyncOpenAI(base_url="http://localhost", api_key="none")  # one pool of connections for all episodes
LAKE = {"size": 4, "hole_rate": 0.03, "min_actions": 2, "max_turns": 3, "max_actions_per_turn": 2}
WORDS = Agent(make_env("frozenlake", LAKE).description, AgentConfig(guide=False))
FORMAT = 0.5  # reward of a reply in exactly the required form
SEED_STEP = 1_000_003  # from turn to turn, as in the native loop


async def agent(task, base_url, api_key, model, seed):
    """One episode: a reward for every call, and whether the goal was reached."""
    client = CLIENT.with_options(base_url=base_url, api_key=api_key)
    env = make_env("frozenlake", LAKE)
    observation, _ = env.reset(seed=seed % 2**32, options={"task": task})
    messages = [
        {"role": "system", "content": WORDS.system_prompt()},
        {"role": "user", "content": WORDS.first_prompt(observation)},
    ]
    rewards, num_actions, is_over = [], 0, False
    while not is_over:
        answer = await client.chat.completions.create(
            model=model,
            messages=messages,
            max_tokens=8,
            temperature=1.0,
            seed=(seed + len(rewards) * SEED_STEP) % 2**63,
        )
        text = answer.choices[0].message.content or ""
        reply = WORDS.read(text)
        observation, reward, terminated, truncated, info = env.step(reply.actions)
        rewards.append(reward + FORMAT * reply.is_strict)
        num_actions += info["num_actions"]
        messages += [
            {"role": "assistant", "content": text},
            {"role": "user", "content": WORDS.next_prompt(observation)},
        ]
        is_over = terminated or truncated
    return {"step_rewards": rewards, "success": bool(info["success"]), "num_actions": num_actions}
