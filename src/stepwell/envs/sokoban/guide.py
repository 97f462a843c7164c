"""The guide of the room for agents, and one example turn in each state form.

The example is played in a real small room, so its texts are true under all settings.
"""

from __future__ import annotations

from stepwell.core import ActionSpace, ExampleTurn, StateForm
from stepwell.envs.sokoban.options import SokobanOptions
from stepwell.envs.sokoban.room import Situation, SokobanRoom, draw_empty_room, draw_room, read_room
from stepwell.envs.sokoban.text import write_sentences, write_structured

SYMBOLS = "# wall, _ floor, O target, X box, P player, * box on a target, S player on a target"


def write_guide(options: SokobanOptions) -> str:
    """Goal, symbols and rules under these options."""
    boxes = "the box onto the target" if options.num_boxes == 1 else "every box onto a target"
    lines = [f"You are the player in a room. Push {boxes}."]
    if options.observation != "text":
        lines.append("A picture shows the room from above: brick walls, wooden boxes, red rings as targets.")
    if options.observation == "image":
        lines.append(f"Written down, the room is one character per cell: {SYMBOLS}.")
    else:
        lines.append(f"The room, one character per cell: {SYMBOLS}.")
    lines.append("Up, Down, Left and Right move one cell. Walking into a box pushes it one cell on;")
    lines.append("walls stop you, and a box stops before a wall or another box. Nothing can be pulled.")
    lines.append("A box pushed onto a target gives 1 point and takes it back when pushed off; solving the")
    lines.append("room gives 10; every action that does not solve it costs 0.1.")
    if options.max_steps < options.max_turns * options.max_actions_per_turn:
        lines.append(f"The game ends after {options.max_steps} actions.")
    return "\n".join(lines)


def make_examples(actions: ActionSpace) -> dict[StateForm, ExampleTurn]:
    """One turn in a small room in every form, with as many moves as a turn allows."""
    room, before = read_room(["#####", "#O__#", "#X__#", "#_P_#", "#####"])
    way = ("Left", "Up")[: actions.max_per_turn]
    after = before
    for action in way:
        after = room.move(*after, action)
    told = {
        StateForm.NATURAL_LANGUAGE: write_sentences,
        StateForm.SYMBOLIC: _draw_room,
        StateForm.STRUCTURED: write_structured,
    }
    reasoning = "I go left to stand below the box, then up to push it onto the target."
    answer = actions.separator.join(way)
    return {
        form: ExampleTurn(write(room, before), reasoning, write(room, after), answer)
        for form, write in told.items()
    }


def _draw_room(room: SokobanRoom, situation: Situation) -> str:
    return draw_room(draw_empty_room(room), room, situation)
