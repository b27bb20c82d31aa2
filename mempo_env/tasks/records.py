"""Rows of a file or of a hub data set, each with the place where it stands, whatever the container.

JSON lines, a JSON list, TriviaQA's `{"Data": [...]}`, a JSON object of title to text, or tab-separated values with a
header; plain, gzipped or zstd-packed. The container is found from the content, never from the file's name. Nothing is
unpickled.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from mempo_env.errors import DataError, MissingExtraError

SUFFIXES = tuple(kind + packing for kind in (".json", ".jsonl", ".tsv") for packing in ("", ".gz", ".zst"))
"""How the names of such files end, where a folder is looked through; a file that is named may be called anything."""

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_CONTAINERS = "JSON lines, a JSON list or object, or tab-separated values with a header"


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its number from 0, its place for messages ("line 12"); no value where `error` says what is corrupt."""

    number: int
    place: str
    value: Mapping[str, Any] | None
    error: str = ""


class Rows(Protocol):
    """Rows that can be read again. `source` names them in messages, `stem` in ids; `fingerprint` is their content's."""

    source: str
    stem: str

    @property
    def fingerprint(self) -> str: ...

    def __iter__(self) -> Iterator[Row]: ...


class FileRows:
    """The rows of one file, read as a stream where the container allows it (JSON lines and tab-separated values).

    Iterating raises DataError, with the file and the line, where the container itself is broken; a broken line of
    JSON lines is a Row with an `error`.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            what = "is a folder, expected a file" if path.is_dir() else "no such file"
            raise DataError(f"{path}: {what}.")
        self.path = path
        self.source = str(path)
        self.stem = path.name.removesuffix(".gz").removesuffix(".zst").rpartition(".")[0] or path.name

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the file's bytes."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def __iter__(self) -> Iterator[Row]:
        with self.path.open("rb") as raw:
            magic = raw.read(4)
            raw.seek(0)
            if magic == _ZSTD_MAGIC:
                yield from self._zstd(raw)
                return
            try:
                stream: Any = gzip.GzipFile(fileobj=raw) if magic.startswith(b"\x1f\x8b") else raw
                yield from _read(stream, self.source)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise DataError(f"{self.source}: the gzip data is damaged ({error}).") from None

    def _zstd(self, raw: Any) -> Iterator[Row]:
        try:
            import zstandard
        except ImportError:
            raise MissingExtraError("zstandard", "retrieval", f"Reading {self.source}") from None
        stream = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        try:
            yield from _read(io.BufferedReader(stream), self.source)
        except zstandard.ZstdError as error:
            raise DataError(f"{self.source}: the zstd data is damaged ({error}).") from None


class ListRows:
    """Rows of an iterable that can be gone through again, such as a split of a hub data set; arrays become lists."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], source: str, stem: str) -> None:
        self._rows = rows
        self.source = source
        self.stem = stem

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for row in self:
            digest.update(json.dumps(row.value, sort_keys=True, default=str).encode())
        return digest.hexdigest()

    def __iter__(self) -> Iterator[Row]:
        for number, value in enumerate(self._rows):
            yield Row(number, f"row {number}", {key: plain(item) for key, item in value.items()})


def plain(value: Any) -> Any:
    """Arrays (numpy's and those of the `datasets` library) as lists, at any depth."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _read(stream: Any, source: str) -> Iterator[Row]:
    lines = enumerate(stream, 1)
    for number, line in lines:
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.strip():
            break
    else:
        raise DataError(f"{source}: the file is empty. Expected {_CONTAINERS}.")
    lead = line.lstrip()[:1]
    if lead == b"{" and (first := _json_line(line, number)).value is not None:
        later = next(((n, text) for n, text in lines if text.strip()), None)
        if later is not None or _titles(first.value) is None:
            if later is None and isinstance(first.value.get("Data"), list):
                yield from _document(first.value, source)
                return
            yield Row(0, first.place, first.value)
            count = 1
            while later is not None:
                found = _json_line(later[1], later[0])
                yield Row(count, found.place, found.value, found.error)
                count += 1
                later = next(((n, text) for n, text in lines if text.strip()), None)
            return
        yield from _document(first.value, source)
    elif lead in (b"{", b"["):
        yield from _document(_whole(b"\n" * (number - 1) + line + stream.read(), source), source)
    elif b"\t" in line:
        yield from _separated(line, number, stream, source)
    else:
        raise DataError(f"{source}: line {number}: expected {_CONTAINERS}, found {line[:60]!r}.")


def _json_line(line: bytes, number: int) -> Row:
    place = f"line {number}"
    try:
        value = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        return Row(0, place, None, f"not UTF-8 (byte {error.start} of the line)")
    except (ValueError, RecursionError) as error:
        return Row(0, place, None, f"not valid JSON ({error})")
    if not isinstance(value, dict):
        return Row(0, place, None, f"expected one JSON object a line, got {type(value).__name__}")
    return Row(0, place, value)


def _whole(content: bytes, source: str) -> Any:
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{source}: line {line}: not UTF-8 (byte {error.start} of the file).") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise DataError(f"{source}: {place}: not valid JSON ({error.msg}). Expected {_CONTAINERS}.") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source}: not valid JSON ({error}).") from None


class _Repeating(dict[str, Any]):
    """A JSON object in which a key comes twice: `pairs` keeps them all (a title may repeat in a corpus)."""

    pairs: list[tuple[str, Any]]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        made = _Repeating(made)
        made.pairs = pairs
    return made


def _titles(value: Mapping[str, Any]) -> list[tuple[str, Any]] | None:
    """The pairs of an object that maps titles to a text or to sentences; None for any other object."""
    if not value or "contents" in value or {"question", "Question", "title", "Data"} & set(value):
        return None
    pairs = value.pairs if isinstance(value, _Repeating) else list(value.items())
    is_text = all(isinstance(v, str) or (isinstance(v, list) and all(isinstance(s, str) for s in v)) for _, v in pairs)
    return pairs if is_text else None


def _document(value: Any, source: str) -> Iterator[Row]:
    if isinstance(value, dict) and isinstance(value.get("Data"), list):
        value = value["Data"]
    if isinstance(value, dict):
        pairs = _titles(value)
        if pairs is not None:
            for number, (title, text) in enumerate(pairs):
                yield Row(number, f"title {title!r}", {"title": title, "sentences": text})
            return
        value = [value]
    if not value:
        raise DataError(f"{source}: no rows. Expected {_CONTAINERS}.")
    for number, row in enumerate(value):
        place = f"record {number + 1}"
        if isinstance(row, dict):
            yield Row(number, place, row)
        else:
            yield Row(number, place, None, f"expected a JSON object, got {type(row).__name__}")


def _separated(line: bytes, number: int, stream: Any, source: str) -> Iterator[Row]:
    # newline="" leaves line ends inside quoted fields to the csv module.
    text = io.TextIOWrapper(io.BufferedReader(_Prefixed(line, stream)), encoding="utf-8", newline="")
    reader = csv.DictReader(text, delimiter="\t", strict=True)
    try:
        for count, row in enumerate(reader):
            place = f"line {reader.line_num + number - 1}"
            if None in row or None in row.values():
                expected = len(reader.fieldnames or ())
                yield Row(count, place, None, f"expected {expected} tab-separated fields as in the header")
            else:
                yield Row(count, place, row)
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{source}: near line {reader.line_num + number}: {error}.") from None
    finally:
        text.detach()


class _Prefixed(io.RawIOBase):
    """A stream with the line that was already taken from it put back in front."""

    def __init__(self, head: bytes, rest: Any) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._head[: len(buffer)] or self._rest.read(len(buffer))
        self._head = self._head[len(data) :] if self._head else b""
        buffer[: len(data)] = data
        return len(data)
