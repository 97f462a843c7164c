"""`stepwell`: finds the command, runs it, and turns an error into one line.

Exit codes: 0 done; 1 the command ran and its answer is no (an environment that fails its check); 2 a mistake
that the message names; 130 interrupted by Ctrl-C and 143 by SIGTERM, with a line on how to continue.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import os
import re
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn, TextIO

from stepwell import __version__
from stepwell.core.errors import StepwellError
from stepwell.core.names import describe_missing_module, suggest_name
from stepwell.core.user_code import format_own_lines, has_own_lines
from stepwell.runs.interrupts import Terminated, raise_on_stop

# each is a module of this folder, in the order of `stepwell --help`
COMMANDS = (
    *("train", "plan", "eval", "play", "demo", "study", "view", "top", "serve", "cluster", "pool", "report"),
    *("sft", "orm", "export", "presets", "recipes", "envs", "check", "init"),
)
_DESCRIPTION = "Train agents that act in many steps with reinforcement learning."
_EPILOG = """\
examples:
  stepwell demo                                  watch an agent learn: two to five minutes, no GPU
  stepwell train frozenlake recipe.name=grpo     a preset with a setting changed
  stepwell eval runs/NAME                        measure a trained agent
  stepwell view runs                             see runs in the browser, live or finished
  stepwell play --run runs/NAME                  step through an episode with it
"""


class Parser(argparse.ArgumentParser):
    """Argparse's parser, with the nearest name where one is mistyped."""

    def list_options(self) -> list[str]:
        """Its options by their long names."""
        return [name for name in self._option_string_actions if name.startswith("--")]

    def error(self, message: str) -> NoReturn:
        """End with the usage and what is wrong; where a command is missing, with the help that lists them."""
        if _NO_COMMAND.fullmatch(message):
            self.print_help(sys.stderr)
            self.exit(2)
        if found := _CHOICE.search(message):
            message += suggest_name(found[1], re.findall(r"[\w.-]+", found[2]))
        super().error(message)


_NO_COMMAND = re.compile(r"the following arguments are required: (COMMAND|ACTION|SERVICE|KIND)")
_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands, or of one: the modules of the others are not imported then."""
    parser = Parser(
        "stepwell",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"stepwell {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS if only is None else (only,):
        importlib.import_module(f"stepwell.cli.{name}").add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit code."""
    _replace_unwritable_characters()
    gc.set_threshold(20_000)  # imports make half a million objects that stay: look for garbage less often
    args = _parse(argv)
    args.is_whole_process = argv is None
    warnings.showwarning = _show_warning
    try:
        with raise_on_stop():
            code = int(args.run(args))
        sys.stdout.flush()  # a reader that has gone is noticed here, not at exit
        return code
    except (StepwellError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            return _end_quietly()
        if args.debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if args.debug or error.name is None or error.name.startswith("stepwell"):
            raise
        print(f"error: {describe_missing_module(error.name)}", file=sys.stderr)
        return 2
    except ImportError as error:  # a package asks for another, such as httpx for a proxy's
        if args.debug or "install" not in str(error):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except SystemExit as error:  # our commands return; a silent exit code 0 would pass for success
        if args.debug:
            raise
        print(f"error: code of your own ended the command:\n{format_own_lines(error)}", file=sys.stderr)
        return 2
    except Exception as error:
        if args.debug or not has_own_lines(error):  # a fault of ours is shown whole
            raise
        print(f"error: code of your own failed:\n{format_own_lines(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        is_terminated = isinstance(error, Terminated)
        word = "stopped by SIGTERM" if is_terminated else "interrupted"
        print(f"\n{word}. {args.after_interrupt(args)}".rstrip(), file=sys.stderr)
        return 143 if is_terminated else 130


def _replace_unwritable_characters() -> None:
    """Write `?` for what the terminal's encoding lacks (ASCII, Latin-1), rather than end there."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def _suggest_setting(option: str) -> str:
    """The setting that was probably meant by an option that a command does not have."""
    from stepwell.config.run import RunConfig
    from stepwell.config.schema import find_field, find_table_model, suggest_key

    key, equals, value = option.lstrip("-").partition("=")
    if key == "config":
        return "; a TOML file or a preset is named without an option: stepwell train FILE."
    if equals:
        return f"; settings have no dashes: {key}={value}."
    path = tuple(key.replace("-", "_").split("."))
    near = re.findall(r"'([\w.]+)'", suggest_key(RunConfig, path).partition(" Known")[0])
    fields = {name: find_field(RunConfig, name.split(".")) for name in near}
    near = [name for name, field in fields.items() if field and not find_table_model(field.info)]
    return f"; settings have no dashes: {' or '.join(f'{name}=VALUE' for name in near)}." if near else ""


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """As argparse does, but settings may also stand behind options."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["help"]:  # as other programs have it
        words = [*words[1:2], "--help"]
    parser = build_parser(words[0] if words and words[0] in COMMANDS else None)
    args, rest = parser.parse_known_args(words)
    misplaced = [text for text in rest if text.startswith("-") or not hasattr(args, "settings")]
    if misplaced:
        command = args.parser
        guess = suggest_name(misplaced[0].partition("=")[0], command.list_options())
        if not guess and hasattr(args, "settings"):
            guess = _suggest_setting(misplaced[0])
        command.error(
            f"unrecognized arguments: {' '.join(misplaced)}{guess or '.'} See {command.prog} --help"
        )
    if rest:
        args.settings += rest
    return args


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """What a user should change, in one line; other warnings as Python shows them."""
    if category is FutureWarning and "stepwell" in filename:
        print(f"warning: {message}", file=sys.stderr)
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        print(text, end="", file=file or sys.stderr)


def _end_quietly() -> int:
    """End without a message: the reader of our output (`| head`) has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
