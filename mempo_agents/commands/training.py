"""What `mempo train`, `warm-start` and `nano` share: options from a TOML file, settings, trackers, and progress."""

from __future__ import annotations

import math
import os
import tomllib
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

Track = Annotated[
    str | None,
    typer.Option(
        help="Where to show the figures as well, joined by commas: tensorboard, wandb, trackio; or none. Default: "
        "tensorboard where it is installed."
    ),
]


_PATHS = ("model", "dataset", "corpus")  # what a shell would expand a leading ~ of


def merged(
    command: Callable[..., None],
    options: Mapping[str, Any],
    config: Path | None,
    skip: Sequence[str],
    context: Any = None,
) -> dict[str, Any]:
    """The options, with those of `config` wherever the command line left the default. context: typer's; None takes all.

    The annotations of `command` say what each option may be. Raises DataError for a file that cannot be read, is no
    TOML, or gives an option another value than the command line would take, and UnknownNameError for a key that is no
    option.
    """
    from mempo_env.errors import DataError, UnknownNameError

    chosen = {name: value for name, value in options.items() if name not in skip}
    if config is None:
        return chosen
    try:
        given = tomllib.loads(config.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{config}: expected TOML: {error}") from error
    except OSError as error:
        raise DataError(
            f"--config {config}: expected a TOML file with options of this command, such as updates = 100; it "
            f"cannot be read: {error.strerror}."
        ) from error
    annotations = get_type_hints(command, include_extras=True)
    for name, value in given.items():
        if name not in chosen:
            raise UnknownNameError(f"option in {config}", name, chosen)
        kind, info = get_args(annotations[name])[:2]
        if isinstance(kind, types.UnionType):
            (kind,) = (part for part in get_args(kind) if part is not type(None))
        kind = get_origin(kind) or kind
        value = _converted(kind, name, value)
        if not _fits(kind, value, info.min, info.max):
            raise DataError(f"{config}: {name}: expected {_wanted(kind, info.min, info.max)}, got {given[name]!r}.")
        source = None if context is None else context.get_parameter_source(name)
        if source is None or source.name == "DEFAULT":
            chosen[name] = value
    return chosen


_WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a table",
           list: "text or a list of texts"}  # fmt: skip


def _converted(kind: type, name: str, value: Any) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if kind is list and isinstance(value, str):
        return [value]
    if name in _PATHS and isinstance(value, str) and value.startswith("~"):
        return str(Path(value).expanduser())
    return value


def _fits(kind: Any, value: Any, least: float | None, most: float | None) -> bool:
    if type(value) is not kind:  # True is an int to isinstance
        return False
    if kind is list:
        return all(isinstance(item, str) for item in value)
    if kind is float and not math.isfinite(value):
        return False
    return (least is None or value >= least) and (most is None or value <= most)


def _wanted(kind: type, least: float | None, most: float | None) -> str:
    if least is None:
        return _WANTED[kind]
    return f"{_WANTED[kind]} of at least {least:g}" if most is None else f"{_WANTED[kind]} from {least:g} to {most:g}"


def check_finite(options: Mapping[str, Any]) -> None:
    """Raises ValueError for an option that is "nan" or "inf": limits let the first through, and no run can use them."""
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"--{name.replace('_', '-')}: expected a number, got {value}.")


def settings_from(options: Mapping[str, Any]) -> Any:
    """`TrainSettings` from the options of `mempo train`."""
    from mempo_agents.learners.optim import OptimizerSettings
    from mempo_agents.learners.train_settings import TrainSettings
    from mempo_agents.learners.update import UpdateSettings
    from mempo_env.tasks import load_dataset
    from mempo_env.tasks.world import default_instructions

    o = dict(options)
    instructions = o["instructions"]
    if instructions is None and o["dataset"].startswith("world"):  # as the world spells its own name
        instructions = default_instructions(load_dataset(o["dataset"]).name)
    return TrainSettings(
        **{name: o[name] for name in (
            "model", "dtype", "policy", "dataset", "corpus", "split", "eval_split", "objectives", "retriever", "top_k",
            "max_steps", "reward", "estimator", "updates", "tasks", "group_size", "batch_size", "max_new_tokens",
            "guided", "sampler", "sampler_options", "seed", "warmup", "decay", "lora_rank", "shard", "evaluate_every",
            "eval_tasks", "save_every", "collapse",
        )},
        instructions=instructions,
        optimizer=OptimizerSettings(
            o["optimizer"], lr=o["lr"], matrix_lr=o["matrix_lr"], weight_decay=o["weight_decay"],
            clip_norm=o["clip_norm"] or None,
        ),
        update=UpdateSettings(
            clip_low=o["clip_low"], clip_high=o["clip_high"], aggregation=o["aggregation"], constant=o["constant"],
            kl_coefficient=o["kl"], entropy_coefficient=o["entropy"], old_logprobs=o["old_logprobs"],
            epochs=o["epochs"], mini_batches=o["mini_batches"], micro_tokens=o["micro_tokens"],
            temperature=o["temperature"],
        ),
    )  # fmt: skip


def trackers_from(text: str | None) -> tuple[str, ...] | None:
    """The trackers of `--track`: names joined by commas, "none", or None, which leaves it to what is installed."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    return () if names == ("none",) else names


def record_to_go_on_from(out: Path) -> dict[str, Any]:
    """The record of the newest checkpoint in a run's folder; {} where a run would begin."""
    from mempo_agents.learners.checkpoint import checkpoints
    from mempo_agents.learners.metrics_log import METRICS, read_metrics

    found = checkpoints(out / "checkpoints")
    if not found or not (out / METRICS).is_file():
        return {}
    step = int(found[-1].name.partition("-")[2])
    return next((record for record in read_metrics(out / METRICS) if record["step"] == step), {})


def check_folder(out: Path) -> None:
    """Raises DataError where a run's folder is or lies under a file, before anything slow begins."""
    from mempo_env.errors import DataError

    for path in (out, *out.parents):
        if path.exists():
            if not path.is_dir():
                raise DataError(f"{path}: expected a folder to write to, found a file. Name another folder.")
            return


def bar_of(begun: float) -> AbstractContextManager[Callable[[float, str, str], None]]:
    """The bar of a training on a terminal; of several processes the first draws it. begun: the share that was done."""
    from rich.console import Console

    from mempo_agents.progress import training_bar

    return training_bar(Console(stderr=True, force_terminal=None if _is_first() else False), begun)


def say(text: str) -> None:
    """A line on stderr; of several processes the first says it."""
    if _is_first():
        typer.echo(text, err=True)


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"  # as torchrun numbers them


_SHOWN = ("loss", "token_accuracy", "reward_mean", "f1", "format_valid", "entropy", "policy_kl", "eval_f1")
_ON_THE_BAR = ("loss", "reward_mean", "f1", "eval_f1")


def print_record(record: Mapping[str, Any], total: int | None = None) -> None:
    """One line a record: the step, and the figures of it that there are."""
    of = "" if total is None else f"/{total}"
    typer.echo(f"{record['step']:>6}{of}  {figures_of(record, _SHOWN)}")


def figures_of(record: Mapping[str, Any], names: Sequence[str] = _ON_THE_BAR) -> str:
    return "  ".join(f"{name} {record[name]:.3f}" for name in names if isinstance(record.get(name), float))
