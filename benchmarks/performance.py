"""Speed of the parts of this project, beside that of others, measured in one run.

    python -m benchmarks.performance env [--quick] [--json FILE]
    python -m benchmarks.performance --help          lists the benchmarks; each has a --help of its own

A benchmark is a module with a function `run` whose arguments are its command line; it is imported only when asked for.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

import typer

#: name -> (module, what it measures)
BENCHMARKS = {
    "env": ("benchmarks.env_speed", "steps per second of the environments, beside other suites"),
    "world": ("benchmarks.world_speed", "articles and questions per second of the encyclopedia, and its memory"),
    "credit": ("benchmarks.credit_speed", "tokens per second of memory credit, with and without shared prefixes"),
    "retrieval": ("benchmarks.retrieval_speed", "queries per second and recall of the retrievers"),
    "train": ("benchmarks.train_speed", "tokens per second of one training step"),
}


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark that the first argument names."""
    arguments = sys.argv[1:] if arguments is None else arguments
    known = {name: entry for name, entry in BENCHMARKS.items() if importlib.util.find_spec(entry[0])}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        for name, (_, what) in known.items():
            print(f"  {name:<10} {what}")
        return
    name, *rest = arguments
    if name not in known:
        sys.exit(f"Unknown benchmark {name!r}. Known: {', '.join(known)}.")
    app = typer.Typer(add_completion=False)
    app.command()(importlib.import_module(known[name][0]).run)
    app(args=rest, prog_name=f"python -m benchmarks.performance {name}")


if __name__ == "__main__":
    main()
