"""Stand-ins for retrieval tests: made-up passages, a deterministic encoder, a real server in a thread, a lying one."""

from __future__ import annotations

import random
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from mempo_env.types import Hit, Passage


def make_passages(count: int, seed: int = 0, words: int = 40) -> list[Passage]:
    """Passages of Zipf-like made-up words. Ids in an order that is not the order of rows."""
    rng = random.Random(seed)
    vocabulary = [f"w{i}" for i in range(2000)]
    weights = [1 / (i + 3) for i in range(2000)]
    return [
        Passage(f"p{(i * 7919) % 1_000_003:06d}", f"Title {i}", " ".join(rng.choices(vocabulary, weights, k=words)))
        for i in range(count)
    ]


class HashEncoder:
    """Bags of words hashed into `dimensions` buckets, unit length. Counts the texts that it coded."""

    def __init__(self, dimensions: int = 48, name: str = "hash") -> None:
        self.name = f"{name}|{dimensions}"
        self.dimensions = dimensions
        self.coded = 0

    def _vector(self, text: str) -> np.ndarray:
        vector = np.zeros(self.dimensions, np.float32)
        for word in text.lower().split():
            bits = zlib.crc32(word.encode())
            vector[bits % self.dimensions] += 1.0 if bits & (1 << 20) else -1.0
        norm = float(np.linalg.norm(vector))
        return vector / norm if norm else np.eye(1, self.dimensions, dtype=np.float32)[0]

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        return np.array([self._vector(q) for q in queries], np.float32).reshape(-1, self.dimensions)

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        self.coded += len(texts)
        return self.encode_queries(texts)

    def count_truncated(self, texts: Sequence[str]) -> int:
        return sum(len(text.split()) > 256 for text in texts)


class StubRetriever:
    """Answers with the query's own text, so that a mixed-up answer is seen; sleeps, counts and fails on demand."""

    name = "stub"

    def __init__(self, seconds: float = 0.0, fingerprint: str = "stub-1") -> None:
        self.fingerprint = fingerprint
        self.seconds = seconds
        self.calls: list[int] = []
        self._lock = threading.Lock()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        with self._lock:
            self.calls.append(len(queries))
        time.sleep(self.seconds)
        if any("boom" in query for query in queries):
            raise RuntimeError("the index is broken")
        return [
            []
            if "nothing" in query
            else [Hit(Passage(f"{query}#{i}", f"T{i}", f"about {query}"), 1.0 - i / 100) for i in range(k)]
            for query in queries
        ]


@contextmanager
def serve(app: Any) -> Iterator[str]:
    """Run an ASGI app by uvicorn in a thread on a free port of the loopback; yields its address."""
    import uvicorn

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


@contextmanager
def raw_server(handle: Callable[[socket.socket, int], None]) -> Iterator[str]:
    """A server that does to each connection what `handle(connection, its number)` says, then closes it."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    stop = threading.Event()
    connections: list[socket.socket] = []

    def talk(connection: socket.socket, number: int) -> None:
        try:
            handle(connection, number)
        except OSError:
            pass
        finally:
            connection.close()

    def accept() -> None:
        number = 0
        while not stop.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            threading.Thread(target=talk, args=(connection, number), daemon=True).start()
            number += 1

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stop.set()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts; closing alone does not
        listener.close()
        for connection in connections:
            connection.close()


def read_request(connection: socket.socket) -> bytes:
    """A whole HTTP request with a declared body."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def http(status: str, body: bytes, headers: str = "") -> bytes:
    """An HTTP response that closes the connection."""
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{headers}\r\n"
    return head.encode() + body
