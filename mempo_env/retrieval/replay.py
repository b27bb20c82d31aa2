"""Answers of the web on disk, one JSON file each, so that an evaluation can be repeated offline, word for word."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from mempo_env.errors import RetrievalError, UnknownNameError
from mempo_env.json_files import write_json

MODES = ("record", "replay")


class ReplayCache:
    """Looks answers up by what was asked.

    folder: where the files lie. mode: "record" keeps what is fetched and fetches nothing twice; "replay" never goes
    online: what was not recorded raises RetrievalError.
    """

    def __init__(self, folder: str | Path, mode: str = "record") -> None:
        if mode not in MODES:
            raise UnknownNameError("replay mode", mode, MODES)
        self.folder, self.mode = Path(folder), mode

    def _path(self, asked: dict[str, Any]) -> Path:
        key = sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return self.folder / key[:2] / f"{key}.json"

    def get(self, asked: dict[str, Any]) -> Any | None:
        """The recorded answer, or None. In replay mode RetrievalError in place of None."""
        path = self._path(asked)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["asked"] == asked:
                return record["answer"]
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            raise RetrievalError(f"{path}: unreadable recording ({error}). Remove it, and record again.") from None
        if self.mode == "replay":
            raise RetrievalError(f"Not recorded in {self.folder}: {json.dumps(asked, ensure_ascii=False)[:200]}")
        return None

    def put(self, asked: dict[str, Any], answer: Any) -> None:
        path = self._path(asked)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"asked": asked, "answer": answer})
