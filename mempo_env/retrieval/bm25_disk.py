"""BM25 on disk: built in blocks with bounded memory, searched memory-mapped, ranked exactly like `BM25Retriever`.

    folder/weights.npy, rows.npy, starts.npy   the score matrix, column by column as bm25s lays it out: for word w the
                                               weights[starts[w]:starts[w+1]] of the passages rows[same range]
    folder/vocabulary.arrow                    the words, sorted; the place of a word is its number
    folder/order.npy                           row in the corpus of each passage in the order of ids
    folder/manifest.json                       corpus count and checksum, parameters

Memory of a build: one block of postings, the vocabulary, and 12 bytes a passage. Memory of a search: the pages that the
query's words touch, and 8 bytes a passage for the scores of one query, in each thread that searches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mempo_env.errors import DataError
from mempo_env.json_files import write_json
from mempo_env.retrieval import storage
from mempo_env.retrieval.bm25 import BM25Retriever, check_parameters, choose_backend
from mempo_env.retrieval.corpus import Corpus
from mempo_env.retrieval.indexes import Progress, check_corpus, check_rows, index_fingerprint
from mempo_env.retrieval.memory import read_at_random
from mempo_env.retrieval.words import ENGLISH_STOP_WORDS, words

_BLOCK_TOKENS = 8_000_000
_POSTING_BYTES = 8  # float32 weight and int32 row
_POSTINGS_PER_PASSAGE = 70  # an upper estimate for passages of 100 words


def estimate_disk_bytes(count: int) -> int:
    """Bytes that building may need at its peak: the index, and the postings on their way into it."""
    return count * (_POSTINGS_PER_PASSAGE * (_POSTING_BYTES + 12) + 24)


def build_bm25(
    corpus: Corpus,
    folder: str | Path,
    *,
    rows: tuple[int, int] | None = None,
    k1: float = 1.5,
    b: float = 0.75,
    title_weight: int = 2,
    stop_words: Collection[str] = ENGLISH_STOP_WORDS,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Index the passages of `rows` (start, stop; default all) into `folder`, and return its manifest.

    Parameters and weights as in `BM25Retriever`. Raises DataError when the disk is too small, FileExistsError where the
    folder exists and `overwrite` is False.
    """
    check_parameters(k1, b, title_weight)
    started = time.perf_counter()
    start, stop = check_rows(rows, len(corpus))
    count = stop - start
    folder = Path(folder)
    storage.require_space(folder, estimate_disk_bytes(count), f"A BM25 index of {count} passages")
    stop_set = frozenset(stop_words)
    with storage.atomic_folder(folder, overwrite) as temporary:
        order = _order_by_id(corpus, start, stop)
        np.save(temporary / "order.npy", order)
        position = np.empty(count, np.int32)
        position[order - start] = np.arange(count, dtype=np.int32)
        spill = _Spill(temporary / "spill.tmp")
        vocabulary: dict[str, int] = {}
        lengths = np.zeros(count, np.int32)
        for done, tokens, passages in _token_blocks(corpus, start, stop, vocabulary, title_weight, stop_set):
            at = position[done - len(passages) : done]
            lengths[at] = passages
            spill.add(tokens, np.repeat(at, passages))
            if progress:
                progress("reading words", done, count)
        sorted_words = sorted(vocabulary)
        number = np.empty(len(vocabulary), np.int64)
        number[[vocabulary[w] for w in sorted_words]] = np.arange(len(vocabulary))
        _write_words(temporary / "vocabulary.arrow", sorted_words)
        spill.finish(temporary, number, lengths, k1, b, progress)
        manifest = {
            "kind": "bm25",
            "schema_version": storage.SCHEMA_VERSION,
            "count": count,
            "rows": [start, stop],
            "corpus_count": len(corpus),
            "corpus_checksum": corpus.checksum,
            "parameters": {"k1": k1, "b": b, "title_weight": title_weight, "stop_words": sorted(stop_set)},
            "words": len(vocabulary),
            "postings": spill.postings,
            "build_seconds": round(time.perf_counter() - started, 3),
        }
        write_json(temporary / storage.MANIFEST, manifest)
    return manifest


class DiskBM25Retriever(BM25Retriever):
    """A folder that `build_bm25` wrote, memory-mapped. Opens in milliseconds and pickles as its paths.

    Raises DataError when the index does not belong to the corpus (count or checksum), or a file is missing.
    """

    def __init__(self, corpus: Corpus, folder: str | Path, *, backend: str = "auto") -> None:
        self.folder = Path(folder)
        self.manifest = storage.read_manifest(self.folder, "bm25")
        check_corpus(self.manifest, corpus, self.folder)
        self.name = "bm25"
        self.passages = self.corpus = corpus
        self.backend = choose_backend(backend, len(corpus))
        self._stop_words = frozenset(self.manifest["parameters"]["stop_words"])
        self.fingerprint = f"bm25-{index_fingerprint(self.manifest)}"
        self._vocabulary = _MappedWords(self.folder / "vocabulary.arrow")  # type: ignore[assignment]
        self._order = self._load("order", at_random=True)  # type: ignore[assignment]
        self._weights, self._rows = self._load("weights"), self._load("rows")
        self._starts = self._load("starts", at_random=True)  # type: ignore[assignment]

    def _load(self, name: str, *, at_random: bool = False) -> np.ndarray:
        try:
            array = np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"{self.folder / name}.npy: unreadable ({error}). Rebuild the index.") from error
        if at_random and len(array):
            read_at_random(array.base)
        return np.asarray(array)

    def __reduce__(self) -> tuple[Callable[..., DiskBM25Retriever], tuple[Any, ...]]:
        return partial(DiskBM25Retriever, self.corpus, str(self.folder), backend=self.backend), ()


def _order_by_id(corpus: Corpus, start: int, stop: int) -> np.ndarray:
    """Rows start to stop-1 in the order of their ids (code points, which is the order of UTF-8 bytes). [N] int64."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = pa.chunked_array([batch.column(0) for batch in corpus.batches], pa.string()).slice(start, stop - start)
    return pc.sort_indices(ids).to_numpy().astype(np.int64) + start


def _token_blocks(
    corpus: Corpus, start: int, stop: int, vocabulary: dict[str, int], title_weight: int, stop_words: frozenset[str]
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Blocks of (passages done, word numbers of the block [T], words per passage [N])."""
    tokens: list[int] = []
    lengths: list[int] = []
    done = 0
    for passage in corpus.iter_rows(start, stop):
        found = words(passage.title, stop_words) * title_weight + words(passage.text, stop_words)
        tokens.extend(vocabulary.setdefault(w, len(vocabulary)) for w in found)
        lengths.append(len(found))
        done += 1
        if len(tokens) >= _BLOCK_TOKENS:
            yield done, np.array(tokens, np.int64), np.array(lengths, np.int32)
            tokens, lengths = [], []
    if lengths:
        yield done, np.array(tokens, np.int64), np.array(lengths, np.int32)


class _Spill:
    """Postings (word, passage, frequency) sorted by word inside each block, on disk until all counts are known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "wb")  # noqa: SIM115  closed by finish, removed with its folder on failure
        self._blocks: list[int] = []
        self._frequency = np.zeros(0, np.int64)

    @property
    def postings(self) -> int:
        return sum(self._blocks)

    def add(self, tokens: np.ndarray, positions: np.ndarray) -> None:
        keys, counts = np.unique((tokens << 32) | positions, return_counts=True)
        word, position = keys >> 32, keys & 0xFFFFFFFF
        for column in (word, position, counts):
            column.astype(np.int32).tofile(self._file)
        self._blocks.append(len(keys))
        frequency = np.bincount(word, minlength=len(self._frequency))
        frequency[: len(self._frequency)] += self._frequency
        self._frequency = frequency

    def finish(
        self, folder: Path, number: np.ndarray, lengths: np.ndarray, k1: float, b: float, progress: Progress | None
    ) -> None:
        """Weigh all postings, put them where their word's column is, and remove the spill."""
        self._file.close()
        frequency = np.zeros(len(number), np.int64)
        frequency[number] = self._frequency
        starts = np.concatenate([[0], np.cumsum(frequency)]).astype(np.int64)
        np.save(folder / "starts.npy", starts)
        # The arithmetic and its precisions are those of bm25s (method "lucene"), so that equal ties stay ties.
        n = len(lengths)
        idf = np.log(1 + (n - frequency + 0.5) / (frequency + 0.5)).astype(np.float32)
        mean = lengths.mean() if n else 1.0
        norm = k1 * ((1 - b) + b * lengths / mean) if mean else np.full(n, k1)
        shape = (max(self.postings, 0),)
        weights = np.lib.format.open_memmap(folder / "weights.npy", "w+", np.float32, shape) if shape[0] else None
        rows = np.lib.format.open_memmap(folder / "rows.npy", "w+", np.int32, shape) if shape[0] else None
        if weights is None or rows is None:
            np.save(folder / "weights.npy", np.empty(0, np.float32))
            np.save(folder / "rows.npy", np.empty(0, np.int32))
        else:
            free = starts[:-1].copy()
            with open(self._path, "rb") as file:
                for done, size in enumerate(self._blocks, start=1):
                    word, position, count = (np.fromfile(file, np.int32, size) for _ in range(3))
                    word_number = number[word]
                    run_starts = np.flatnonzero(np.diff(word, prepend=-1))
                    runs = np.diff(run_starts, append=size)
                    place = np.arange(size) - np.repeat(run_starts, runs) + free[word_number]
                    weights[place] = idf[word_number] * (count / (norm[position] + count))
                    rows[place] = position
                    free[word_number[run_starts]] += runs
                    if progress:
                        progress("writing columns", done, len(self._blocks))
            weights.flush()
            rows.flush()
        self._path.unlink()


def _write_words(path: Path, sorted_words: Sequence[str]) -> None:
    import pyarrow as pa

    schema = pa.schema([("word", pa.large_string())])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array(sorted_words, pa.large_string())], schema))


class _MappedWords:
    """word -> number, found by bisection in the mapped file: nothing to load, about 10 microseconds a word."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        try:
            self._words = pa.ipc.open_file(pa.memory_map(str(path), "r")).get_batch(0).column(0)
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"{path}: unreadable ({error}). Rebuild the index.") from error

    def _find(self, word: str) -> int:
        low, high = 0, len(self._words)
        while low < high:
            middle = (low + high) // 2
            if self._words[middle].as_py() < word:
                low = middle + 1
            else:
                high = middle
        return low if low < len(self._words) and self._words[low].as_py() == word else -1

    def __contains__(self, word: str) -> bool:
        return self._find(word) >= 0

    def __getitem__(self, word: str) -> int:
        found = self._find(word)
        if found < 0:
            raise KeyError(word)
        return found

    def __bool__(self) -> bool:
        return len(self._words) > 0
