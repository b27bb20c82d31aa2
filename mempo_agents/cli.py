"""The command line `mempo`. Each command is one module in `mempo_agents/commands` with a function `run`.

Command modules import only the standard library and typer at their top, so that `mempo --help` answers at once;
whatever is heavy is imported when a command runs. To add a command: write the module, add a line to `COMMANDS`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from mempo_agents.commands import credit, index, nano, play, report, serve, show, tasks, train, warm_start
from mempo_agents.commands import eval as eval_command

COMMANDS: dict[str, Callable[..., None]] = {
    "eval": eval_command.run,
    "report": report.run,
    "show": show.run,
    "play": play.run,
    "tasks": tasks.run,
    "credit": credit.run,
    "index": index.run,
    "serve": serve.run,
    "train": train.run,
    "warm-start": warm_start.run,
    "nano": nano.run,
}

app = typer.Typer(
    name="mempo",
    help="Long-horizon search tasks for agents that write their own memory: play them, list them, measure policies.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _run in COMMANDS.items():
    app.command(_name, no_args_is_help=False)(_run)


def _print_version(wanted: bool) -> None:
    if wanted:
        from mempo_agents.provenance import package_version

        typer.echo(f"mempo-gym {package_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line. Bad input ends with one line on stderr and exit code 2; a defect keeps its traceback.

    Set MEMPO_TRACEBACK=1 to see where an input error was raised.
    """
    try:
        app()
    except BrokenPipeError:
        # The reader went away (`mempo tasks | head`). Point stdout elsewhere, or Python complains again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        if os.environ.get("MEMPO_TRACEBACK") or not _is_input_error(error):
            raise
        typer.echo(f"Error: {_one_line(error)}", err=True)
        sys.exit(2)


def _is_input_error(error: Exception) -> bool:
    """Whether the user can mend it: our own errors, refused values, files that cannot be read or written, and a loss
    that became no number."""
    from mempo_env.errors import MempoError

    return isinstance(error, MempoError | ValueError | OSError | FloatingPointError)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    main()
