"""FAISS indexes: built by factory string, memory-mapped on disk, moved to GPUs where there are any."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mempo_env.errors import DataError, MissingExtraError
from mempo_env.retrieval.exact import top_inner_products

INDEX = "index.faiss"
_MATRIX_FROM_QUERIES = 8  # fewer do not pay for reading the vectors into place
_HNSW_BUILD_EFFORT = 160  # FAISS' own 40 loses some per cent of the neighbours in high dimensions


def import_faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss-cpu (or faiss-gpu)", "faiss", "Dense retrieval") from None
    return faiss


def create_index(factory: str, dimensions: int) -> Any:
    """An empty inner-product index. Raises ValueError, with FAISS's reason, for a factory string it does not know."""
    faiss = import_faiss()
    try:
        return faiss.index_factory(dimensions, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ValueError(
            f"FAISS does not build {factory!r} for {dimensions} dimensions ({str(error).strip().splitlines()[-1]}). "
            "Examples that work: Flat, SQfp16, SQ8, HNSW32, IVF1024,Flat, IVF4096_HNSW32,SQ8, IVF1024,PQ48x8."
        ) from None


def bytes_per_vector(factory: str, dimensions: int) -> float:
    """What one vector costs in the finished index, from the index's own code size plus lists and links (bytes)."""
    faiss = import_faiss()
    index = create_index(factory, dimensions)
    inner = _inner(index)
    if isinstance(inner, faiss.IndexIVF):
        return float(inner.code_size) + 8
    if isinstance(inner, faiss.IndexHNSW):
        links = inner.hnsw.nb_neighbors(0) * 4 * 1.06  # 2M links on the ground floor, and the few upper floors
        return float(faiss.downcast_index(inner.storage).sa_code_size()) + links + 12
    return float(inner.sa_code_size())


def training_rows(factory: str, dimensions: int, count: int) -> int:
    """How many vectors to train on: 64 a centroid (FAISS warns under 39), and at least 65,536 where there are."""
    faiss = import_faiss()
    index = create_index(factory, dimensions)
    if index.is_trained:
        return 0
    inner = _inner(index)
    lists = inner.nlist if isinstance(inner, faiss.IndexIVF) else 1
    centroids = max(lists, _code_values(inner))
    if centroids > count:
        what, better = f"{lists} lists", f"at most {max(1, count // 40)} lists"
        if lists < centroids:
            what, better = f"{centroids} code values", "SQ8"
        raise ValueError(f"{factory!r} has {what} for {count} passages. Use {better}, or Flat.")
    return min(count, max(64 * centroids, 65_536))


def _code_values(inner: Any) -> int:
    """Values that a part of a code can take, each of which is learnt; 256, the usual, for codes not known here."""
    faiss = import_faiss()
    if isinstance(inner, faiss.IndexHNSW):
        inner = faiss.downcast_index(inner.storage)
    if isinstance(
        inner, (faiss.IndexFlat, faiss.IndexIVFFlat, faiss.IndexScalarQuantizer, faiss.IndexIVFScalarQuantizer)
    ):
        return 1
    return int(inner.pq.ksub) if isinstance(inner, (faiss.IndexPQ, faiss.IndexIVFPQ)) else 256


def train_and_add(index: Any, training: np.ndarray, blocks: Iterator[np.ndarray], seed: int) -> Iterator[int]:
    """Train on `training` [M, D], add the blocks [., D] in order, and yield the vectors added so far.

    Raises DataError, with FAISS's reason, where the index cannot be trained on so few.
    """
    faiss = import_faiss()
    if not index.is_trained:
        inner = _inner(index)
        if isinstance(inner, faiss.IndexIVF):
            inner.cp.seed = seed
            _set_quantizer_effort(inner, 1)
        try:
            index.train(np.ascontiguousarray(training, np.float32))
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise DataError(
                f"FAISS cannot train this index on {len(training)} passages ({reason}). Use SQ8, or Flat."
            ) from None
    inner = _inner(index)
    if isinstance(inner, faiss.IndexHNSW):
        inner.hnsw.efConstruction = _HNSW_BUILD_EFFORT
    for block in blocks:
        index.add(np.ascontiguousarray(block, np.float32))
        yield int(index.ntotal)


class Vectors:
    """A FAISS index file, ready for search.

    Args:
        path: the file.
        device: "cpu" maps the file, so that only what is touched is in memory; "cuda" copies it to the GPUs.
        placement: with several GPUs, "shard" spreads the vectors over them and "replicate" the queries.
        effort: lists probed (IVF) or candidates kept (HNSW); None keeps the value stored in the file.

    Raises DataError when the file is unreadable, ValueError when a GPU is asked for and FAISS sees none.
    """

    def __init__(self, path: Path, *, device: str = "cpu", placement: str = "shard", effort: int | None = None) -> None:
        faiss = import_faiss()
        if placement not in ("shard", "replicate"):
            raise ValueError(f"placement: expected 'shard' or 'replicate', got {placement!r}.")
        try:
            index = faiss.read_index(str(path), _mmap_flag() if device == "cpu" else 0)
        except RuntimeError as error:
            raise DataError(f"{path}: not a readable FAISS index ({str(error).strip().splitlines()[-1]}).") from None
        if effort is not None:
            set_effort(index, effort)
        self._lock: threading.Lock | None = None
        if device != "cpu":
            index = _to_gpus(index, device, placement)
            self._lock = threading.Lock()  # a GPU index serves one thread at a time
        self.index = index
        # A flat index is a matrix: its product with a batch of queries is many times faster than FAISS' own scan.
        self.matrix = _flat_matrix(index) if device == "cpu" else None
        # From 20 queries on, IVF computes the distances to its centroids another way, whose rounding could probe
        # another list. Blocks under 20 keep a query's lists the same in every batch.
        self._block = 16 if device == "cpu" and _is_ivf(index) else 4096

    def __len__(self) -> int:
        return int(self.index.ntotal)

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores [N, k] and rows [N, k]; row -1 where there are fewer than k hits. `queries` must be finite."""
        if not np.isfinite(queries).all():
            raise DataError("A query vector holds NaN or infinite values; it has no nearest passages.")
        if self.matrix is not None and len(queries) >= _MATRIX_FROM_QUERIES:
            return top_inner_products(queries, self.matrix, k)
        scores, rows = [], []
        for start in range(0, len(queries), self._block):
            part = np.ascontiguousarray(queries[start : start + self._block], np.float32)
            if self._lock is None:
                found = self.index.search(part, k)
            else:
                with self._lock:
                    found = self.index.search(part, k)
            scores.append(found[0])
            rows.append(found[1])
        if not scores:
            return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
        return np.concatenate(scores), np.concatenate(rows)


def _flat_matrix(index: Any) -> np.ndarray | None:
    """The vectors of a flat float32 index as an array on its own (mapped) memory, None for other kinds."""
    faiss = import_faiss()
    flat = faiss.downcast_index(index)
    if not isinstance(flat, faiss.IndexFlat) or flat.ntotal == 0:
        return None
    return faiss.rev_swig_ptr(flat.get_xb(), flat.ntotal * flat.d).reshape(flat.ntotal, flat.d)  # type: ignore[no-any-return]


def _mmap_flag() -> int:
    """The flag under which every kind of index stays in its file; older releases of FAISS map inverted lists only."""
    faiss = import_faiss()
    return int(getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP))


def _inner(index: Any) -> Any:
    """The index that stores the vectors, inside rotations and id maps. Valid only while `index` is referenced."""
    faiss = import_faiss()
    index = faiss.downcast_index(index)
    while isinstance(index, (faiss.IndexPreTransform, faiss.IndexIDMap)):
        index = faiss.downcast_index(index.index)
    return index


def _is_ivf(index: Any) -> bool:
    return isinstance(_inner(index), import_faiss().IndexIVF)


def set_effort(index: Any, effort: int) -> None:
    """Lists probed (IVF) or candidates kept (HNSW); other indexes are exact and have no such setting."""
    if effort < 1:
        raise ValueError(f"effort: expected at least 1, got {effort}.")
    faiss = import_faiss()
    inner = _inner(index)
    if isinstance(inner, faiss.IndexIVF):
        inner.nprobe = min(effort, inner.nlist)
        _set_quantizer_effort(inner, effort)
    elif isinstance(inner, faiss.IndexHNSW):
        inner.hnsw.efSearch = effort


def _set_quantizer_effort(ivf: Any, effort: int) -> None:
    """Where the lists are found by a graph (IVF.._HNSW..): look well, or vectors and queries end in wrong lists."""
    faiss = import_faiss()
    quantizer = faiss.downcast_index(ivf.quantizer)
    if isinstance(quantizer, faiss.IndexHNSW):
        quantizer.hnsw.efConstruction = max(quantizer.hnsw.efConstruction, _HNSW_BUILD_EFFORT)
        quantizer.hnsw.efSearch = max(_HNSW_BUILD_EFFORT, 2 * effort)


def default_effort(factory: str, dimensions: int) -> int | None:
    """A setting that usually finds 95 of 100: a 64th of the lists but at least 16 (IVF), 128 candidates (HNSW)."""
    faiss = import_faiss()
    index = create_index(factory, dimensions)
    inner = _inner(index)
    if isinstance(inner, faiss.IndexIVF):
        return min(inner.nlist, max(16, inner.nlist // 64))
    return 128 if isinstance(inner, faiss.IndexHNSW) else None


def most_effort(factory: str, dimensions: int) -> int:
    """The largest useful setting: all lists (IVF), or as many candidates as still make sense for a graph (HNSW)."""
    faiss = import_faiss()
    index = create_index(factory, dimensions)
    inner = _inner(index)
    return int(inner.nlist) if isinstance(inner, faiss.IndexIVF) else 4096


def default_candidates(factory: str) -> int:
    """How many candidates beyond k to rank again: PQ codes order coarsely, so more of them must be looked at."""
    return 256 if "PQ" in factory else 32


def _to_gpus(index: Any, device: str, placement: str) -> Any:
    faiss = import_faiss()
    gpus = faiss.get_num_gpus()
    if gpus == 0:
        raise ValueError(
            f"device={device!r}: FAISS sees no GPU. Install faiss-gpu in place of faiss-cpu, or pass device='cpu'."
        )
    if _inner(index).__class__.__name__.startswith("IndexHNSW"):
        raise ValueError("HNSW indexes run on CPUs only. Build Flat, IVF..,SQfp16 or IVF..,PQ for GPUs, or use 'cpu'.")
    if ":" in device:
        number = int(device.split(":", 1)[1])
        if number >= gpus:
            raise ValueError(f"device={device!r}: FAISS sees {gpus} GPUs, numbered from 0.")
        options = faiss.GpuClonerOptions()
        options.useFloat16 = True
        return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), number, index, options)
    options = faiss.GpuMultipleClonerOptions()
    options.useFloat16 = True
    options.shard = placement == "shard"
    if gpus > 1 and options.shard and _is_ivf(index):
        options.common_ivf_quantizer = True
    return faiss.index_cpu_to_all_gpus(index, options)
