"""Building dense indexes: estimated up front, encoded resumably, measured against exact search.

While it works, everything lies in `<folder>.partial`; the finished folder takes its name at the end. Run the same
command again after a crash or a kill, and it goes on where it was.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mempo_env.errors import DataError
from mempo_env.json_files import write_json
from mempo_env.retrieval import storage
from mempo_env.retrieval.corpus import Corpus
from mempo_env.retrieval.dense import EMBEDDINGS, SCORE_DECIMALS, DenseRetriever, load_embeddings
from mempo_env.retrieval.encoders import Encoder, get_encoder
from mempo_env.retrieval.encoding import DONE, PLAN, EncodingJob, encode, prepare, truncated_total
from mempo_env.retrieval.exact import top_inner_products
from mempo_env.retrieval.indexes import Progress, check_rows
from mempo_env.retrieval.memory import require_memory
from mempo_env.retrieval.vectors import (
    INDEX,
    bytes_per_vector,
    create_index,
    default_candidates,
    default_effort,
    import_faiss,
    most_effort,
    set_effort,
    train_and_add,
    training_rows,
)

SHARD_ROWS = 2048
_ADD_ROWS = 16_384
_ENCODER_BYTES = 1 << 30
_RECALL_AT = (1, 3, 10)
_WORTH_DOUBLING = 0.004  # of recall at 3


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a dense index will take, in bytes: files at their largest, and memory while it is built and served.

    memory_serve_bytes is the size of what a search may touch in mapped files; what stays resident is less.
    """

    disk_bytes: int
    memory_build_bytes: int
    memory_serve_bytes: int


def estimate_dense(count: int, dimensions: int, factory: str, *, keep_embeddings: bool = True) -> Estimate:
    """The needs of an index of `count` vectors. Raises ValueError for a factory FAISS refuses, or too many lists."""
    index = int(count * bytes_per_vector(factory, dimensions))
    embeddings = count * dimensions * 2
    training = training_rows(factory, dimensions, count) * dimensions * 4
    return Estimate(
        disk_bytes=index + embeddings,
        memory_build_bytes=index + training + _ADD_ROWS * dimensions * 4,
        memory_serve_bytes=index + (embeddings if keep_embeddings else 0),
    )


def build_dense(
    corpus: Corpus,
    folder: str | Path,
    *,
    encoder: str | Encoder = "minilm",
    encoder_options: dict[str, Any] | None = None,
    factory: str = "Flat",
    effort: int | None = None,
    rows: tuple[int, int] | None = None,
    devices: Sequence[str] = ("cpu",),
    keep_embeddings: bool = True,
    reuse: str | Path | None = None,
    sample: int = 200,
    target_recall: float = 0.95,
    seed: int = 0,
    shard_rows: int = SHARD_ROWS,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Encode and index the passages of `rows` (start, stop; default all), and return the index's manifest.

    Args:
        encoder: a name, or an instance (then one process codes, whatever `devices` says).
        encoder_options: arguments of `SentenceEncoder` but the device, such as a prefix or max_tokens.
        factory: a FAISS factory string. effort: lists probed or candidates kept; None takes the least that reaches
            `target_recall` at 3 on the sample, as far as more effort helps.
        devices: where to encode, one process each: ("cuda:0", "cuda:1"), or ("cpu", "cpu") for two processes.
        keep_embeddings: keep the float16 vectors beside the index, from which candidates are ranked again.
        reuse: the folder of another dense index of the same passages and encoder; its vectors are used, nothing is
            coded.
        sample: queries (passages' own first words) on which recall against exact search is measured; 0 for none.

    Raises DataError when disk or memory do not suffice, FileExistsError where the folder exists without `overwrite`.
    """
    started = time.perf_counter()
    folder = Path(folder)
    if folder.exists() and not overwrite:
        raise FileExistsError(f"{folder} exists. Choose another folder, or pass overwrite=True (`--overwrite`).")
    if not devices:
        raise ValueError("devices: expected at least one, such as ('cpu',), got none.")
    start, stop = check_rows(rows, len(corpus))
    count = stop - start
    options = dict(encoder_options or {})
    model = get_encoder(encoder, **options, device=devices[0]) if isinstance(encoder, str) else encoder
    estimate = estimate_dense(count, model.dimensions, factory, keep_embeddings=keep_embeddings)
    partial = folder.with_name(f"{folder.name}.partial")
    here = sum(p.stat().st_size for p in partial.rglob("*") if p.is_file()) if partial.exists() else 0
    storage.require_space(partial, estimate.disk_bytes - here, f"A dense index of {count} passages ({factory})")
    require_memory(
        estimate.memory_build_bytes + _ENCODER_BYTES,
        f"Building {factory!r} for {count} passages",
        "Choose a smaller index (IVF..,SQ8 or IVF..,PQ), or build parts with `--rows` and search them as shards.",
    )
    name = encoder if isinstance(encoder, str) else ""
    job = EncodingJob(str(corpus.folder), str(partial), start, stop, shard_rows, name, tuple(sorted(options.items())))
    plan = {
        "corpus_count": len(corpus),
        "corpus_checksum": corpus.checksum,
        "rows": [start, stop],
        "encoder": model.name,
        "dimensions": model.dimensions,
        "shard_rows": shard_rows,
    }
    if reuse is not None:
        n_truncated = _take_embeddings(Path(reuse), partial, plan)
    else:
        todo = prepare(job, plan, model.dimensions)
        encode(job, todo, model, devices if name else devices[:1], progress)
        n_truncated = truncated_total(job)
    embeddings = np.load(partial / EMBEDDINGS, mmap_mode="r", allow_pickle=False)
    chosen = effort if effort is not None else default_effort(factory, model.dimensions)
    _index(embeddings, factory, chosen, partial, seed, progress)
    manifest: dict[str, Any] = {
        "kind": "dense",
        "schema_version": storage.SCHEMA_VERSION,
        "count": count,
        "rows": [start, stop],
        "corpus_count": len(corpus),
        "corpus_checksum": corpus.checksum,
        "encoder": {"model": name, "name": model.name, "options": options},
        "dimensions": model.dimensions,
        "factory": factory,
        "effort": chosen,
        "candidates": default_candidates(factory),
        "seed": seed,
        "keep_embeddings": keep_embeddings,
        "report": {"n_in": count, "n_out": count, "n_truncated": n_truncated},
    }
    write_json(partial / storage.MANIFEST, manifest)
    if sample:
        if progress:
            progress("measuring recall", 0, 1)
        queries = RecallSample(corpus, partial, model, sample, seed)
        if effort is None and chosen is not None:
            most = most_effort(factory, model.dimensions)
            manifest["effort"], manifest["recall"] = _choose_effort(queries, chosen, most, target_recall, progress)
        else:
            manifest["recall"] = queries.measure(effort)
        if progress:
            progress("measuring recall", 1, 1)
    manifest["build_seconds"] = round(time.perf_counter() - started, 3)
    write_json(partial / storage.MANIFEST, manifest)
    if not keep_embeddings:
        (partial / EMBEDDINGS).unlink()
    (partial / PLAN).unlink(missing_ok=True)
    shutil.rmtree(partial / DONE, ignore_errors=True)
    storage.replace_folder(partial, folder)
    return manifest


def _take_embeddings(source: Path, partial: Path, plan: dict[str, Any]) -> int:
    """Link (or copy) the vectors of the index `source` into `partial`; returns its count of truncated passages."""
    manifest = storage.read_manifest(source, "dense")
    load_embeddings(source, manifest)
    there = {**manifest, "encoder": manifest["encoder"]["name"]}
    different = [key for key in plan if key != "shard_rows" and there[key] != plan[key]]
    if different:
        raise DataError(
            f"{source}: its vectors cannot be used here, they differ in "
            + ", ".join(f"{key} ({there[key]!r} there, {plan[key]!r} here)" for key in different)
            + "."
        )
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        os.link(source / EMBEDDINGS, partial / EMBEDDINGS)
    except OSError:
        shutil.copyfile(source / EMBEDDINGS, partial / EMBEDDINGS)
    return int(manifest["report"]["n_truncated"])


def _index(
    embeddings: np.ndarray, factory: str, effort: int | None, folder: Path, seed: int, progress: Progress | None
) -> None:
    count, dimensions = embeddings.shape
    index = create_index(factory, dimensions)
    n_training = training_rows(factory, dimensions, count)
    chosen = np.sort(np.random.default_rng(seed).choice(count, n_training, replace=False))
    training = embeddings[chosen].astype(np.float32)
    if progress and n_training:
        progress(f"training on {n_training} vectors", 0, 1)

    def blocks() -> Iterator[np.ndarray]:
        for first in range(0, count, _ADD_ROWS):
            yield embeddings[first : first + _ADD_ROWS].astype(np.float32)

    for done in train_and_add(index, training, blocks(), seed):
        if progress:
            progress("indexing", done, count)
    if effort is not None:
        set_effort(index, effort)
    import_faiss().write_index(index, str(folder / INDEX))


class RecallSample:
    """Queries with their exact answers, to judge an index by: titles and first eight words of passages drawn by `seed`.

    Words that occur, not whole passages. Exact search goes over all float16 vectors in `folder`.
    """

    def __init__(self, corpus: Corpus, folder: Path, encoder: Encoder, sample: int, seed: int) -> None:
        self._corpus, self._folder, self._encoder, self._seed = corpus, folder, encoder, seed
        self._first, last = storage.read_manifest(folder, "dense")["rows"]
        chosen = np.random.default_rng(seed).choice(last - self._first, min(sample, last - self._first), replace=False)
        queries = []
        for row in np.sort(chosen):
            passage = corpus[self._first + int(row)]
            queries.append(" ".join([passage.title, *passage.text.split()[:8]]))
        self._vectors = encoder.encode_queries(queries)
        self._embeddings = np.load(folder / EMBEDDINGS, mmap_mode="r", allow_pickle=False)
        depth = min(max(_RECALL_AT), len(self._embeddings))
        _, self._exact = top_inner_products(self._vectors, self._embeddings, depth)

    def measure(self, effort: int | None) -> dict[str, Any]:
        """Share of the exact top k that the index also returns at this effort, averaged over the queries."""
        retriever = DenseRetriever(self._corpus, self._folder, encoder=self._encoder, effort=effort)
        started = time.perf_counter()
        found = retriever.rank(self._vectors, max(_RECALL_AT))
        seconds = (time.perf_counter() - started) / len(found)
        shares: dict[int, list[float]] = {k: [] for k in _RECALL_AT}
        for vector, ranked, best in zip(self._vectors, found, self._exact, strict=True):
            rows = np.array([row - self._first for row, _ in ranked], np.int64)
            scores = np.round(self._embeddings[rows].astype(np.float64) @ vector, SCORE_DECIMALS)
            best_scores = np.round(self._embeddings[best].astype(np.float64) @ vector, SCORE_DECIMALS)
            for k in _RECALL_AT:
                # By score and not by row: of passages that tie for the last place, any is right.
                shares[k].append(float((scores[:k] >= best_scores[:k].min()).sum()) / len(best_scores[:k]))
        recall = {f"recall_at_{k}": round(float(np.mean(shares[k])), 4) for k in _RECALL_AT}
        about = {"queries": len(found), "seed": self._seed, "search_seconds_per_query": round(seconds, 6)}
        return {**recall, **about}


def _choose_effort(
    sample: RecallSample, first: int, most: int, target: float, progress: Progress | None
) -> tuple[int, dict[str, Any]]:
    """The smallest of first, 2 * first, .. <= most that reaches `target` at 3, or from which doubling stops helping."""
    effort, recall = first, sample.measure(first)
    while recall["recall_at_3"] < target and effort < most:
        more = min(2 * effort, most)
        if progress:
            progress(f"recall at 3 is {recall['recall_at_3']} at effort {effort}, trying {more}", 0, 1)
        better = sample.measure(more)
        if better["recall_at_3"] < recall["recall_at_3"] + _WORTH_DOUBLING:
            break
        effort, recall = more, better
    return effort, recall
