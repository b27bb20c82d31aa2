"""What `mempo train`, `warm-start` and `nano` share: options from a TOML file, settings, trackers, and progress."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

Track = Annotated[
    str | None,
    typer.Option(
        help="Where to show the figures as well, joined by commas: tensorboard, wandb, trackio; or none. Default: "
        "tensorboard where it is installed."
    ),
]


def merged(options: Mapping[str, Any], config: Path | None, skip: Sequence[str], context: Any = None) -> dict[str, Any]:
    """The options, with those of `config` wherever the command line left the default. context: typer's; None takes all.

    Raises DataError for a file that cannot be read, is no TOML, or gives an option another kind of value than its own,
    and UnknownNameError for a key that is no option.
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
    for name, value in given.items():
        if name not in chosen:
            raise UnknownNameError(f"option in {config}", name, chosen)
        default = chosen[name]
        if default is not None and not isinstance(value, type(default)) and not _is_whole_float(value, default):
            raise DataError(f"{config}: {name}: expected {type(default).__name__}, got {value!r}.")
        source = None if context is None else context.get_parameter_source(name)
        if source is None or source.name == "DEFAULT":
            chosen[name] = value
    return chosen


def _is_whole_float(value: Any, default: Any) -> bool:
    return isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool)


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
            clip_low=o["clip_low"], clip_high=o["clip_high"], aggregation=o["aggregation"], kl_coefficient=o["kl"],
            entropy_coefficient=o["entropy"], old_logprobs=o["old_logprobs"], epochs=o["epochs"],
            mini_batches=o["mini_batches"], micro_tokens=o["micro_tokens"], temperature=o["temperature"],
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


_SHOWN = ("loss", "token_accuracy", "reward_mean", "f1", "format_valid", "entropy", "policy_kl", "eval_f1")
_ON_THE_BAR = ("loss", "reward_mean", "f1", "eval_f1")


def print_record(record: Mapping[str, Any], total: int | None = None) -> None:
    """One line a record: the step, and the figures of it that there are."""
    of = "" if total is None else f"/{total}"
    typer.echo(f"{record['step']:>6}{of}  {figures_of(record, _SHOWN)}")


def figures_of(record: Mapping[str, Any], names: Sequence[str] = _ON_THE_BAR) -> str:
    return "  ".join(f"{name} {record[name]:.3f}" for name in names if isinstance(record.get(name), float))
