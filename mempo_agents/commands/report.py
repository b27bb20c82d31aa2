"""`mempo report`: one HTML page of any runs, or the same page live."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs, folders that hold such folders, or files of trajectories.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    trajectories: Annotated[
        int | None,
        typer.Option(min=0, help="Episodes that can be opened in the page; default: as many as fit 15 MB."),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Show the page on this machine only, and update it as the runs grow.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for --serve; 0 takes a free one.")] = 8756,
) -> None:
    """Make a report of runs: context, scores, tokens, memories, credit, training, failures, and every episode.

    The page is one file that needs no network and no server. With --serve it is shown on 127.0.0.1 instead, reads the
    runs again while they grow, and holds all episodes whatever their number.
    """
    if serve:
        from mempo_agents.report.live import make_server

        server = make_server(runs, port)
        typer.echo(f"Report: http://{server.server_address[0]!s}:{server.server_address[1]}/  (Ctrl-C stops it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("Stopped.", err=True)
        finally:
            server.server_close()
        return
    from mempo_agents.report import write_report

    made = write_report(runs, out, trajectories=trajectories)
    size = made["bytes"] / 1e6
    typer.echo(f"Written: {out} ({size:.1f} MB, {made['embedded']:,} of {made['episodes']:,} episodes to open)")
