"""Small agents with the vendors' clients: two turns of talk each."""

from __future__ import annotations

import openai

FIRST, SECOND = "Where is the goal?", "And now?"


async def with_openai(task, base_url, api_key, model, seed):
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        return await _talk_openai(client, model, seed)


def plain_openai(base_url, model, seed):
    with openai.OpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        messages = [{"role": "user", "content": FIRST}]
        said = []
        for turn in range(2):
            answer = client.chat.completions.create(
                model=model, messages=messages, max_tokens=6, seed=seed + turn
            )
            said.append(answer.choices[0].message.content or "")
            messages += [{"role": "assistant", "content": said[-1]}, {"role": "user", "content": SECOND}]
    return {"reward": 1.0, "said": [text.strip() for text in said]}


async def as_it_is(task, seed):
    async with openai.AsyncOpenAI() as client:
        return await _talk_openai(client, "gpt-whatever", seed)


async def with_anthropic(task, anthropic_base_url, api_key, model):
    import anthropic  # a second or two, and only here

    async with anthropic.AsyncAnthropic(
        base_url=anthropic_base_url, api_key=api_key, max_retries=0
    ) as client:
        messages = [{"role": "user", "content": FIRST}]
        said = []
        for _ in range(2):
            answer = await client.messages.create(model=model, messages=messages, max_tokens=6)
            said.append("".join(block.text for block in answer.content if block.type == "text"))
            messages += [
                {"role": "assistant", "content": answer.content},
                {"role": "user", "content": SECOND},
            ]
    return {"reward": 1.0, "said": [text.strip() for text in said]}


async def asks_nonsense(base_url, model):
    async with openai.AsyncOpenAI(base_url=base_url, api_key="any") as client:
        await client.chat.completions.create(model=model, messages=[{"role": "nobody", "content": "?"}])


async def _talk_openai(client, model, seed):
    messages = [{"role": "user", "content": FIRST}]
    said = []
    for turn in range(2):
        answer = await client.chat.completions.create(
            model=model, messages=messages, max_tokens=6, seed=seed + turn
        )
        said.append(answer.choices[0].message.content or "")
        messages += [{"role": "assistant", "content": said[-1]}, {"role": "user", "content": SECOND}]
    return {"reward": 1.0, "said": [text.strip() for text in said]}
