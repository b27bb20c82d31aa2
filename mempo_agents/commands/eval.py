"""`mempo eval`: policies x objectives x tasks, one table, one results file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mempo_agents.commands.plugins import Plugins, load_plugins


def run(
    out: Annotated[Path, typer.Option(help="Folder for results.json and trajectories.jsonl; a started run continues.")],
    policies: Annotated[str, typer.Option(help="Policies, joined by commas.")] = "react,mem1,mempo",
    engine: Annotated[
        str,
        typer.Option(
            help="scripted (an oracle that plays from the evidence), random, hf (a language model), vllm (the same in "
            "vLLM), openai or openai-chat (a server, see --base-url), or replay:FILE."
        ),
    ] = "scripted",
    model: Annotated[
        str | None,
        typer.Option(
            help="Language model: a folder, a hub name, or smollm2 (embedded); the name that a server gives it. For "
            "scripted: its tokenizer."
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Weights: auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; default: what there is.")] = None,
    base_url: Annotated[
        str | None,
        typer.Option(help="Server of openai and openai-chat, such as http://127.0.0.1:8000/v1; key: $OPENAI_API_KEY."),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer of a server's model: a folder or a hub name; default: by its name.")
    ] = None,
    dataset: Annotated[str, typer.Option(help="world, world-compact, a file of questions, or a hub name.")] = "world",
    corpus: Annotated[str | None, typer.Option(help="File of passages to search; default: the dataset's own.")] = None,
    split: Annotated[str | None, typer.Option(help="Split of the dataset; default: test, dev, or its first.")] = None,
    objectives: Annotated[str, typer.Option(help="Questions per task, joined by commas.")] = "2,4,6,8,10",
    tasks: Annotated[int, typer.Option(min=1, help="Tasks per number of objectives, the same for all policies.")] = 32,
    samples: Annotated[int, typer.Option(min=1, help="Episodes per task; more than 1 needs a temperature.")] = 1,
    composition: Annotated[
        str, typer.Option(help="How questions become tasks: sample (seeded), or blocks (consecutive, as MEM1 did).")
    ] = "sample",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the tasks' composition and of the sampling.")] = 0,
    retriever: Annotated[str, typer.Option(help="bm25, or the address of a search server.")] = "bm25",
    top_k: Annotated[int, typer.Option(min=1, help="Passages per search.")] = 3,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Steps; default: 4 x objectives + 4.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens per response.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")] = 0.0,
    guided: Annotated[
        bool, typer.Option("--guided", help="Force the protocol's tags and sample only between them; results say so.")
    ] = False,
    plugin: Plugins = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Episodes at a time; decides the speed only.")] = 16,
) -> None:
    """Evaluate policies over numbers of objectives, and print the table.

    Writes OUT/trajectories.jsonl as episodes finish and OUT/results.json with everything needed to run it again. When a
    run was interrupted, the same command continues it. A folder that holds another run is refused.
    """
    from rich.console import Console

    from mempo_agents.evaluate import Settings, evaluate
    from mempo_agents.progress import episode_bar
    from mempo_agents.results_table import print_results

    load_plugins(plugin)
    settings = Settings(
        policies=tuple(_names(policies)),
        engine=engine,
        model=model,
        dtype=dtype,
        device=device,
        base_url=base_url,
        tokenizer=tokenizer,
        dataset=dataset,
        corpus=corpus,
        split=split,
        objectives=tuple(_numbers(objectives, "--objectives")),
        tasks=tasks,
        samples=samples,
        composition=composition,
        seed=seed,
        retriever=retriever,
        top_k=top_k,
        max_steps=max_steps,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        guided=guided,
        plugin=tuple(plugin or ()),
    )
    with episode_bar(Console(stderr=True)) as watch:
        results = evaluate(settings, out, batch_size=batch_size, watch=watch)
    print_results(results)
    typer.echo(f"Written: {out / 'results.json'}, {out / 'trajectories.jsonl'}", err=True)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in _names(text)]
    except ValueError:
        raise ValueError(f"{option}: expected whole numbers joined by commas, such as 2,4,6; got {text!r}.") from None
