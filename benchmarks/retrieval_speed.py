"""Indexes and servers at growing sizes: build time, disk, memory, queries a second, recall, and latency under load.

    python -m benchmarks.performance retrieval --passages 100000 --folder DIR --json FILE
    python -m benchmarks.performance retrieval --passages 1000000 --folder DIR --json FILE     (hours on two cores)
    python -m benchmarks.performance retrieval --quick

Passages are articles of the procedural world, queries are the searches of its questions. Each cell runs in a process of
its own and is written to DIR/cells.jsonl when it is done: the same command goes on where it stopped. Vectors come from
`benchmarks.projection_encoder` unless --encoder names a model: times, sizes and memory do not depend on what the
vectors mean, recall does. Files are read once before they are searched, as `mempo serve` does; not so by the servers
that are "limited" to a quarter of the plain server's memory, cache included, which begin cold (Linux, as root).
"""

from __future__ import annotations

import json as json_module
import multiprocessing
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

import benchmarks.projection_encoder  # noqa: F401  registers the encoder "projection"
from benchmarks.load import load
from benchmarks.memory_limit import NoLimitError, limited, put_out
from mempo_agents.commands.serve import default_workers, threads_within
from mempo_agents.provenance import git_revision, machine_class, versions

CLIENTS = (1, 16, 128)
TOP_K = 3
_LEAST_MIB = 300


def run(
    passages: Annotated[int, typer.Option(min=1000, help="Passages of the world.")] = 100_000,
    encoder: Annotated[str, typer.Option(help="projection, minilm, or a sentence-transformers model.")] = "projection",
    folder: Annotated[Path | None, typer.Option(help="Where indexes and finished cells are kept.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the results here, and a table beside it (.md).")] = None,
    seconds: Annotated[float, typer.Option(min=0.5, help="Length of each load test.")] = 10.0,
    servers: Annotated[
        bool, typer.Option(help="Also load-test the servers; wants a machine with nothing else to do.")
    ] = True,
    quick: Annotated[bool, typer.Option("--quick", help="2,000 passages and one second a load test.")] = False,
) -> None:
    """Build, measure, print, and write."""
    if quick:
        passages, seconds = min(passages, 2000), min(seconds, 1.0)
    with tempfile.TemporaryDirectory() as temporary:
        base = (folder or Path(temporary)) / f"{encoder.replace('/', '_')}-{passages}"
        base.mkdir(parents=True, exist_ok=True)
        cells = _Cells(base / "cells.jsonl")
        for name, cell in plan(base, passages, encoder, seconds):
            if servers or not name.startswith("serve "):
                cells.run(name, cell)
        for name, cell in limited_plan(base, passages, seconds, cells.rows) if servers else ():
            try:
                cells.run(name, cell)
            except NoLimitError as error:
                print(f"{name}: left out. {error}", file=sys.stderr)
        rows = cells.rows
    text = table(rows, passages, encoder)
    print(text)
    if json is not None:
        command = shlex.join(["python", "-m", "benchmarks.performance", "retrieval", *sys.argv[2:]])
        result = {
            "schema_version": 1,
            "command": command,
            "passages": passages,
            "encoder": encoder,
            "machine": machine_class(),
            "versions": versions(),
            "git": git_revision(),
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "cells": rows,
        }
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_text(json_module.dumps(result, indent=1) + "\n", encoding="utf-8")
        json.with_suffix(".md").write_text(f"# Retrieval speed\n\n`{command}`\n\n{text}\n", encoding="utf-8")


def plan(base: Path, passages: int, encoder: str, seconds: float) -> list[tuple[str, Callable[[], dict[str, Any]]]]:
    """The cells in order: what to build, then what to measure on it."""
    lists = max(16, 1024 if passages <= 200_000 else 4096) if passages >= 50_000 else max(16, passages // 100)
    factories = {
        "flat": "Flat",
        "hnsw": "HNSW32",
        "ivf-sq8": f"IVF{lists}_HNSW32,SQ8" if lists >= 1024 else f"IVF{lists},SQ8",
        "ivf-pq": f"IVF{lists},PQ48x{8 if passages >= 10_000 else 4}",  # 256 centroids want 10,000 vectors
    }
    steps: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("corpus", lambda: _alone(build_world, str(base), passages)),
        ("build bm25", lambda: _alone(build_lexical, str(base))),
    ]
    for name, factory in factories.items():
        steps.append((f"build {name}", lambda n=name, f=factory: _alone(build_vectors, str(base), n, f, encoder)))  # type: ignore[misc]
    for name in ("bm25", *factories):
        steps.append((f"search {name}", lambda n=name: _alone(search_speed, str(base), n, passages)))  # type: ignore[misc]
    for name in ("flat", "ivf-sq8", "bm25"):
        for style in ("gathering", "one by one", "plain"):
            cell = partial(serve_speed, base, name, style, passages, seconds)
            steps.append((f"serve {name} {style}", cell))
    return steps


def limited_plan(base: Path, passages: int, seconds: float, rows: dict[str, dict[str, Any]]) -> list[tuple[str, Any]]:
    """Ours in a quarter of the memory that the plain server had in use: with the flat index, or with BM25.

    Nothing where a quarter is less than the interpreter and its libraries take.
    """
    steps = []
    for name, against in (("ivf-sq8", "flat"), ("bm25", "bm25")):
        quarter = round(rows[f"serve {against} plain"]["resident_mib"] / 4)
        if quarter >= _LEAST_MIB:
            cell = partial(serve_speed, base, name, "limited", passages, seconds, quarter)
            steps.append((f"serve {name} limited", cell))
    return steps


class _Cells:
    """Finished cells as JSON lines; a cell that is there is not run again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json_module.loads(line)
                self.rows[row.pop("cell")] = row

    def run(self, name: str, cell: Callable[[], dict[str, Any]]) -> None:
        if name in self.rows:
            return
        started = time.perf_counter()
        row = cell()
        row["wall_seconds"] = round(time.perf_counter() - started, 1)
        self.rows[name] = row
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json_module.dumps({"cell": name, **row}) + "\n")
        print(f"{name}: {row}", file=sys.stderr, flush=True)


def _alone(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Run in a fresh process, so that its memory and its processor time are its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_timed, (function, arguments))


def _timed(function: Callable[..., dict[str, Any]], arguments: tuple[Any, ...]) -> dict[str, Any]:
    row = function(*arguments)
    return {**row, "cpu_seconds": round(time.process_time(), 2)}


def _folder(base: str | Path, index: str) -> Path:
    """A folder for each index, as `mempo serve` wants it; they share one corpus by a link."""
    folder = Path(base) / ("store" if index == "bm25" else index)
    folder.mkdir(exist_ok=True)
    if not (folder / "corpus").exists() and index != "corpus":
        (folder / "corpus").symlink_to(Path(base).resolve() / "corpus")
    return folder


def _disk(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def _memory(pid: int | str = "self") -> dict[str, float]:
    """Resident memory in MiB: all of it, and the part that is no mapped file."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key in ("VmRSS", "RssAnon", "VmHWM"):
            found[key] = int(value.split()[0]) / 1024
    return {
        "resident_mib": round(found["VmRSS"], 1),
        "anonymous_mib": round(found["RssAnon"], 1),
        "peak_mib": round(found["VmHWM"], 1),
    }


def build_world(base: str, passages: int) -> dict[str, Any]:
    from mempo_env.retrieval.corpus import Corpus, build_corpus
    from mempo_env.retrieval.sources import read_source

    started = time.perf_counter()
    source = f"world:size={passages}"
    report = build_corpus(read_source(source), Path(base) / "corpus", source=source, overwrite=True)
    built = time.perf_counter() - started
    started = time.perf_counter()
    corpus = Corpus(Path(base) / "corpus")
    opened = time.perf_counter() - started
    started = time.perf_counter()
    step = max(1, len(corpus) // 10_000)
    fetched = sum(len(corpus[row].id) > 0 for row in range(0, len(corpus), step))
    return {
        "passages": report.n_out,
        "duplicates": report.n_duplicates,
        "build_seconds": round(built, 2),
        "open_ms": round(1000 * opened, 2),
        "fetch_us": round(1e6 * (time.perf_counter() - started) / fetched, 2),
        "disk_mib": round(_disk(Path(base) / "corpus") / 2**20, 1),
        **_memory(),
    }


def build_lexical(base: str) -> dict[str, Any]:
    from mempo_env.retrieval.bm25_disk import build_bm25
    from mempo_env.retrieval.corpus import Corpus

    folder = _folder(base, "bm25")
    manifest = build_bm25(Corpus(folder / "corpus"), folder / "bm25", overwrite=True)
    size = _disk(folder / "bm25")
    return {"build_seconds": manifest["build_seconds"], "disk_mib": round(size / 2**20, 1), **_memory()}


def build_vectors(base: str, name: str, factory: str, encoder: str) -> dict[str, Any]:
    from mempo_env.retrieval.build import build_dense
    from mempo_env.retrieval.corpus import Corpus

    folder = _folder(base, name)
    reuse = None if name == "flat" else Path(base) / "flat" / "dense"
    manifest = build_dense(
        Corpus(folder / "corpus"), folder / "dense", encoder=encoder, factory=factory, reuse=reuse, overwrite=True
    )
    return {
        "factory": factory,
        "effort": manifest["effort"],
        "build_seconds": manifest["build_seconds"],
        "disk_mib": round((folder / "dense" / "index.faiss").stat().st_size / 2**20, 1),
        "vectors_mib": round((folder / "dense" / "embeddings.npy").stat().st_size / 2**20, 1),
        **manifest["recall"],
        **_memory(),
    }


def questions_of(passages: int, count: int = 2000) -> list[str]:
    """Searches that an agent makes: those of the evidence of the world's questions."""
    from mempo_env.tasks import load_dataset

    world: Any = load_dataset(f"world:size={passages}")
    asked = (link.query for question in world.iter_questions(world.splits[0]) for link in question.evidence)
    return list(dict.fromkeys(islice(asked, count)))


def search_speed(base: str, name: str, passages: int) -> dict[str, Any]:
    from mempo_env.retrieval.memory import read_ahead
    from mempo_env.retrieval.store import open_retriever

    queries = questions_of(passages)
    read_ahead(_folder(base, name))
    before = _memory()
    started = time.perf_counter()
    retriever = open_retriever(_folder(base, name))
    opened = time.perf_counter() - started
    retriever.search(queries[:1], TOP_K)
    speeds = {}
    for batch in (1, 64):
        done, began, cpu_began = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began < 5 and done < 20_000:
            at = done % max(1, len(queries) - batch)
            retriever.search(queries[at : at + batch], TOP_K)
            done += batch
        speeds[f"queries_per_second_batch_{batch}"] = round(done / (time.perf_counter() - began), 1)
        speeds[f"queries_per_cpu_second_batch_{batch}"] = round(done / (time.process_time() - cpu_began), 1)
    after = _memory()
    grown = round(after["resident_mib"] - before["resident_mib"], 1)
    return {"open_ms": round(1000 * opened, 1), **speeds, "grown_mib": grown, **after}


def serve_speed(
    base: Path, name: str, style: str, passages: int, seconds: float, limit_mib: int | None = None
) -> dict[str, Any]:
    from mempo_env.retrieval.memory import read_ahead

    queries = questions_of(passages)
    if limit_mib is None:
        read_ahead(_folder(base, name))
    else:
        put_out(_folder(base, name))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    kind = "bm25" if name == "bm25" else "dense"
    command = [sys.executable, "-m", "benchmarks.search_servers", "plain" if style == "plain" else "ours"]
    command += [str(_folder(base, name)), "--kind", kind, "--port", str(port)]
    if style == "one by one":
        command += ["--batch", "1"]
    environment = dict(os.environ)
    if style != "plain":
        environment.setdefault("OMP_NUM_THREADS", str(threads_within(default_workers("cpu"))))  # as `mempo serve` does
    started = time.perf_counter()
    with nullcontext() if limit_mib is None else limited(limit_mib) as join:
        root = Path(__file__).resolve().parents[1]
        server = subprocess.Popen(command, cwd=root, env=environment, preexec_fn=join)
        return {**_under_load(server, port, queries, seconds, started), "limit_mib": limit_mib}


def _under_load(
    server: subprocess.Popen[bytes], port: int, queries: list[str], seconds: float, started: float
) -> dict[str, Any]:
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(f"{url}/health", server)
        ready = time.perf_counter() - started
        loads = []
        for clients in CLIENTS:
            cpu = _cpu_seconds(server.pid)
            row = load(url, clients, queries, seconds, TOP_K)
            # Holds on a busy machine too, where requests per second say more about the machine.
            spent = _cpu_seconds(server.pid) - cpu
            loads.append({**row, "requests_per_cpu_second": round(row["answered"] / spent, 1) if spent else None})
        return {"ready_seconds": round(ready, 1), "loads": loads, **_memory(server.pid)}
    finally:
        server.terminate()
        server.wait(30)


def _cpu_seconds(pid: int) -> float:
    """Processor time that a process has used, all threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _wait_for(url: str, server: subprocess.Popen[bytes], seconds: float = 1800.0) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"The server ended with code {server.returncode} before it was ready.")
        try:
            with opener.open(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"{url}: not ready after {seconds} seconds.")


def table(rows: dict[str, dict[str, Any]], passages: int, encoder: str) -> str:
    """The cells as Markdown."""
    corpus = rows["corpus"]
    lines = [
        f"{corpus['passages']:,} passages (world, size {passages:,}), vectors by {encoder}, top {TOP_K}.",
        "",
        f"Corpus: built in {corpus['build_seconds']} s, {corpus['disk_mib']:,} MiB, opened in {corpus['open_ms']} ms, "
        f"a passage in {corpus['fetch_us']} us.",
        "",
        "| index | factory | build s (CPU s) | index MiB | recall@3 | q/s batch 1 (a CPU s) | q/s batch 64 (a CPU s) | "
        "grown MiB | resident MiB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell, row in rows.items():
        if not cell.startswith("search "):
            continue
        name = cell.removeprefix("search ")
        built = rows[f"build {name}"]
        recall = built.get("recall_at_3", 1.0)
        lines.append(
            f"| {name} | {built.get('factory', 'exact')} | {built['build_seconds']:.0f} "
            f"({built['cpu_seconds']:.0f}) | {built['disk_mib']:,} | {recall:.3f} | "
            f"{row['queries_per_second_batch_1']:,} ({row['queries_per_cpu_second_batch_1']:,}) | "
            f"{row['queries_per_second_batch_64']:,} ({row['queries_per_cpu_second_batch_64']:,}) | "
            f"{row['grown_mib']:,} | {row['resident_mib']:,} |"
        )
    lines += [
        "",
        "| server | style | clients | requests/s | per CPU s | median ms | 99 % ms | errors | resident MiB | "
        "anonymous MiB | limit MiB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell, row in rows.items():
        if cell.startswith("serve "):
            _, name, style = cell.split(" ", 2)
            for one in row["loads"]:
                lines.append(
                    f"| {name} | {style} | {one['clients']} | {one['requests_per_second']:,} | "
                    f"{one['requests_per_cpu_second']} | {one['median_ms']} | "
                    f"{one['p99_ms']} | {one['errors']} | {row['resident_mib']:,} | {row['anonymous_mib']:,} | "
                    f"{row.get('limit_mib') or 'none'} |"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(run)
