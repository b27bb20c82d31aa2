"""`mempo warm-start`: supervised training on a teacher's episodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from mempo_agents.commands.plugins import Plugins, load_plugins
from mempo_agents.commands.training import (
    Track,
    bar_of,
    check_finite,
    check_folder,
    figures_of,
    print_record,
    record_to_go_on_from,
    say,
    trackers_from,
)

# Beside the settings of the training itself: what decides the student and the steps that it learns from.
_DECIDE = (
    "model", "policy", "dataset", "corpus", "split", "objectives", "tasks", "quote", "terse", "drop", "verbose",
    "needless", "paraphrase", "epochs", "lora_rank", "dtype",
)  # fmt: skip


def run(
    out: Annotated[Path, typer.Option(help="Folder of the run; one that was killed continues.")],
    model: Annotated[str, typer.Option(help="The student: a folder, a hub name, or smollm2.")] = "smollm2",
    policy: Annotated[str, typer.Option(help="What to teach: react, mem1, mempo, or several, with commas.")] = "mempo",
    trajectories: Annotated[
        Path | None,
        typer.Option(help="A teacher's trajectories, such as `mempo eval` writes; default: the oracle plays."),
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help="Data set that the oracle plays; once for each of several; default: world.")
    ] = None,
    corpus: Annotated[str | None, typer.Option(help="File of passages to search; default: the dataset's own.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Split that the oracle plays; default: the dataset's first.")
    ] = None,
    objectives: Annotated[int, typer.Option(min=1, help="Questions per task.")] = 2,
    tasks: Annotated[
        int, typer.Option(min=1, help="Tasks that the oracle plays, of each dataset with each policy.")
    ] = 256,
    quote: Annotated[bool, typer.Option("--quote", help="The oracle quotes its proofs beside the answers.")] = False,
    terse: Annotated[bool, typer.Option("--terse", help="The oracle writes words instead of sentences.")] = False,
    drop: Annotated[float, typer.Option(min=0.0, max=1.0, help="Chance that it leaves a fact out.")] = 0.0,
    verbose: Annotated[float, typer.Option(min=0.0, max=1.0, help="Chance that it copies a whole passage.")] = 0.0,
    needless: Annotated[float, typer.Option(min=0.0, max=1.0, help="Chance of a needless search.")] = 0.0,
    paraphrase: Annotated[float, typer.Option(min=0.0, max=1.0, help="Chance that it asks in other words.")] = 0.0,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the steps.")] = 1,
    lr: Annotated[float, typer.Option(min=0.0, help="Learning rate of AdamW.")] = 1e-5,
    optimizer: Annotated[str, typer.Option(help="adamw, or muon for the hidden matrices.")] = "adamw",
    matrix_lr: Annotated[float, typer.Option(min=0.0, help="Learning rate of Muon.")] = 0.001,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens per update.")] = 4096,
    micro_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens per forward pass; default: all.")] = None,
    lora_rank: Annotated[int, typer.Option(min=0, help="Train adapters of this rank; 0 trains all weights.")] = 0,
    dtype: Annotated[str, typer.Option(help="Weights: auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: what there is.")] = None,
    save_every: Annotated[int, typer.Option(min=1, help="Updates between checkpoints.")] = 50,
    plugin: Plugins = None,
    track: Track = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of tasks, faults and order.")] = 0,
) -> None:
    """Teach a language model a protocol: right episodes of a teacher, response tokens only.

    Writes OUT/metrics.jsonl and OUT/checkpoints/step-*/model. An interrupted run is continued by the same command.
    """
    options = dict(locals())
    from mempo_agents.engines.hf import HFEngine, check_device
    from mempo_agents.engines.oracle import Style
    from mempo_agents.learners.lora import trainable
    from mempo_agents.learners.optim import OptimizerSettings
    from mempo_agents.learners.trackers import usable
    from mempo_agents.learners.warm_start import WarmStartSettings, oracle_rows, reencoded_rows, shards, warm_start
    from mempo_agents.policies import policy_names
    from mempo_agents.tokenizers import LossyTokenizerError
    from mempo_env.errors import DataError, UnknownNameError

    load_plugins(plugin)
    check_finite(options)
    check_device(device)
    settings = WarmStartSettings(
        optimizer=OptimizerSettings(optimizer, lr=lr, matrix_lr=matrix_lr),  # type: ignore[arg-type]
        batch_tokens=batch_tokens,
        micro_tokens=micro_tokens,
        seed=seed,
        save_every=save_every,
    )
    about = {name: options[name] for name in _DECIDE}
    about["trajectories"] = trajectories and str(trajectories)
    _check_run(out, about)
    names = () if trajectories is not None else _names(policy)
    for name in names:
        if name not in policy_names():
            raise UnknownNameError("policy", name, policy_names())
    if trajectories is not None and not trajectories.is_file():
        raise DataError(f"{trajectories}: expected a file of trajectories (JSON lines), found none.")
    trackers = usable(trackers_from(track))
    engine = HFEngine(model, dtype=dtype, device=device)
    if trajectories is not None:
        rows = reencoded_rows(trajectories, engine.codec)
    else:
        style = Style(quote=quote, terse=terse, drop=drop, verbose=verbose, needless=needless, paraphrase=paraphrase)
        try:
            rows = [
                row
                for name in names
                for source in dataset or ["world"]
                for row in oracle_rows(
                    name, engine.codec, dataset=source, corpus=corpus, split=split, objectives=objectives, tasks=tasks,
                    style=style, seed=seed,
                )
            ]  # fmt: skip
        except LossyTokenizerError as error:
            if terse:
                raise
            raise DataError(f"{error} For a small vocabulary, such as nano-mempo's, give --terse.") from error
    window = engine.window_tokens
    fitting = [row for row in rows if window is None or row.length <= window]
    say(f"{len(fitting)} steps to learn from, {len(rows) - len(fitting)} longer than the model's window.")
    chunk, chunks = shards(fitting, epochs=epochs, seed=seed)
    student = trainable(engine.model, lora_rank, seed, base=engine.model_name)

    with bar_of(record_to_go_on_from(out).get("done", 0.0)) as bar:

        def watch(record: dict[str, Any]) -> None:
            print_record(record)
            bar(record["done"], f"update {record['step']}", figures_of(record))

        warm_start(student, engine.tokenizer, chunk, chunks, settings, out, watch=watch, about=about, track=trackers)
    say(f"Done. Models: {out / 'checkpoints'}")


def _check_run(out: Path, about: Mapping[str, Any]) -> None:
    """Refuses a folder of another run by what is known before the model is loaded; the trainer compares the rest."""
    from mempo_agents.run_folder import SETTINGS, claim, read_json

    check_folder(out)
    if (out / SETTINGS).is_file():
        mine = {"kind": "warm_start", **about}
        theirs = read_json(out / SETTINGS)
        claim(out / SETTINGS, {**theirs, **mine} if theirs.get("kind") == mine["kind"] else mine, default=mine)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise typer.BadParameter("expected a policy, or several with commas between them.", param_hint="--policy")
    return names
