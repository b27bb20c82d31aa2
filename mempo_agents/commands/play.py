"""`mempo play`: an episode in the terminal, by hand or by a policy."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mempo_agents.commands.plugins import Plugins, load_plugins

if TYPE_CHECKING:
    from mempo_env.env import SearchQAEnv
    from mempo_env.types import Task


def run(
    policy: Annotated[str | None, typer.Option(help="Watch react, mem1 or mempo; default: you play.")] = None,
    engine: Annotated[str, typer.Option(help="Engine of the policy: scripted, random or hf.")] = "scripted",
    model: Annotated[str | None, typer.Option(help="Language model: a folder, a hub name, or smollm2.")] = None,
    guided: Annotated[bool, typer.Option("--guided", help="Force the protocol's tags for a language model.")] = False,
    dataset: Annotated[str, typer.Option(help="world, world-compact, a file of questions, or a hub name.")] = "world",
    corpus: Annotated[str | None, typer.Option(help="File of passages to search; default: the dataset's own.")] = None,
    split: Annotated[str | None, typer.Option(help="Split of the dataset; default: its first.")] = None,
    objectives: Annotated[int, typer.Option(min=1, help="Questions of the task.")] = 2,
    index: Annotated[int, typer.Option(min=0, help="Which task.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the tasks' composition and of the sampling.")] = 0,
    protocol: Annotated[
        str, typer.Option(help="When you play: mempo, mem1, react or search_r1. A policy brings its own.")
    ] = "mempo",
    context: Annotated[
        str | None,
        typer.Option(help="In view: full, last_step, last_k:K or memory_only; default: the protocol's."),
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Passages per search.")] = 3,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Steps; default: 4 x objectives + 4.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens per response of a language model.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")] = 0.0,
    plugin: Plugins = None,
) -> None:
    """Play an episode step by step, or watch a policy play it. Works with piped input too."""
    load_plugins(plugin)
    from mempo_env.tasks import load_dataset

    arguments: dict[str, Any] = {
        "objectives": objectives,
        "dataset": load_dataset(dataset, corpus),
        "split": split,
        "task_seed": seed,
        "top_k": top_k,
        "max_steps": max_steps,
    }
    from mempo_agents.play import Game, watch
    from mempo_env.env import SearchQAEnv

    if policy is None:
        with suppress(ImportError):
            import readline  # noqa: F401  (gives `input` line editing and a history)
        env = SearchQAEnv(protocol=protocol, context=context, **arguments)
        Game(env, read=input, say=typer.echo).play(options={"task": _task(env, index)})
        return
    from mempo_agents.engines import get_engine
    from mempo_agents.engines.base import Sampling
    from mempo_agents.policies import get_policy

    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, guided=guided)
    player = get_policy(policy, get_engine(engine, model=model), sampling, context=context)
    watch(player, task=_task(SearchQAEnv(**arguments), index), seed=seed, env_kwargs=arguments)


def _task(env: SearchQAEnv, index: int) -> Task:
    tasks = env.library.tasks(env.library.split)
    if index >= len(tasks):
        raise ValueError(f"--index: expected 0 to {len(tasks) - 1}, got {index}.")
    return tasks[index]
