"""Two reward parts of your own: short replies, and no action twice in a turn.

    stepwell check examples/own_reward.py:brevity
    stepwell train frozenlake 'rewards.parts=[{function="examples/own_reward.py:brevity", weight=0.01}]'

In a file:

    [[rewards.parts]]
    function = "examples/own_reward.py:variety"
    weight = 0.1

A part is `weight` times what the function returns for a step, and is kept in the record under its name (the
function's, or `name`). `StepOutcome` says what the agent saw, wrote and did, and what came of it.
"""

from stepwell.rewards import StepOutcome, reward_part


@reward_part
def brevity(step: StepOutcome) -> float:
    """Minus the number of characters; replies that cannot be read have a text too."""
    return -float(len(step.text))


@reward_part
def variety(step: StepOutcome) -> float:
    """Share of different actions; 0 where the reply has none."""
    return len(set(step.actions)) / len(step.actions) if step.actions else 0.0
