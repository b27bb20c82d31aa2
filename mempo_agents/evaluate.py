"""Evaluation: policies x numbers of objectives x tasks, every episode kept, and one results file.

    Settings ---evaluate---> trajectories.jsonl, one line per episode as it finishes
                        +--> results.json: `run` (everything needed to run it again) and `cells` (policy x objectives)

A killed run continues where it stopped: episodes that are on disk are not played again, and because each episode's
sampling depends on its own seed alone, the end is the same as without the interruption (but for the seconds).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mempo_agents.engines import get_engine
from mempo_agents.engines.base import Engine, Sampling
from mempo_agents.files import TrajectoryWriter, resume_trajectories
from mempo_agents.metrics import summarise
from mempo_agents.policies import get_policy, policy_names
from mempo_agents.progress import Watch
from mempo_agents.provenance import git_revision, machine_class, versions
from mempo_agents.rollout import rollout
from mempo_agents.run_folder import RESULTS, TRAJECTORIES, only_writer, read_json, write_json
from mempo_agents.trajectory import Trajectory
from mempo_env.errors import DataError, UnknownNameError
from mempo_env.retrieval import get_retriever
from mempo_env.retrieval.base import Retriever
from mempo_env.tasks import Dataset, check_split, compose, load_dataset
from mempo_env.tasks.world import default_instructions
from mempo_env.types import Task

RESULTS_SCHEMA_VERSION = 1
# The split that is measured when none is named: the first of these that the data set has, else its own first one.
PREFERRED_SPLITS = ("test", "dev", "validation")


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides the numbers of an evaluation. `mempo eval --help` explains each; units and defaults are the same.
    plugin: what the command imported before, for the record; it is not imported here.

    Raises ValueError where a value is out of range, and UnknownNameError for a policy that does not exist.
    """

    policies: tuple[str, ...] = ("react", "mem1", "mempo")
    engine: str = "scripted"
    model: str | None = None
    dtype: str = "auto"
    device: str | None = None
    base_url: str | None = None
    tokenizer: str | None = None
    dataset: str = "world"
    corpus: str | None = None
    split: str | None = None
    objectives: tuple[int, ...] = (2, 4, 6, 8, 10)
    tasks: int = 32
    samples: int = 1
    composition: str = "sample"
    seed: int = 0
    retriever: str = "bm25"
    top_k: int = 3
    max_steps: int | None = None
    max_new_tokens: int = 256
    temperature: float = 0.0
    guided: bool = False
    plugin: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.policies:
            if name not in policy_names():
                raise UnknownNameError("policy", name, policy_names())
        for what, values in (("policies", self.policies), ("objectives", self.objectives)):
            if not values or len(set(values)) != len(values):
                raise ValueError(
                    f"{what}: expected at least one, each once, got {','.join(map(str, values)) or 'none'}."
                )
        if min(self.objectives) < 1:
            raise ValueError(f"objectives: expected numbers of at least 1, got {min(self.objectives)}.")
        for what, value in (("tasks", self.tasks), ("samples", self.samples), ("top_k", self.top_k)):
            if value < 1:
                raise ValueError(f"{what}: expected at least 1, got {value}.")
        if self.samples > 1 and self.temperature == 0 and self.engine != "random":
            raise ValueError(
                f"samples: expected 1 at temperature 0, where all episodes of a task are the same, got {self.samples}."
            )

    def command(self) -> str:
        """The command line that runs this again; only what differs from the defaults, and never `--out`."""
        words = ["mempo", "eval"]
        defaults = asdict(Settings())
        for name, value in asdict(self).items():
            if value != defaults[name]:
                option = "--" + name.replace("_", "-")
                if name == "plugin":
                    words += [word for one in value for word in (option, one)]
                    continue
                text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
                words += [option] if value is True else [option, text]
        return shlex.join(words)


@dataclass(slots=True)
class _Bench:
    """What the settings name, loaded."""

    settings: Settings
    dataset: Dataset
    split: str
    retriever: Retriever
    engine: Engine
    tasks: Mapping[int, Sequence[Task]] = field(default_factory=dict)

    @classmethod
    def load(cls, settings: Settings) -> _Bench:
        dataset = load_dataset(settings.dataset, settings.corpus)
        preferred = next((split for split in PREFERRED_SPLITS if split in dataset.splits), None)
        split = check_split(dataset, settings.split or preferred)
        questions = dataset.questions(split)
        tasks = {}
        for objectives in settings.objectives:
            composed = compose(
                questions,
                objectives,
                method=settings.composition,
                seed=settings.seed,
                split=split,
                name=dataset.name,
                length=settings.tasks,
            )
            tasks[objectives] = [composed[index] for index in range(settings.tasks)]
        retriever = get_retriever(settings.retriever, dataset, split)
        engine = get_engine(
            settings.engine,
            model=settings.model,
            dtype=settings.dtype,
            device=settings.device,
            base_url=settings.base_url,
            tokenizer=settings.tokenizer,
        )
        return cls(settings, dataset, split, retriever, engine, tasks)

    def describe(self) -> dict[str, Any]:
        """`run`: everything needed to run it again, and to tell whether another run is the same one."""
        arguments = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self.settings).items()}
        if not self.settings.plugin:  # so that a run from before there were plugins goes on
            del arguments["plugin"]
        return {
            "command": self.settings.command(),
            "arguments": arguments,
            "dataset": {"name": self.dataset.name, "split": self.split, "fingerprint": self.dataset.fingerprint},
            "retriever": {"name": self.retriever.name, "fingerprint": self.retriever.fingerprint},
            "engine": {
                "name": self.engine.name,
                "tokenizer": self.engine.tokenizer_name,
                "fingerprint": self.engine.fingerprint,
                "window_tokens": self.engine.window_tokens,
            },
            "versions": versions(),
            "machine": machine_class(),
            "source": git_revision(),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "complete": False,
        }

    def play(self, policy_name: str, tasks: Sequence[Task], batch_size: int) -> Iterator[Trajectory]:
        """Every sample of these tasks, each trajectory as it finishes."""
        settings = self.settings
        sampling = Sampling(
            max_new_tokens=settings.max_new_tokens, temperature=settings.temperature, guided=settings.guided
        )
        environment = {
            "dataset": self.dataset,
            "split": self.split,
            "retriever": self.retriever,
            "top_k": settings.top_k,
            "max_steps": settings.max_steps,
            "instructions": default_instructions(self.dataset.name),
        }
        policy = get_policy(policy_name, self.engine, sampling)
        return rollout(
            policy,
            tasks,
            env_kwargs=environment,
            samples=settings.samples,
            seed=settings.seed,
            batch_size=batch_size,
        )


# What must be equal for two runs to be the same one. Machine, source and time may differ.
_IDENTITY = ("arguments", "dataset", "retriever", "engine", "versions")


def evaluate(settings: Settings, out: Path, *, batch_size: int = 16, watch: Watch | None = None) -> dict[str, Any]:
    """Play every episode of `settings` that is not in the folder `out` yet; write and return the results.

    `watch(label, episodes done, episodes in all)` is called as episodes finish. results.json is written when the run
    starts and after each cell; `run.complete` says whether all cells are there.

    Raises:
        DataError: `out` holds another run (the message names what differs), a corrupt file, or a second writer.
        UnknownNameError, MissingExtraError, OSError: as the data set, the engine and the disk have it.
    """
    with only_writer(out):
        bench = _Bench.load(settings)
        run = _same_run_or_new(out, bench.describe())
        done: dict[tuple[str, int], dict[tuple[str, int], Trajectory]] = {}
        for trajectory in resume_trajectories(out / TRAJECTORIES):
            cell = done.setdefault((trajectory.policy, trajectory.objectives), {})
            cell[trajectory.task_id, trajectory.sample] = trajectory
        total = len(settings.policies) * len(settings.objectives) * settings.tasks * settings.samples
        count = sum(map(len, done.values()))
        cells: list[dict[str, Any]] = []
        results = {"schema_version": RESULTS_SCHEMA_VERSION, "run": run, "cells": cells}
        write_json(out / RESULTS, results)
        with TrajectoryWriter(out / TRAJECTORIES, append=True) as writer:
            for policy in settings.policies:
                for objectives in settings.objectives:
                    label = f"{policy}, {objectives} objectives"
                    episodes = [(task, s) for task in bench.tasks[objectives] for s in range(settings.samples)]
                    found = done.pop((policy, objectives), {})
                    missing = [task for task in bench.tasks[objectives] if not _all_samples(task, found, settings)]
                    if watch:
                        watch(label, count, total)
                    for trajectory in bench.play(policy, missing, batch_size):
                        if (trajectory.task_id, trajectory.sample) in found:
                            continue  # of a task whose other samples were missing; it came out as it did before
                        writer.write(trajectory)
                        found[trajectory.task_id, trajectory.sample] = trajectory
                        count += 1
                        if watch:
                            watch(label, count, total)
                    # In the order of the tasks, whatever the order of finishing: sums of floats depend on it.
                    cell_rows = [found[task.id, s] for task, s in episodes]
                    cells.append(_cell(policy, objectives, bench, cell_rows))
                    write_json(out / RESULTS, results)
        run["complete"] = True
        write_json(out / RESULTS, results)
    return results


def _all_samples(task: Task, found: Mapping[tuple[str, int], Trajectory], settings: Settings) -> bool:
    return all((task.id, sample) in found for sample in range(settings.samples))


def _cell(policy: str, objectives: int, bench: _Bench, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    return {
        "policy": policy,
        "objectives": objectives,
        "engine": bench.engine.name,
        "guided": bench.settings.guided,
        "protocol": trajectories[0].protocol,
        "context": trajectories[0].context,
        **summarise(trajectories, seed=bench.settings.seed),
    }


def _same_run_or_new(out: Path, run: dict[str, Any]) -> dict[str, Any]:
    """The run that `out` holds if it is this one, `run` if it holds none; DataError names what differs otherwise."""
    if not (out / RESULTS).exists():
        if (out / TRAJECTORIES).exists():
            raise DataError(f"{out}: expected {RESULTS} beside {TRAJECTORIES}, got none. Name another folder.")
        return run
    old = read_json(out / RESULTS)
    if old.get("schema_version") != RESULTS_SCHEMA_VERSION:
        raise DataError(
            f"{out / RESULTS}: expected schema_version {RESULTS_SCHEMA_VERSION}, got {old.get('schema_version')!r}."
        )
    before = old.get("run", {})
    differs = [
        f"{part}.{name} was {_short(theirs)} and is now {_short(ours)}"
        for part in _IDENTITY
        for name, theirs, ours in _differences(before.get(part), run[part])
    ]
    if differs:
        raise DataError(f"{out}: holds another run: {'; '.join(differs)}. Name another folder, or remove this one.")
    return {**before, "complete": False}


def _differences(theirs: Any, ours: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    theirs = theirs if isinstance(theirs, dict) else {}
    names = list(dict.fromkeys([*ours, *theirs]))
    return [(name, theirs.get(name), ours.get(name)) for name in names if theirs.get(name) != ours.get(name)]


def _short(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
