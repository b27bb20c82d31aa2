"""Answers of a search server on disk, by the index that gave them: an SQLite file that processes may share."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from mempo_env.errors import DataError
from mempo_env.types import Hit, Passage

_TABLE = """CREATE TABLE IF NOT EXISTS hits (
    fingerprint TEXT, k INTEGER, query TEXT, hits TEXT, PRIMARY KEY (fingerprint, k, query)
) WITHOUT ROWID"""


class HitCache:
    """`folder/hits.sqlite`. A key holds the index' fingerprint, so that a replaced index never answers from here."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "hits.sqlite"
        self._lock = threading.Lock()
        try:
            self._database = sqlite3.connect(self._path, timeout=30, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute(_TABLE)
        except sqlite3.Error as error:
            raise DataError(
                f"{self._path}: not usable as a cache ({error}). Remove it, or name another folder."
            ) from None

    def get(self, fingerprint: str, k: int, queries: Sequence[str]) -> dict[str, list[Hit]]:
        """The hits of those queries that are known."""
        found = {}
        statement = "SELECT hits FROM hits WHERE fingerprint = ? AND k = ? AND query = ?"
        with self._lock:
            for query in queries:
                row = self._database.execute(statement, (fingerprint, k, query)).fetchone()
                if row is not None:
                    found[query] = [Hit(Passage(*passage), score) for *passage, score in json.loads(row[0])]
        return found

    def put(self, fingerprint: str, k: int, results: Mapping[str, Sequence[Hit]]) -> None:
        rows = [
            (
                fingerprint,
                k,
                query,
                json.dumps([(h.passage.id, h.passage.title, h.passage.text, h.score) for h in hits]),
            )
            for query, hits in results.items()
        ]
        with self._lock, self._database:
            self._database.executemany("INSERT OR REPLACE INTO hits VALUES (?, ?, ?, ?)", rows)

    def close(self) -> None:
        self._database.close()
