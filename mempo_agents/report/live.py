"""The report as a local web page that follows runs while they grow. Loopback only, reading only.

/             the page          /state       changes when any file of the runs does
/episode/N    /lines  /grades   compressed JSON, fetched when an episode is opened
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from mempo_agents.report.collect import Collection, packed
from mempo_agents.report.page import Page, live_html
from mempo_agents.report.runs import find_runs, fingerprint
from mempo_env.errors import MempoError

HOST = "127.0.0.1"
_NAMES = ("127.0.0.1", "localhost")


class LiveReport:
    """The newest state of the runs at `paths`; safe to ask from several threads."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._collection = Collection(paths)
        self._lock = threading.Lock()
        self._state = ""
        self._page: Page | None = None
        self._html = b""

    def state(self) -> str:
        """Changes when a file does. Costs a look at the files' sizes."""
        return fingerprint(find_runs(self._collection.paths))

    def html(self) -> bytes:
        with self._lock:
            self._refresh()
            return self._html

    def episode(self, number: int) -> bytes | None:
        """The compressed record of episode `number` of the page; None where there is none."""
        with self._lock:
            page = self._current()
            return page.blocks[number].data if 0 <= number < len(page.blocks) else None

    def lines(self) -> bytes:
        with self._lock:
            self._current()
            return packed(self._collection.lines.texts)

    def grades(self) -> bytes:
        with self._lock:
            return packed(self._current().grades)

    def _current(self) -> Page:
        if self._page is None:
            self._refresh()
        assert self._page is not None
        return self._page

    def _refresh(self) -> None:
        state = self.state()
        if self._page is None or state != self._state:
            self._collection.refresh()
            self._page, self._state = Page.of(self._collection), state
            self._html = live_html(self._page, state)


def make_server(paths: Sequence[Path], port: int = 0) -> ThreadingHTTPServer:
    """A server on 127.0.0.1; port 0 takes a free one (`server.server_address`). Reads the runs before it returns.

    Raises DataError where there is no run, OSError when the port is taken.
    """
    report = LiveReport(paths)
    report.html()

    class Handler(BaseHTTPRequestHandler):
        server_version = "mempo-report"
        sys_version = ""

        def do_GET(self) -> None:
            # Another site's page could reach a local server under a name of its own; such names are refused.
            if self.headers.get("Host", "").rsplit(":", 1)[0] not in _NAMES:
                self._send(403, b"Expected a local address.", "text/plain")
                return
            path = self.path.partition("?")[0]
            try:
                if path == "/":
                    self._send(200, report.html(), "text/html; charset=utf-8")
                elif path == "/state":
                    self._send(200, report.state().encode(), "text/plain; charset=utf-8")
                elif path == "/lines":
                    self._send(200, report.lines(), "application/octet-stream")
                elif path == "/grades":
                    self._send(200, report.grades(), "application/octet-stream")
                elif path.startswith("/episode/") and (block := _block(report, path)) is not None:
                    self._send(200, block, "application/octet-stream")
                else:
                    self._send(404, b"Nothing here.", "text/plain")
            except (MempoError, OSError) as error:  # a file that is being replaced, or was removed
                self._send(503, str(error).encode("utf-8", "replace"), "text/plain; charset=utf-8")

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass  # a line every two seconds from every open page helps nobody

    return ThreadingHTTPServer((HOST, port), Handler)


def _block(report: LiveReport, path: str) -> bytes | None:
    number = path.removeprefix("/episode/")
    return report.episode(int(number)) if number.isascii() and number.isdigit() and len(number) < 10 else None
