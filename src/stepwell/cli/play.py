"""`stepwell play`: step through an episode in the terminal, with the agent or without.

On a terminal, arrow keys type actions; otherwise every line of standard input is one turn or
one command, so that an episode can be piped in.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.command import add_command, add_settings, read_settings, run_folder
from stepwell.cli.keys import Keyboard

if TYPE_CHECKING:
    from stepwell.config.run import RunConfig
    from stepwell.core import ActionSpace, Task
    from stepwell.runs.play.agent import LiveAgent
    from stepwell.runs.play.episode import PlayedTurn, PlaySession

COMMANDS = "ahnq?"
_EXAMPLES = (
    ("stepwell play frozenlake", "you alone"),
    ("stepwell play web env.options.driver=chromium", "in a browser, with screenshots"),
    ("stepwell play --run runs/NAME", "with a trained agent: `a` lets it act"),
    ("stepwell play sokoban --model tiny-1m --seed 3", "with an untrained model, another room"),
    ("printf 'Up,Left\\na\\nq\\n' | stepwell play --run runs/NAME", "from a script"),
)


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "play",
        run,
        summary="step through an episode with the agent",
        description="Arrow keys or typed names act, `a` lets the agent act, `h` hints, `n` goes to the "
        "next task, `q` ends. In an environment of free text, commands begin with a slash: /a.",
        examples=_EXAMPLES,
    )
    add_settings(parser)
    agent = parser.add_mutually_exclusive_group()
    agent.add_argument("--run", dest="run_folder", metavar="RUN", help="the best checkpoint of this run acts")
    agent.add_argument("--model", metavar="MODEL", help="this model acts: a directory or a built-in name")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="seed that draws the tasks (default 0)"
    )
    parser.add_argument(
        "--split", choices=("held_out", "train"), default="held_out", help="split of the tasks (held_out)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="temperature of the agent; 0 is greedy"
    )
    parser.add_argument("--text", action="store_true", help="show the board as text on a terminal too")


def run(args: argparse.Namespace) -> int:
    folder = run_folder(args.run_folder) if args.run_folder else None
    config = read_settings(args.settings, default=folder)
    from stepwell.core.errors import ConfigError
    from stepwell.envs.registry import find_env_type

    if find_env_type(config.env.name).is_robot:
        raise ConfigError(
            f"{config.env.name} is a robot, which acts by numbers and cannot be played by hand: "
            "stepwell view RUN shows the episodes of a run"
        )
    tasks = _draw_tasks(config, args)
    first = next(tasks, None)
    if first is None:
        raise ConfigError(f"{config.env.name} has no task in split {args.split}; change env.held_out_share")
    from stepwell.runs.play.episode import PlaySession

    with PlaySession(config, _open_agent(config, folder, args)) as session:
        shows_image = sys.stdout.isatty() and not args.text
        _Terminal(session, shows_image).play(first, tasks)
    return 0


def _open_agent(config: RunConfig, folder: Path | None, args: argparse.Namespace) -> LiveAgent | None:
    """The agent that `--run` or `--model` names; only they load torch."""
    from stepwell.runs.play.episode import open_live_agent

    model = args.model
    if folder is not None:
        from stepwell.runs.evaluation.evaluate import choose_checkpoint

        model, why = choose_checkpoint(folder)
        print(f"checkpoint: {why}")
    return open_live_agent(model, config, args.temperature) if model else None


def _draw_tasks(config: RunConfig, args: argparse.Namespace) -> Iterator[Task]:
    from stepwell.core import Split
    from stepwell.envs import list_distinct_tasks

    env = config.env
    return list_distinct_tasks(env.name, env.options, Split(args.split), args.seed, env.held_out_share)


class _Terminal:
    """Shows an episode and reads lines."""

    def __init__(self, session: PlaySession, shows_image: bool) -> None:
        self._session = session
        self._shows_image = shows_image
        self._actions = session.env.description.actions
        self._keyboard = Keyboard() if sys.stdin.isatty() else None
        self._folder: Path | None = None  # of screenshots
        self._num_tasks = 0

    def play(self, first: Task, others: Iterator[Task]) -> None:
        """Read and obey lines until `q` or the end of input."""
        from stepwell.core.errors import ContextLengthError, InputError

        self._print_help()
        self._start_task(first)
        does: dict[str, Callable[[], None]] = {
            "a": lambda: self._print_turn(self._session.let_agent_act()),
            "h": self._print_hint,
            "n": lambda: self._start_task(next(others, None)),
            "?": self._print_help,
        }
        while (line := self._read_line()) is not None:
            command = self._parse_command(line)
            if command == "q":
                return
            try:
                if command:
                    does[command]()
                elif line.strip():
                    self._print_turn(self._session.act(read_actions(self._actions, line)))
            except (InputError, ContextLengthError) as error:  # a player's mistake does not end the episode
                print(error)

    def _read_line(self) -> str | None:
        prompt = "next task (n) or end (q)> " if self._session.is_over else "> "
        if self._keyboard is not None:
            return self._keyboard.read_line(prompt, self._actions, COMMANDS)
        return sys.stdin.readline() or None

    def _parse_command(self, line: str) -> str | None:
        """The command a line is, unless it names an action."""
        word = line.strip()
        if self._actions.is_text and not word.startswith("/"):
            return None
        word = word.removeprefix("/").lower()
        is_action = any(word == name.lower() for name in self._actions.names)
        return word if len(word) == 1 and word in COMMANDS and not is_action else None

    def _start_task(self, task: Task | None) -> None:
        if task is None:
            print("there is no further task")
            return
        self._session.start(task)
        self._num_tasks += 1
        print(f"task {task.id[:8]}, {self._session.env.description.max_turns} turns")
        self._print_state()

    def _print_state(self) -> None:
        from stepwell.cli.terminal_image import format_ansi_image
        from stepwell.monitors.plain_text import show_controls

        is_read = self._actions.is_text or not self._shows_image  # who writes text reads text
        if self._session.observation.text and is_read:
            print(show_controls(self._session.observation.text))
        else:
            print(format_ansi_image(self._session.ask(lambda env: env.render())))
        screenshot = self._session.ask(lambda env: env.take_screenshot())
        if screenshot is not None:
            if self._shows_image:
                print(format_ansi_image(screenshot, width=shutil.get_terminal_size().columns))
            print(f"screenshot {self._save_image(screenshot)}")
        elif self._actions.is_text and self._session.observation.images:  # it is to be seen, not read
            print(format_ansi_image(self._session.observation.images[0]))
        value = self._session.value()
        if value is not None:
            print(f"value {value:.2f}")

    def _save_image(self, image: Any) -> Path:
        """The page as a file that a person can open."""
        from stepwell.monitors.replays import encode_png

        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="stepwell-play-"))
        path = self._folder / f"task{self._num_tasks}-turn{self._session.num_turns}.png"
        path.write_bytes(encode_png(image))
        return path

    def _print_turn(self, played: PlayedTurn) -> None:
        from stepwell.monitors.plain_text import show_controls

        if played.player == "agent":
            print(show_controls(f"agent: {played.text}"))
        if played.player == "agent" and played.reply.problem:
            print(show_controls(f"not in the required form: {played.reply.problem}"))
        parts = "  ".join(f"{name} {value:+.2f}" for name, value in played.parts.items())
        done = show_controls(", ".join(played.reply.actions)) or "nothing"
        print(f"turn {self._session.num_turns}: {done}   {parts}")
        self._print_state()
        if played.is_over:
            ending = "success" if played.success else "failure"
            print(f"{ending} after {self._session.num_turns} turns, reward {self._session.total_reward:+.2f}")

    def _print_hint(self) -> None:
        is_known = not self._session.is_over and self._session.env.has_oracle
        way = self._session.ask(lambda env: env.oracle()) if is_known else []
        print(f"shortest way: {', '.join(way)}" if way else "no hint: no solution is known from here")

    def _print_help(self) -> None:
        from stepwell.monitors.plain_text import show_controls

        actions = self._actions
        if actions.is_text:  # what may be written stands there alone
            print(show_controls(self._session.env.description.guide))
        tools = ", ".join(f"{tool.name} {' '.join(tool.properties)}".strip() for tool in actions.tools)
        names = ", ".join(actions.names) or tools or "text"
        slash = "/" if actions.is_text else ""
        keys = "arrow keys, " if self._keyboard is not None and not actions.is_text else ""
        print(f"actions: {keys}{names} (up to {actions.max_per_turn} per turn)")
        print("commands: " + ", ".join(f"{slash}{key} {word}" for key, word in _WORDS.items()))


_WORDS = {"a": "agent acts", "h": "hint", "n": "next task", "q": "end", "?": "this help"}


def read_actions(actions: ActionSpace, line: str) -> list[str]:
    """The actions of a typed line: names or unambiguous beginnings of them, in any case."""
    from stepwell.core import InputError

    if actions.is_text:
        return [line.strip()]
    if actions.tools:
        return _read_calls(actions, line)
    pieces = [piece.strip() for piece in line.split(actions.separator) if piece.strip()]
    found = [_complete_name(actions.names, piece) for piece in pieces]
    unknown = [piece for piece, name in zip(pieces, found, strict=True) if name is None]
    if unknown or not found:
        raise InputError(
            f"{(unknown or [line.strip()])[0]!r} is not an action; known: {', '.join(actions.names)}"
        )
    if len(found) > actions.max_per_turn:
        raise InputError(f"{len(found)} actions, at most {actions.max_per_turn} are done in a turn")
    return [name for name in found if name is not None]


def _read_calls(actions: ActionSpace, line: str) -> list[str]:
    """Calls as typed: JSON, or `tool text` where a tool takes one text; several with `&&` between them."""
    from stepwell.core import InputError, ToolCall, find_call_problem, read_call

    typed = [piece.strip() for piece in line.split("&&")]
    if len(typed) > actions.max_per_turn:
        raise InputError(f"{len(typed)} calls, at most {actions.max_per_turn} are made in a turn")
    calls = []
    for piece in typed:
        name, _, text = piece.partition(" ")
        tool = next((tool for tool in actions.tools if tool.name == name), None)
        first = next(iter(tool.properties), "") if tool else ""
        given = {first: text.strip()} if first and text.strip() else {}
        call = read_call(piece) if piece.startswith("{") else ToolCall(name, {**given})
        if problem := find_call_problem(actions.tools, call):
            raise InputError(f"{piece[:60]!r} cannot be done: {problem}")
        calls.append(call.text)
    return calls


def _complete_name(names: tuple[str, ...], typed: str) -> str | None:
    word = typed.casefold()
    begun = [name for name in names if name.casefold().startswith(word)]
    exact = [name for name in begun if name.casefold() == word]
    return exact[0] if exact else begun[0] if len(begun) == 1 else None
