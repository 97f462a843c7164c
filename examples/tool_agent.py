"""An agent with a tool, as one writes it for any chat API: nothing in it knows of a trainer.

    stepwell train examples/tool_agent.toml      (docs/own_agent.md describes the steps before)

It must find a number from 1 to 7 in three guesses. Its tool says whether the number lies up or
down from a guess. Whoever guesses at random finds 37 of 100 numbers; whoever always takes the
middle of what is left finds all.
"""

import json

from openai import AsyncOpenAI

CLIENT = AsyncOpenAI(base_url="http://localhost", api_key="none")  # one pool of connections for all episodes
NUM_GUESSES, LARGEST = 3, 7
QUESTION = f"Find my number, 1 to {LARGEST}."
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}},
    },
}


async def agent(task, base_url, api_key, model):
    """One episode: True if the number was found."""
    client = CLIENT.with_options(base_url=base_url, api_key=api_key)
    messages = [{"role": "user", "content": QUESTION}]
    for _ in range(NUM_GUESSES):
        answer = await client.chat.completions.create(
            model=model, messages=messages, tools=[TOOL], max_tokens=32, temperature=1.0
        )
        said = answer.choices[0].message
        messages.append(said.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
        if not said.tool_calls:
            return False  # it only talked
        for call in said.tool_calls:
            told = find(task.content["number"], call.function.arguments)
            if told == "yes":
                return True
            messages.append({"role": "tool", "tool_call_id": call.id, "content": told})
    return False


def find(number: int, arguments: str) -> str:
    """The tool: where the number lies, seen from a guess."""
    try:
        guess = int(json.loads(arguments)["number"])
    except (ValueError, TypeError, KeyError):
        return "no number"
    return "yes" if guess == number else "up" if number > guess else "down"
