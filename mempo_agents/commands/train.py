"""`mempo train`: reinforcement of a language model in the environment."""

from __future__ import annotations

import json
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
    merged,
    print_record,
    record_to_go_on_from,
    say,
    settings_from,
    trackers_from,
)


def _table(text: Any) -> dict[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except json.JSONDecodeError as error:
        raise typer.BadParameter(f"expected JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter(f"expected a JSON object, got {text!r}.")
    return value


def run(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder of the run; one that was killed continues.")],
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with any of the other options, dashes as underscores. The command line wins."),
    ] = None,
    model: Annotated[str, typer.Option(help="A folder, a hub name, nano-mempo and such, or smollm2.")] = "nano-mempo",
    policy: Annotated[str, typer.Option(help="react, mem1 or mempo.")] = "mempo",
    estimator: Annotated[
        str, typer.Option(help="Credit: grpo, mempo, rloo, ... (any registered estimator).")
    ] = "mempo",
    dataset: Annotated[str, typer.Option(help="Data set of the tasks.")] = "world-compact",
    corpus: Annotated[str | None, typer.Option(help="File of passages to search; default: the dataset's own.")] = None,
    split: Annotated[str, typer.Option(help="Split to train on.")] = "train",
    eval_split: Annotated[str, typer.Option(help="Split of the curve's held-out tasks.")] = "dev",
    objectives: Annotated[int, typer.Option(min=1, help="Questions per task.")] = 2,
    retriever: Annotated[str, typer.Option(help="bm25, or the address of a search server.")] = "bm25",
    top_k: Annotated[int, typer.Option(min=1, help="Passages per search.")] = 3,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Steps; default: 4 x objectives + 4.")] = None,
    reward: Annotated[str, typer.Option(help="paper, em, f1 or sum_em.")] = "paper",
    instructions: Annotated[
        str | None, typer.Option(help="System message; default: none for world-compact, else the protocol's own.")
    ] = None,
    updates: Annotated[int, typer.Option(min=1, help="Optimizer batches.")] = 100,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks per update.")] = 8,
    group_size: Annotated[int, typer.Option(min=1, help="Episodes per task.")] = 16,
    lr: Annotated[float, typer.Option(min=0.0, help="Learning rate of AdamW.")] = 1e-6,
    optimizer: Annotated[str, typer.Option(help="adamw, or muon for the hidden matrices.")] = "adamw",
    matrix_lr: Annotated[float, typer.Option(min=0.0, help="Learning rate of Muon.")] = 0.001,
    weight_decay: Annotated[float, typer.Option(min=0.0, help="Decoupled weight decay.")] = 0.0,
    clip_norm: Annotated[
        float, typer.Option(min=0.0, help="Most that the gradient's norm may be; 0 is no limit.")
    ] = 1.0,
    warmup: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of the run in which the rate rises.")] = 0.0,
    decay: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of the run in which the rate falls.")] = 0.0,
    clip_low: Annotated[float, typer.Option(min=0.0, max=1.0, help="The ratio's lower bound is 1 - this.")] = 0.2,
    clip_high: Annotated[
        float | None, typer.Option(min=0.0, help="The upper bound is 1 + this; default: as --clip-low.")
    ] = None,
    kl: Annotated[float, typer.Option(min=0.0, help="Weight of the KL penalty to the starting weights.")] = 0.0,
    entropy: Annotated[float, typer.Option(help="Weight of the entropy bonus.")] = 0.0,
    aggregation: Annotated[str, typer.Option(help="trajectory, token, sequence or constant.")] = "trajectory",
    constant: Annotated[
        float | None, typer.Option(min=1.0, help="Tokens that each row counts as, for --aggregation constant.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over each batch.")] = 1,
    mini_batches: Annotated[int, typer.Option(min=1, help="Optimizer steps per pass.")] = 1,
    old_logprobs: Annotated[str, typer.Option(help="sampler, or recomputed by the trainer.")] = "sampler",
    micro_tokens: Annotated[int, typer.Option(min=1, help="Tokens per forward pass of an update.")] = 8192,
    batch_size: Annotated[int, typer.Option(min=1, help="Episodes at a time; decides the speed only.")] = 64,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens per response.")] = 160,
    temperature: Annotated[float, typer.Option(help="Sampling temperature.")] = 1.0,
    guided: Annotated[bool, typer.Option("--guided", help="Force the protocol's tags.")] = False,
    sampler: Annotated[
        str, typer.Option(help="hf: the model in training plays; vllm: a copy of it in vLLM, new after every update.")
    ] = "hf",
    sampler_options: Annotated[
        dict,
        typer.Option(parser=_table, metavar="JSON", help="Arguments of vLLM's LLM; in a config a table."),
    ] = {},  # noqa: B006  typer reads it, nothing writes it
    lora_rank: Annotated[int, typer.Option(min=0, help="Train adapters of this rank; 0 trains all weights.")] = 0,
    shard: Annotated[bool, typer.Option("--shard", help="Processes share the weights' training state (FSDP).")] = False,
    dtype: Annotated[str, typer.Option(help="Weights: float32, bfloat16, float16 or auto.")] = "float32",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: what there is.")] = None,
    evaluate_every: Annotated[int, typer.Option(min=0, help="Updates between evaluations; 0 is never.")] = 10,
    eval_tasks: Annotated[int, typer.Option(min=1, help="Held-out tasks per evaluation.")] = 64,
    save_every: Annotated[int, typer.Option(min=0, help="Updates between checkpoints; 0 is only at the end.")] = 10,
    collapse: Annotated[
        float, typer.Option(min=0.0, max=0.99, help="Stop below this share of the best format validity.")
    ] = 0.3,
    plugin: Plugins = None,
    track: Track = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of tasks, sampling and adapters.")] = 0,
) -> None:
    """Train a language model by reinforcement: groups of episodes, credit, update, evaluation.

    Writes OUT/metrics.jsonl (one line an update), OUT/checkpoints and OUT/best. When a run was interrupted, the same
    command continues it; a folder that holds another run is refused. In several processes:
    torchrun --nproc_per_node 2 -m mempo_agents.cli train --out OUT ...
    """
    options = dict(locals())
    from mempo_agents.engines.hf import check_device

    chosen = merged(run, options, config, ("context", "out", "config"), context)
    check_finite(chosen)
    load_plugins(chosen["plugin"])
    settings = settings_from(chosen)
    check_device(chosen["device"])
    check_folder(out)
    from mempo_agents.learners.trainer import Trainer

    total = settings.updates
    with bar_of(record_to_go_on_from(out).get("step", 0) / total) as bar:

        def watch(record: dict[str, Any]) -> None:
            print_record(record, total)
            bar(record["step"] / total, f"update {record['step']}/{total}", figures_of(record))

        trackers = trackers_from(chosen["track"])
        record = Trainer(settings, out, device=chosen["device"], watch=watch, track=trackers).run()
    best = out / "best"
    where = f"The best model is {best}" if best.is_dir() else f"The models are in {out / 'checkpoints'}"
    say(f"Done: {record.get('stopped') or 'all updates'}. {where}.")
