"""A prompt style of your own: a plan in one sentence before the answer.

    stepwell check examples/own_prompt_style.py:PLAN_FIRST
    stepwell train frozenlake agent.strategy=examples/own_prompt_style.py:PLAN_FIRST sampling.max_tokens=48

A style is a tree of tags. Prompts, parser and rewards read the same tree: the agent is told
`Reply: <plan>...</plan><answer>...</answer>`, replies are read by these tags, and `rewards.format` rewards
exactly this form. A tag holds one field of the reply: what was seen (`OBSERVATION`), thought (`REASONING`),
expected (`PREDICTION`), and, last, done (`ANSWER`). `instruction` is added to the system prompt.
"""

from stepwell.agents import Field, Strategy, Tag

PLAN_FIRST = Strategy(
    "plan_first",
    (Tag("plan", Field.REASONING), Tag("answer", Field.ANSWER)),
    instruction="<plan> names the way to the goal in one short sentence.",
)
