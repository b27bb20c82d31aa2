"""What `mempo train`, `warm-start` and `nano` share: options from a TOML file, settings, and lines of progress."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from mempo_env.errors import DataError, UnknownNameError


def merged(options: Mapping[str, Any], config: Path | None, skip: Sequence[str], context: Any = None) -> dict[str, Any]:
    """The options, with those of `config` wherever the command line left the default. context: typer's; None takes all.

    Raises DataError for a file that is no TOML, UnknownNameError for a key that is no option, and DataError for a value
    of another kind than the option's.
    """
    chosen = {name: value for name, value in options.items() if name not in skip}
    if config is None:
        return chosen
    try:
        given = tomllib.loads(config.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{config}: expected TOML: {error}") from error
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
    from mempo_agents.learners.trainer import TrainSettings
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


_SHOWN = ("loss", "token_accuracy", "reward_mean", "f1", "format_valid", "entropy", "policy_kl", "eval_f1")


def print_record(record: Mapping[str, Any], total: int | None = None) -> None:
    """One line a record: the step, and the figures of it that there are."""
    figures = "  ".join(f"{name} {record[name]:.3f}" for name in _SHOWN if isinstance(record.get(name), float))
    of = "" if total is None else f"/{total}"
    typer.echo(f"{record['step']:>6}{of}  {figures}")
