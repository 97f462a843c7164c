"""The guide of the lake for agents, and one example turn in each state form.

The example is played on a real small board, so its texts are true under all settings.
"""

from __future__ import annotations

from stepwell.core import ActionSpace, ExampleTurn, StateForm
from stepwell.envs.frozenlake.lake import Lake
from stepwell.envs.frozenlake.options import FrozenLakeOptions
from stepwell.envs.frozenlake.text import draw_empty_board, draw_player, write_sentences, write_structured

SYMBOLS = "_ ice, O hole, G goal, P player, X player in a hole, * player on the goal"


def write_guide(options: FrozenLakeOptions) -> str:
    """Goal, symbols and rules under these options."""
    lines = ["You are the player on a frozen lake. Walk to the goal and stay out of the holes."]
    if options.observation != "text":
        lines.append("A picture shows the board from above: pale ice, dark holes, a flag at the goal.")
    if options.observation == "image":
        lines.append(f"Written down, the board is one character per cell: {SYMBOLS}.")
    else:
        lines.append(f"The board, one character per cell: {SYMBOLS}.")
    if options.compass:
        lines.append("Before it stands how far the goal is, whatever lies between.")
    lines.append("Up, Down, Left and Right move one cell; a move off the board stays in place.")
    if options.is_slippery:
        lines.append("The ice is slippery: a move goes as meant one time in three, else to one of its sides.")
    lines.append("Reaching the goal gives 10 points, every other move costs 0.1. A hole ends the game.")
    return "\n".join(lines)


def make_examples(actions: ActionSpace) -> dict[StateForm, ExampleTurn]:
    """One turn on a 3 x 3 board in every form, with as many moves as a turn allows."""
    lake = Lake.from_rows(["___", "O__", "___"], start=(2, 0), goal=(1, 1))
    way = ("Right", "Up")[: actions.max_per_turn]
    place = lake.start
    for action in way:
        place = lake.moves[place][action]
    board = draw_empty_board(lake)
    forms = {
        StateForm.NATURAL_LANGUAGE: (write_sentences(lake, lake.start), write_sentences(lake, place)),
        StateForm.SYMBOLIC: (draw_player(board, lake, lake.start), draw_player(board, lake, place)),
        StateForm.STRUCTURED: (write_structured(lake, lake.start), write_structured(lake, place)),
    }
    reasoning = "Right first, past the hole above me, then up to the goal."
    return {
        form: ExampleTurn(before, reasoning, after, actions.separator.join(way))
        for form, (before, after) in forms.items()
    }
