"""What commands share: their help, and how CONFIG and `key=value` are read."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from stepwell.config.run import RunConfig

Run = Callable[[argparse.Namespace], int]
RUN_FILE = "config.toml"
SETTINGS_HELP = (
    "a TOML file, run folder or preset, then any settings as key=value (docs/configuration.md lists them)"
)


def add_command(
    commands: Any,
    name: str,
    run: Run,
    *,
    summary: str,
    description: str = "",
    examples: Sequence[tuple[str, str]] = (),
    after_interrupt: Callable[[argparse.Namespace], str] = lambda args: "",
) -> argparse.ArgumentParser:
    """A command with its help, and `--debug`, which every command has."""
    width = max((len(example) for example, _ in examples), default=0)
    lines = [f"  {example:{width}}   {words}".rstrip() for example, words in examples]
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}. {description}".strip(),
        epilog="\n".join(["examples:", *lines]) if lines else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    parser.set_defaults(run=run, after_interrupt=after_interrupt, parser=parser)
    return parser


def take_shown_name(words: Sequence[str]) -> str | None:
    """The name in `show NAME`, where `show` may be left out; none if nothing was typed."""
    from stepwell.core.errors import ConfigError

    names = words[words[:1] == ["show"] :]
    if len(names) > 1 or len(names) < len(words[:1]):
        raise ConfigError(f"write show NAME, with one name; got {' '.join(words)!r}")
    return names[0] if names else None


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The positional arguments CONFIG and key=value."""
    parser.add_argument("settings", nargs="*", metavar="CONFIG | key=value", help=SETTINGS_HELP)


def read_settings(settings: Sequence[str], *, default: Path | None = None) -> RunConfig:
    """The configuration that the positional arguments describe; `default` if they name no file."""
    from stepwell.config.loading import load_config
    from stepwell.config.recipe_presets import choose_preset

    source, overrides = split_settings(settings)
    if source is None:
        return load_config(default, overrides)
    chosen = source if os.path.exists(source) else choose_preset(source, overrides)
    if chosen != source:
        print(f"settings: those of the preset {chosen}, which is {source} with this recipe", file=sys.stderr)
    return load_config(chosen, overrides)


def split_settings(settings: Sequence[str]) -> tuple[str | None, list[str]]:
    """Which of the arguments is CONFIG, and the rest."""
    from stepwell.core.errors import ConfigError

    sources = [text for text in settings if "=" not in text or os.path.exists(text)]
    if len(sources) > 1:
        from stepwell.config.run import RunConfig
        from stepwell.config.schema import find_field

        for text in sources:
            key, colon, value = text.partition(":")
            if "." in key and not os.path.exists(text) and find_field(RunConfig, key.split(".")):
                problem = "is written with =" if colon else "is a setting without a value"
                raise ConfigError(f"{text!r} {problem}; write {key}={value or 'VALUE'}")
        raise ConfigError(f"{sources[0]!r} and {sources[1]!r} both name a configuration; give one")
    return (sources[0] if sources else None), [text for text in settings if text not in sources]


def run_folder(text: str) -> Path:
    """The folder of a run. If it is not one, the error lists the runs beside it."""
    from stepwell.core.errors import ConfigError

    folder = Path(text).expanduser()
    if (folder / RUN_FILE).is_file():
        return folder
    beside = list_newest_runs(folder) or list_newest_runs(folder.parent) or list_newest_runs(Path("runs"))
    known = f" Runs there: {', '.join(map(str, beside[:5]))}" if beside else ""
    raise ConfigError(f"{text!r} is not a run folder: it has no {RUN_FILE}.{known}")


def list_newest_runs(folder: Path, since: float = 0.0) -> list[Path]:
    """The runs in a folder that were started or resumed after a moment, the newest first."""
    files = [file for file in folder.glob(f"*/{RUN_FILE}") if file.stat().st_mtime >= since]
    return [file.parent for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)]


def console() -> Console:
    """Where tables are printed: as wide as the terminal, or wide enough for a file."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 150, highlight=False)
