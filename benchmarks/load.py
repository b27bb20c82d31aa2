"""Concurrent clients for a search server: raw HTTP/1.1 over kept connections, so that the client costs little."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from urllib.parse import urlsplit


async def _client(
    host: str, port: int, bodies: Sequence[bytes], until: float, seconds: list[float], seen: Counter[str]
) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    number = 0
    try:
        while time.perf_counter() < until:
            started = time.perf_counter()
            writer.write(bodies[number % len(bodies)])
            number += 1
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
            status = head.split(b" ", 2)[1].decode()
            seen[status] += 1
            if status == "200":
                seconds.append(time.perf_counter() - started)
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        seen[type(error).__name__] += 1
    finally:
        writer.close()


async def _run(url: str, clients: int, queries: Sequence[str], duration_seconds: float, k: int) -> dict[str, float]:
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    requests = []
    for query in queries:
        body = json.dumps({"queries": [query], "topk": k, "return_scores": True}).encode()
        head = f"POST /retrieve HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        requests.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    seconds: list[float] = []
    seen: Counter[str] = Counter()
    started = time.perf_counter()
    until = started + duration_seconds
    shifts = [requests[i * 31 % len(requests) :] + requests[: i * 31 % len(requests)] for i in range(clients)]
    await asyncio.gather(*(_client(host, port, shifts[i], until, seconds, seen) for i in range(clients)))
    elapsed = time.perf_counter() - started
    seconds.sort()
    return {
        "clients": clients,
        "requests_per_second": round(len(seconds) / elapsed, 1),
        "median_ms": round(1000 * seconds[len(seconds) // 2], 2) if seconds else float("nan"),
        "p99_ms": round(1000 * seconds[int(len(seconds) * 0.99)], 2) if seconds else float("nan"),
        "answered": len(seconds),
        "errors": sum(seen.values()) - len(seconds),
    }


def load(
    url: str, clients: int, queries: Sequence[str], duration_seconds: float = 10.0, k: int = 3
) -> dict[str, float]:
    """`clients` connections, each sending one query after the other (one query a request) for that long."""
    return asyncio.run(_run(url, clients, queries, duration_seconds, k))
