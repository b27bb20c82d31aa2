"""Passages into vectors on disk, in shards, resumable after a crash: what a marker says is done is never coded again.

folder/embeddings.npy   float16 [N, D], written shard by shard at its place
folder/plan.json        what is being coded: corpus, rows, encoder, shard size; a resume must match it
folder/done/000042      checksum of shard 42 and how many of its passages were truncated; written after its rows are
                        safely on disk
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mempo_env.errors import DataError, MempoError
from mempo_env.json_files import write_json
from mempo_env.retrieval.corpus import Corpus
from mempo_env.retrieval.dense import EMBEDDINGS
from mempo_env.retrieval.encoders import Encoder, get_encoder, passage_text
from mempo_env.retrieval.indexes import Progress

PLAN = "plan.json"
DONE = "done"


@dataclass(frozen=True, slots=True)
class EncodingJob:
    """One corpus range to be coded into `folder`. Plain values, so that worker processes can be told."""

    corpus: str
    folder: str
    start: int
    stop: int
    shard_rows: int
    encoder: str
    options: tuple[tuple[str, Any], ...]

    @property
    def shards(self) -> int:
        return -(-(self.stop - self.start) // self.shard_rows)

    def span(self, shard: int) -> tuple[int, int]:
        """Rows of the corpus in a shard, half-open."""
        first = self.start + shard * self.shard_rows
        return first, min(first + self.shard_rows, self.stop)


def prepare(job: EncodingJob, plan: dict[str, Any], dimensions: int) -> list[int]:
    """Make the files, or find those of an earlier run, and return the shards still to be coded.

    Raises DataError when the folder holds the unfinished work of another plan. Shards whose rows do not match their
    marker (a disk that lost its last writes) are coded again.
    """
    folder = Path(job.folder)
    (folder / DONE).mkdir(parents=True, exist_ok=True)
    plan_path, path = folder / PLAN, folder / EMBEDDINGS
    if plan_path.exists():
        found = json.loads(plan_path.read_text(encoding="utf-8"))
        if found != plan:
            different = sorted(key for key in {*found, *plan} if found.get(key) != plan.get(key))
            raise DataError(
                f"{folder}: unfinished work of another build lies here; it differs in {', '.join(different)} "
                f"({', '.join(f'{key}: {found.get(key)!r} there, {plan.get(key)!r} now' for key in different)}). "
                "Repeat the old command to finish it, or remove the folder to start again."
            )
    if not path.exists():
        shape = (job.stop - job.start, dimensions)
        temporary = folder / f".{EMBEDDINGS}.tmp"
        np.lib.format.open_memmap(temporary, "w+", np.float16, shape).flush()
        os.replace(temporary, path)
        for marker in (folder / DONE).iterdir():
            marker.unlink()
    write_json(plan_path, plan)
    embeddings = np.load(path, mmap_mode="r", allow_pickle=False)
    todo = []
    for shard in range(job.shards):
        marker = folder / DONE / f"{shard:06d}"
        first, last = job.span(shard)
        rows = embeddings[first - job.start : last - job.start]
        if not marker.exists() or marker.read_text().split()[0] != f"{zlib.crc32(rows.tobytes()):08x}":
            todo.append(shard)
    return todo


def encode_shard(job: EncodingJob, shard: int, corpus: Corpus, encoder: Encoder) -> None:
    """Code one shard, put it in its place, and mark it done."""
    first, last = job.span(shard)
    texts = [passage_text(passage) for passage in corpus.iter_rows(first, last)]
    # Similar lengths together waste less padding; the results go back to their rows.
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]), reverse=True)
    vectors = np.empty((len(texts), encoder.dimensions), np.float16)
    vectors[order] = encoder.encode_passages([texts[i] for i in order]).astype(np.float16)
    data = vectors.tobytes()
    path = Path(job.folder) / EMBEDDINGS
    with open(path, "r+b") as file:
        version = np.lib.format.read_magic(file)
        assert version == (1, 0), version
        np.lib.format.read_array_header_1_0(file)
        file.seek((first - job.start) * encoder.dimensions * 2, os.SEEK_CUR)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    marker = Path(job.folder) / DONE / f"{shard:06d}"
    temporary = marker.with_name(f".{marker.name}.{os.getpid()}.tmp")
    temporary.write_text(f"{zlib.crc32(data):08x} {encoder.count_truncated(texts)}")
    os.replace(temporary, marker)


def encode(
    job: EncodingJob,
    todo: Sequence[int],
    encoder: Encoder,
    devices: Sequence[str],
    progress: Progress | None = None,
) -> None:
    """Code the shards `todo`: here for one device, else in one process a device (a device may be named twice)."""
    total = job.stop - job.start
    done = total - sum(last - first for first, last in map(job.span, todo))
    runs = _in_processes(job, todo, devices) if len(devices) > 1 else _here(job, todo, encoder)
    if progress:
        progress("encoding", done, total)
    for shard in runs:
        first, last = job.span(shard)
        done += last - first
        if progress:
            progress("encoding", done, total)


def _here(job: EncodingJob, todo: Sequence[int], encoder: Encoder) -> Iterator[int]:
    corpus = Corpus(job.corpus)
    for shard in todo:
        encode_shard(job, shard, corpus, encoder)
        yield shard


def _in_processes(job: EncodingJob, todo: Sequence[int], devices: Sequence[str]) -> Iterator[int]:
    context = multiprocessing.get_context("spawn")  # CUDA and threads do not survive a fork
    queue = context.SimpleQueue()
    for device in devices:
        queue.put(device)
    try:
        with ProcessPoolExecutor(len(devices), context, _start_worker, (job, queue)) as pool:
            waiting: dict[Future[None], int] = {}
            for shard in todo:
                waiting[pool.submit(_work, shard)] = shard
                if len(waiting) >= 2 * len(devices):
                    yield from _finished(waiting)
            while waiting:
                yield from _finished(waiting)
    except BrokenProcessPool as error:
        raise DataError(
            "An encoding process died, most often for want of memory. What is done is kept: run the same command "
            "again, with fewer --devices or a smaller batch."
        ) from error
    finally:
        queue.close()


def _finished(waiting: dict[Future[None], int]) -> Iterator[int]:
    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
        shard = waiting.pop(future)
        future.result()
        yield shard


_worker: tuple[EncodingJob, Corpus, Encoder] | None = None


def _start_worker(job: EncodingJob, queue: Any) -> None:
    global _worker
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    encoder = get_encoder(job.encoder, **{**dict(job.options), "device": queue.get()})
    _worker = (job, Corpus(job.corpus), encoder)


def _work(shard: int) -> None:
    if _worker is None:
        raise MempoError("The encoding worker was not started.")
    job, corpus, encoder = _worker
    encode_shard(job, shard, corpus, encoder)


def truncated_total(job: EncodingJob) -> int:
    """Passages that were longer than the encoder reads, over all shards, also those of earlier runs."""
    markers = (Path(job.folder) / DONE / f"{shard:06d}" for shard in range(job.shards))
    return sum(int(marker.read_text().split()[1]) for marker in markers)


class Clock:
    """An honest remaining time: from the speed of this run only, over its last minute of work."""

    def __init__(self) -> None:
        self._points: list[tuple[float, int]] = []

    def remaining_seconds(self, done: int, total: int) -> float | None:
        """Seconds left at the recent speed, or None before there is a speed to go by."""
        now = time.monotonic()
        self._points.append((now, done))
        while len(self._points) > 2 and self._points[0][0] < now - 60:
            self._points.pop(0)
        then, before = self._points[0]
        gained = done - before
        return (total - done) * (now - then) / gained if gained > 0 else None
