"""`mempo show`: one recorded episode in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    file: Annotated[Path, typer.Argument(help="A file of trajectories, or the folder of a run.")],
    task: Annotated[str | None, typer.Option(help="The task's name, or a part of it that only one task has.")] = None,
    trajectory: Annotated[
        str | None, typer.Option(help="policy/sample, as in mempo/0; the policy alone means its first sample.")
    ] = None,
    step: Annotated[int | None, typer.Option(min=1, help="Only this step; default: all.")] = None,
) -> None:
    """Print a recorded episode: each step's memory with what changed in it, action and reply.

    In colour on a terminal, as plain text in a pipe. Without --task, or where several trajectories fit, lists them.
    """
    from mempo_agents.files import read_trajectories
    from mempo_agents.run_folder import TRAJECTORIES
    from mempo_agents.show import episode_lines, list_lines, pick
    from mempo_env.rendering import wants_colour

    path = file / TRAJECTORIES if file.is_dir() else file
    found = pick(read_trajectories(path), task, trajectory)
    if len(found) == 1:
        lines = episode_lines(found[0], colour=wants_colour(), step=step)
    elif step is not None:
        raise ValueError(f"--step needs one trajectory, got {len(found)}: name it with --task and --trajectory.")
    else:
        lines = list_lines(found)
    for line in lines:
        typer.echo(line)
