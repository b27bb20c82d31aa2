"""Steps per second of the environments: one and a vector, with and without search, beside other suites in one run.

Every contestant plays the same episode: four searches, then an answer. A step is one action and its answer; the resets
in between take their time but are not counted. Contestants are measured in turn, several times over, so that a busy
moment of the machine does not fall on one of them alone; the table gives medians.

Without search, a retriever that finds nothing leaves the environment's own work. GEM is measured when `--gem-python`
names an interpreter that has `gem-llm`; its search server answers from a table, at the cost of the transport alone.
"""

from __future__ import annotations

import json as json_module
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import typer
from gymnasium.vector import SyncVectorEnv

from benchmarks.peers.plain_text_env import PlainTextEnv
from mempo_agents.provenance import git_revision, machine_class, versions
from mempo_env import SearchQAVectorEnv, load_dataset
from mempo_env.retrieval import get_retriever
from mempo_env.types import Hit

SEED = 0
SEARCHES = 4
TOP_K = 3
OBJECTIVES = 2
REFERENCE = "ours, vector, BM25"


class NullRetriever:
    """Finds nothing, at no cost."""

    name = "null"
    fingerprint = "null"

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [[] for _ in queries]


@dataclass
class Row:
    """One contestant. `cpu_ms_per_step` is its process's processor time: no server's, and None for worker processes."""

    name: str
    search: str
    environments: int
    steps_per_second: float
    lowest: float
    highest: float
    wall_ms_per_step: float
    cpu_ms_per_step: float | None
    reference_is_faster_by: float = float("nan")


@dataclass
class Contestant:
    """`play()` plays one episode in every environment and returns the number of steps made."""

    name: str
    search: str
    environments: int
    play: Callable[[], int]


def run(
    json: Annotated[Path | None, typer.Option(help="Write the rows and where they come from to this file.")] = None,
    quick: Annotated[bool, typer.Option(help="Short measurements: see that it runs, believe no digits.")] = False,
    gem_python: Annotated[
        Path | None, typer.Option(help="An interpreter that has gem-llm, see peers/gem_env.py.")
    ] = None,
    environments: Annotated[int, typer.Option(min=2, help="Environments in a vector.")] = 64,
) -> None:
    """Measure the environments' steps per second beside other suites."""
    seconds, repeats = (0.2, 3) if quick else (1.0, 9)
    dataset = load_dataset("world")
    retriever = get_retriever("bm25", dataset, "train")
    queries = [question.text for question in dataset.questions("train")[:64]]
    rows = measure(contestants(queries, environments), seconds, repeats)
    peer_versions: dict[str, str] = {}
    if gem_python is None:
        print("GEM is left out: name an interpreter that has gem-llm with --gem-python.", file=sys.stderr)
    else:
        found = retriever.search(queries, TOP_K)
        table = {
            q: [f"{h.passage.title}\n{h.passage.text}" for h in hits] for q, hits in zip(queries, found, strict=True)
        }
        gem_rows, peer_versions = measure_gem(gem_python, table, environments, seconds, repeats)
        rows += gem_rows
    reference = next(row.steps_per_second for row in rows if row.name == REFERENCE)
    for row in rows:
        row.reference_is_faster_by = reference / row.steps_per_second
    print_table(rows)
    if json is not None:
        report = {
            "schema_version": 1,
            "benchmark": "env",
            "command": "python -m benchmarks.performance " + shlex.join(["env", *sys.argv[2:]]),
            "seed": SEED,
            "quick": quick,
            "repeats": repeats,
            "seconds_each": seconds,
            "episode": {"searches": SEARCHES, "answers": 1, "objectives": OBJECTIVES, "top_k": TOP_K},
            "dataset": {"name": dataset.name, "fingerprint": dataset.fingerprint},
            "versions": {**versions(), **peer_versions},
            "machine": {**machine_class(), "cpu": cpu_model()},
            "revision": git_revision(),
            "rows": [asdict(row) for row in rows],
        }
        json.write_text(json_module.dumps(report, indent=2) + "\n", encoding="utf-8")
        print(f"Written: {json}")


def contestants(queries: Sequence[str], number: int) -> list[Contestant]:
    """Ours, in each form, and plain Gymnasium's, with and without search."""
    null = NullRetriever()

    def ours(protocol: str, retriever: Any) -> gym.Env:
        arguments = {"objectives": OBJECTIVES, "protocol": protocol, "retriever": retriever, "top_k": TOP_K}
        return gym.make("MemPO-WikiQA-v0", **arguments)

    def vector(protocol: str, retriever: Any) -> SearchQAVectorEnv:
        return SearchQAVectorEnv(number, objectives=OBJECTIVES, protocol=protocol, retriever=retriever, top_k=TOP_K)

    def sync(retriever: Any) -> SyncVectorEnv:
        return SyncVectorEnv([lambda: ours("mempo", retriever)] * number)

    mempo, react = texts("mempo", queries), texts("react", queries)
    plain = [*(f"<search>{query}</search>" for query in queries)], "<answer>nothing</answer>"
    pairs, passages, index = plain_material()
    return [
        Contestant("ours, one", "none", 1, single(ours("mempo", null), *mempo)),
        Contestant("ours, one, whole history", "none", 1, single(ours("react", null), *react)),
        Contestant("ours, one, BM25", "BM25", 1, single(ours("mempo", "bm25"), *mempo)),
        Contestant("ours, vector", "none", number, many(vector("mempo", null), *mempo)),
        Contestant(REFERENCE, "BM25, one batch", number, many(vector("mempo", "bm25"), *mempo)),
        Contestant(
            "ours, vector, BM25, whole history", "BM25, one batch", number, many(vector("react", "bm25"), *react)
        ),
        Contestant("ours in SyncVectorEnv, BM25", "BM25, one by one", number, many(sync("bm25"), *mempo)),
        Contestant("plain Gymnasium, one", "none", 1, single(limited(PlainTextEnv(pairs)), *plain)),
        Contestant(
            "plain Gymnasium, one, bm25s", "bm25s", 1, single(limited(PlainTextEnv(pairs, passages, index)), *plain)
        ),
        Contestant(
            "plain Gymnasium in SyncVectorEnv, bm25s",
            "bm25s, one by one",
            number,
            many(SyncVectorEnv([lambda: limited(PlainTextEnv(pairs, passages, index))] * number), *plain),
        ),
    ]


def limited(env: gym.Env) -> gym.Env:
    """What `gym.make` would add to an environment of one's own."""
    return gym.wrappers.OrderEnforcing(gym.wrappers.PassiveEnvChecker(env))


def plain_material() -> tuple[list[tuple[str, str]], list[tuple[str, str]], Any]:
    """The same questions and passages for the plain environment, with a bm25s index over the latter."""
    import bm25s

    dataset = load_dataset("world")
    pairs = [(question.text, question.answers[0]) for question in dataset.questions("train")]
    passages = [(passage.title, passage.text) for passage in dataset.passages("train") or ()]
    index = bm25s.BM25()
    index.index(bm25s.tokenize([" ".join(pair) for pair in passages], show_progress=False), show_progress=False)
    return pairs, passages, index


def texts(protocol: str, queries: Sequence[str]) -> tuple[list[str], str]:
    """A search text for every query, and an answer, as a policy would write them (some 60 words each)."""
    from mempo_env import get_protocol

    rules = get_protocol(protocol)
    memory = "Question 1: the person was born in the town named in the last result; the year is still missing. " * 2
    thought = "The first question needs the town's founder, so I look for the town next."
    searches = [rules.compose(memory=memory, thought=thought, query=query) for query in queries]
    return searches, rules.compose(memory=memory, thought=thought, answers=["nothing"] * OBJECTIVES)


def single(env: gym.Env, searches: Sequence[str], answer: str) -> Callable[[], int]:
    """Episodes in one environment."""
    env.reset(seed=SEED)
    played = 0

    def play() -> int:
        nonlocal played
        env.reset()
        for number in range(SEARCHES):
            env.step(searches[(played + number) % len(searches)])
        assert env.step(answer)[2]
        played += 1
        return SEARCHES + 1

    return play


def many(envs: Any, searches: Sequence[str], answer: str) -> Callable[[], int]:
    """Episodes in a vector environment; the step after the end begins anew."""
    envs.reset(seed=SEED)
    rows = range(envs.num_envs)

    def play() -> int:
        for number in range(SEARCHES):
            envs.step([searches[(row + number) % len(searches)] for row in rows])
        assert envs.step([answer] * len(rows))[2].all()
        envs.step([""] * len(rows))
        return (SEARCHES + 1) * len(rows)

    return play


def measure(contestants: Sequence[Contestant], seconds: float, repeats: int) -> list[Row]:
    """Each contestant for `seconds`, in turn, `repeats` times."""
    wall: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    cpu: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for contestant in contestants:
        contestant.play()
    for _ in range(repeats):
        for contestant in contestants:
            steps, start, cpu_start = 0, time.perf_counter(), time.process_time()
            while time.perf_counter() - start < seconds:
                steps += contestant.play()
            wall[contestant.name].append(steps / (time.perf_counter() - start))
            cpu[contestant.name].append((time.process_time() - cpu_start) / steps * 1000)
    return [row_of(c.name, c.search, c.environments, wall[c.name], statistics.median(cpu[c.name])) for c in contestants]


def measure_gem(
    python: Path, table: dict[str, list[str]], number: int, seconds: float, repeats: int
) -> tuple[list[Row], dict[str, str]]:
    """GEM's rows, measured by its own interpreter."""
    job = {
        "questions": [{"question": query, "answer": "nothing"} for query in table],
        "searches": [f"<think>I look for the town next.</think><search>{query}</search>" for query in table],
        "answer": "<answer>nothing</answer>",
        "per_episode": SEARCHES,
        "table": table,
        "top_k": TOP_K,
        "rows": number,
        "seconds": seconds,
        "repeats": repeats,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json_module.dumps(job), encoding="utf-8")
        script = Path(__file__).parent / "peers" / "gem_env.py"
        done = subprocess.run([str(python), str(script), str(path)], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"GEM's part failed in {python}; its messages stand above.")
    results = json_module.loads(done.stdout.strip().splitlines()[-1])
    names = {
        "single": ("GEM, one", 1),
        "sync": ("GEM, SyncVectorEnv", number),
        "async": ("GEM, AsyncVectorEnv", number),
    }
    rows = [
        row_of(
            name,
            "HTTP, from a table",
            count,
            results[key]["steps_per_second"],
            # The work of the asynchronous vector is done in processes of their own.
            None if key == "async" else statistics.median(results[key]["cpu_ms_per_step"]),
        )
        for key, (name, count) in names.items()
    ]
    return rows, {"gem-llm": results["versions"]["gem-llm"], "gem python": results["versions"]["python"]}


def row_of(name: str, search: str, number: int, rates: Sequence[float], cpu: float | None) -> Row:
    median = statistics.median(rates)
    return Row(name, search, number, median, min(rates), max(rates), 1000 / median, cpu)


def cpu_model() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def print_table(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Steps per second (median; lowest to highest)")
    for heading in ("contestant", "search"):
        table.add_column(heading, no_wrap=True)
    for heading in ("envs", "steps/s", "lowest", "highest", "ms/step", "CPU ms/step", "our vector is faster by"):
        table.add_column(heading, justify="right")
    for row in rows:
        cpu = "" if row.cpu_ms_per_step is None else f"{row.cpu_ms_per_step:.3f}"
        figures = (f"{value:,.0f}" for value in (row.steps_per_second, row.lowest, row.highest))
        ratio = f"{row.reference_is_faster_by:.2f}x"
        table.add_row(row.name, row.search, str(row.environments), *figures, f"{row.wall_ms_per_step:.3f}", cpu, ratio)
    Console(width=140).print(table)
