"""The corpus: passages in a memory-mapped Arrow file, shared by processes without copies.

    folder/passages.arrow    record batches of BATCH_ROWS rows with the columns id, title, text
    folder/manifest.json     count, checksum, source, how split, and what the build counted

Opening reads the file's footer only, so it takes milliseconds at any size. A passage is fetched by row in microseconds.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, overload

import numpy as np

from mempo_env.errors import DataError, MissingExtraError
from mempo_env.json_files import write_json
from mempo_env.retrieval import storage
from mempo_env.retrieval.memory import read_at_random
from mempo_env.retrieval.splitting import Windows
from mempo_env.text import replace_surrogates
from mempo_env.types import Passage

PASSAGES = "passages.arrow"
BATCH_ROWS = 16_384


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise MissingExtraError("pyarrow", "retrieval", "A corpus on disk") from None
    return pyarrow


@dataclass(frozen=True, slots=True)
class CorpusReport:
    """What a build read and wrote: n_in rows in, n_out passages out; nothing is dropped that is not counted here.

    n_duplicates: rows whose title and text both equal an earlier row's; the first is kept.
    n_empty: rows whose text is blank; they are left out, whatever their title.
    n_split: rows that became several windows; n_truncated: rows cut at `max_words`.
    """

    n_in: int
    n_out: int
    n_duplicates: int
    n_empty: int
    n_split: int
    n_truncated: int


class Corpus(Sequence[Passage]):
    """A corpus folder, opened read-only. Pickles as its path; forked and spawned processes share its pages.

    `batches` are the Arrow record batches, for reading in order.

    Raises DataError when the folder is no corpus, or when its file does not hold what the manifest says.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = storage.read_manifest(self.folder, "corpus")
        self.checksum: str = self.manifest["checksum"]
        self._count: int = self.manifest["count"]
        self._batch_rows: int = self.manifest["batch_rows"]
        self._open()

    def _open(self) -> None:
        path = self.folder / PASSAGES
        size = path.stat().st_size if path.exists() else -1
        if size != self.manifest["file_bytes"]:
            raise DataError(
                f"{path}: expected {self.manifest['file_bytes']} bytes as the manifest says, got "
                f"{'no file' if size < 0 else f'{size} bytes'}. Rebuild the corpus."
            )
        with path.open("rb") as file:
            in_order, at_random = (mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for _ in range(2))
        self.batches = _batches(in_order)
        self._batches_at_random = _batches(read_at_random(at_random))
        rows = sum(batch.num_rows for batch in self.batches)
        if rows != self._count:
            raise DataError(f"{path}: the manifest says {self._count} passages, the file holds {rows}. Rebuild it.")

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, row: int) -> Passage: ...
    @overload
    def __getitem__(self, row: slice) -> list[Passage]: ...
    def __getitem__(self, row: int | slice) -> Passage | list[Passage]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(self._count))]
        at = int(row)
        if at < 0:
            at += self._count
        if not 0 <= at < self._count:
            raise IndexError(f"row {row} is outside a corpus of {self._count} passages")
        batch, place = self._batches_at_random[at // self._batch_rows], at % self._batch_rows
        return Passage(batch[0][place].as_py(), batch[1][place].as_py(), batch[2][place].as_py())

    def __iter__(self) -> Iterator[Passage]:
        return self.iter_rows(0, self._count)

    def iter_rows(self, start: int, stop: int) -> Iterator[Passage]:
        """The passages of rows start to stop-1, read in blocks: several times faster than row by row."""
        for number in range(start // self._batch_rows, -(-stop // self._batch_rows)):
            first = number * self._batch_rows
            batch = self.batches[number]
            low, high = max(start - first, 0), min(stop - first, batch.num_rows)
            columns = (batch[i].slice(low, high - low).to_pylist() for i in range(3))
            for passage_id, title, text in zip(*columns, strict=True):
                yield Passage(passage_id, title, text)

    def verify(self) -> None:
        """Read everything and compare with the manifest's checksum. Raises DataError when they differ."""
        digest = _Digest()
        for passage in self:
            digest.add(passage)
        if digest.value() != self.checksum:
            raise DataError(f"{self.folder}: the passages do not match the manifest's checksum. Rebuild the corpus.")

    @property
    def fingerprint(self) -> str:
        return f"corpus-{self.checksum[:16]}"

    def __repr__(self) -> str:
        return f"Corpus({str(self.folder)!r}, {self._count} passages)"

    def __reduce__(self) -> tuple[type[Corpus], tuple[str]]:
        return Corpus, (str(self.folder),)


def _batches(mapped: mmap.mmap) -> list[Any]:
    pa = _pyarrow()
    reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(mapped)))
    return [reader.get_batch(i) for i in range(reader.num_record_batches)]


class _Digest:
    """SHA-256 over the passages themselves, so that equal corpora have equal checksums however they were written."""

    def __init__(self) -> None:
        self._hash = sha256()

    def add(self, passage: Passage) -> None:
        for part in (passage.id, passage.title, passage.text):
            data = part.encode("utf-8")
            self._hash.update(len(data).to_bytes(8, "little"))
            self._hash.update(data)

    def value(self) -> str:
        return self._hash.hexdigest()


class _Seen:
    """A set of 64-bit hashes in about 8 bytes an entry: sorted runs, merged as they grow (21 million: 170 MB).

    Some two different keys share a hash with a probability of n*n / 2**65: 1 in 80,000 for a corpus of 21 million.
    """

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []

    def add(self, keys: Sequence[bytes]) -> np.ndarray:
        """For each key whether it was there before, in earlier calls or earlier in this one. [N] bool."""
        hashes = np.frombuffer(b"".join(blake2b(key, digest_size=8).digest() for key in keys), dtype=np.uint64)
        unique, first = np.unique(hashes, return_index=True)
        seen = np.ones(len(hashes), dtype=bool)
        known = np.zeros(len(unique), dtype=bool)
        for run in self._runs:
            place = np.minimum(np.searchsorted(run, unique), len(run) - 1)
            known |= run[place] == unique
        seen[first] = known
        fresh = unique[~known]
        if len(fresh):
            self._runs.append(fresh)
        while len(self._runs) > 1 and len(self._runs[-1]) * 2 > len(self._runs[-2]):
            last, before = self._runs.pop(), self._runs.pop()
            self._runs.append(np.sort(np.concatenate([before, last]), kind="stable"))
        return seen


def build_corpus(
    passages: Iterable[Passage],
    folder: str | Path,
    *,
    source: str,
    windows: Windows | None = None,
    max_words: int | None = None,
    overwrite: bool = False,
) -> CorpusReport:
    """Write `passages` as a corpus folder, as a stream: memory does not grow with the text.

    windows: split long texts; the parts of passage "a" are "a#0", "a#1", ... with the same title.
    max_words: cut longer texts (after splitting) at that many words, and count them.
    Lone surrogates, which no file can hold, become U+FFFD.
    The folder appears when it is complete, and never half-written. Raises DataError for an id that comes twice with
    different content, and FileExistsError where the folder exists and `overwrite` is False.
    """
    pa = _pyarrow()
    schema = pa.schema([("id", pa.string()), ("title", pa.string()), ("text", pa.string())])
    counts = dict.fromkeys(CorpusReport.__slots__, 0)
    digest, seen_content, seen_ids = _Digest(), _Seen(), _Seen()
    waiting: list[Passage] = []

    with storage.atomic_folder(Path(folder), overwrite) as temporary:
        path = temporary / PASSAGES
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:

            def write(rows: list[Passage]) -> None:
                columns = [[p.id for p in rows], [p.title for p in rows], [p.text for p in rows]]
                writer.write_batch(pa.record_batch([pa.array(column, pa.string()) for column in columns], schema))

            stream = iter(passages)
            while block := list(itertools.islice(stream, BATCH_ROWS)):
                for passage in _prepare(block, counts, seen_content, seen_ids, windows, max_words):
                    digest.add(passage)
                    waiting.append(passage)
                while len(waiting) >= BATCH_ROWS:
                    write(waiting[:BATCH_ROWS])
                    del waiting[:BATCH_ROWS]
            if waiting:
                write(waiting)
        report = CorpusReport(**counts)
        if report.n_out == 0:
            raise DataError(f"{source}: no passages ({report.n_in} rows read, {report.n_empty} of them empty).")
        write_json(
            temporary / storage.MANIFEST,
            {
                "kind": "corpus",
                "schema_version": storage.SCHEMA_VERSION,
                "count": report.n_out,
                "checksum": digest.value(),
                "batch_rows": BATCH_ROWS,
                "file_bytes": path.stat().st_size,
                "source": source,
                "split": windows.description if windows else "none",
                "max_words": max_words,
                "report": asdict(report),
            },
        )
    return report


def _prepare(
    block: list[Passage],
    counts: dict[str, int],
    seen_content: _Seen,
    seen_ids: _Seen,
    windows: Windows | None,
    max_words: int | None,
) -> Iterator[Passage]:
    counts["n_in"] += len(block)
    filled = [p for p in block if p.text.strip()]
    counts["n_empty"] += len(block) - len(filled)
    duplicate = seen_content.add([f"{p.title}\0{p.text}".encode("utf-8", "surrogatepass") for p in filled])
    counts["n_duplicates"] += int(duplicate.sum())
    kept = [p for p, again in zip(filled, duplicate, strict=True) if not again]
    repeated = seen_ids.add([p.id.encode("utf-8", "surrogatepass") for p in kept])
    if repeated.any():
        raise DataError(
            f"The id {kept[int(repeated.argmax())].id!r} stands on two passages with different content. Ids must be "
            "unique: correct the source, or leave the ids out and row numbers are used."
        )
    for passage in kept:
        # A title with a line break could not be told from the text in Search-R1's `contents`.
        title = " ".join(passage.title.split()) if "\n" in passage.title else passage.title
        parts = list(windows(passage.text)) if windows else [passage.text]
        counts["n_split"] += len(parts) > 1
        cut = False
        for number, text in enumerate(parts):
            if max_words is not None and len(words := text.split(maxsplit=max_words)) > max_words:
                text, cut = " ".join(words[:max_words]), True
            counts["n_out"] += 1
            passage_id = f"{passage.id}#{number}" if len(parts) > 1 else passage.id
            yield Passage(*map(replace_surrogates, (passage_id, title, text)))
        counts["n_truncated"] += cut
