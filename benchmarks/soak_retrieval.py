"""Minutes of mixed load and faults on a search server: no wrong result, no lost process, errors of documented kinds
only.

    python -m benchmarks.soak_retrieval --minutes 24 --json benchmarks/results/soak_retrieval.json

A server process, searching clients that check every answer against an index of their own, and a saboteur who in turn
kills a client, leaves requests half-sent, sends what is no request, asks for too much, replaces the index under the
server (SIGHUP), and restarts it (SIGTERM, and SIGKILL). Two corpora alternate; an answer is right when it is, word for
word, that of the index whose fingerprint came with it.
"""

from __future__ import annotations

import json as json_module
import multiprocessing
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from mempo_agents.provenance import git_revision, machine_class, versions
from mempo_env.errors import RetrievalError
from mempo_env.retrieval.bm25_disk import DiskBM25Retriever, build_bm25
from mempo_env.retrieval.corpus import Corpus, build_corpus
from mempo_env.retrieval.remote import RemoteRetriever
from mempo_env.retrieval.sources import read_source

FAULTS = ("kill a client", "half a request", "no request", "too much", "swap the index", "restart", "kill the server")
DOCUMENTED = {"408", "413", "422", "503", "504", "closed"}


def run(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long.")] = 24.0,
    clients: Annotated[int, typer.Option(min=1, help="Searching processes.")] = 4,
    passages: Annotated[int, typer.Option(min=200, help="Articles in each of the two corpora.")] = 5000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the faults and of the queries.")] = 0,
    json: Annotated[Path | None, typer.Option(help="Write the results here.")] = None,
) -> None:
    """Run the soak; exit code 1 when anything was wrong."""
    with tempfile.TemporaryDirectory() as name:
        result = _Soak(Path(name), clients, passages, seed).run(minutes * 60)
    print(json_module.dumps(result, indent=1))
    if json is not None:
        command = shlex.join(["python", "-m", "benchmarks.soak_retrieval", *sys.argv[1:]])
        about = {"schema_version": 1, "command": command, "machine": machine_class(), "versions": versions()}
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_text(
            json_module.dumps({**about, "git": git_revision(), **result}, indent=1) + "\n", encoding="utf-8"
        )
    if result["wrong_results"] or result["lost_processes"] or result["undocumented"]:
        raise typer.Exit(1)


def _searcher(folders: list[str], url: str, seed: int, counts: Any, stop: Any) -> None:
    """Search until told to stop, and compare each answer with that of the index that gave it."""
    own = {}
    for folder in folders:
        retriever = DiskBM25Retriever(Corpus(Path(folder) / "corpus"), Path(folder) / "bm25")
        own[retriever.fingerprint] = retriever
    words = sorted({word for r in own.values() for p in r.passages[:200] for word in p.text.split()})
    rng = random.Random(seed)
    remote = RemoteRetriever(url, total_seconds=20.0, read_seconds=10.0, retries=6)
    while not stop.is_set():
        queries = [" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(rng.choice((1, 1, 4, 16)))]
        k = rng.choice((1, 3, 3, 10))
        try:
            found = remote.search(queries, k)
        except RetrievalError as error:
            kind = "replaced during a search" if "was replaced" in str(error) else "typed errors"
            counts.put((kind, str(error)[:200]))
            continue
        # The fingerprint belongs to this answer: one process, one request at a time.
        right = own[remote.fingerprint].search(queries, k) if remote.fingerprint in own else None
        counts.put(("right results" if found == right else "wrong results", f"{remote.fingerprint} {queries} {k}"))


class _Soak:
    def __init__(self, folder: Path, clients: int, passages: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self._live = folder / "live"
        self._indexes = [folder / "a", folder / "b"]
        for number, path in enumerate(self._indexes):
            source = f"world:size={passages},seed={number + 1}"
            build_corpus(read_source(source), path / "corpus", source=source)
            build_bm25(Corpus(path / "corpus"), path / "bm25")
        self._now = 0
        self._point_at(0)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._port = listener.getsockname()[1]
        self._n_clients, self._seed = clients, seed
        self._context = multiprocessing.get_context("spawn")
        self._counts: Any = self._context.Queue()
        self._stop = self._context.Event()
        self._clients: list[Any] = []
        self._seen: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._lost = 0

    def _point_at(self, number: int) -> None:
        """Let the served folder be the other index, in one step."""
        link = self._live.with_name("next")
        link.symlink_to(self._indexes[number], target_is_directory=True)
        os.replace(link, self._live)

    def run(self, seconds: float) -> dict[str, Any]:
        self._start_server()
        for number in range(self._n_clients):
            self._add_client(number)
        started = time.monotonic()
        order: list[str] = []
        while time.monotonic() - started < seconds:
            if not order:
                order = self._rng.sample(FAULTS, len(FAULTS))
            fault = order.pop()
            self._do(fault)
            self._seen[f"fault: {fault}"] += 1
            self._listen(self._rng.uniform(1.0, 4.0))
        self._stop.set()
        for client in self._clients:
            client.join(40)
            if client.exitcode != 0:
                self._lost += 1
        self._listen(0.5)
        memory = Path(f"/proc/{self._server.pid}/status").read_text()
        resident = next(int(line.split()[1]) // 1024 for line in memory.splitlines() if line.startswith("VmRSS"))
        self._server.send_signal(signal.SIGTERM)
        code = self._server.wait(90)
        undocumented = {k: v for k, v in self._seen.items() if k.startswith("answer ") and k[7:] not in DOCUMENTED}
        return {
            "minutes": round((time.monotonic() - started) / 60, 2),
            "right_results": self._seen["right results"],
            "wrong_results": self._seen["wrong results"],
            "lost_processes": self._lost + (code not in (0, -signal.SIGTERM)),
            "undocumented": undocumented,
            "typed_errors": self._seen["typed errors"] + self._seen["replaced during a search"],
            "counts": dict(sorted(self._seen.items())),
            "examples": self._examples,
            "server_resident_mib_at_the_end": resident,
        }

    def _start_server(self) -> None:
        command = [sys.executable, "-m", "mempo_agents.cli", "serve", str(self._live), "--port", str(self._port)]
        self._server = subprocess.Popen([*command, "--timeout", "30"], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise TimeoutError("The server did not start.")

    def _add_client(self, number: int) -> None:
        folders = [str(path) for path in self._indexes]
        url = f"http://127.0.0.1:{self._port}"
        arguments = (folders, url, self._seed * 1000 + number, self._counts, self._stop)
        client = self._context.Process(target=_searcher, args=arguments, daemon=True)
        client.start()
        self._clients.append(client)

    def _listen(self, seconds: float) -> None:
        """Collect what the clients report, and look after the processes."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                kind, example = self._counts.get(timeout=left)
            except Exception:  # empty; or a client was killed while it wrote its report
                continue
            self._seen[kind] += 1
            if kind != "right results":
                self._examples.setdefault(kind, example)
        self._lost += self._server.poll() is not None

    def _do(self, fault: str) -> None:
        if fault == "kill a client":
            # Its report may be half-written when it dies, so the killed one reports to a queue of its own.
            own_queue = self._context.Queue()
            folders = [str(path) for path in self._indexes]
            url = f"http://127.0.0.1:{self._port}"
            victim = self._context.Process(
                target=_searcher, args=(folders, url, 77, own_queue, self._stop), daemon=True
            )
            victim.start()
            time.sleep(self._rng.uniform(1.0, 3.0))
            victim.kill()
            victim.join()
            own_queue.close()
        elif fault == "half a request":
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", self._port), timeout=5) as connection:
                    connection.sendall(b'POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"que')
        elif fault == "no request":
            for body in (b"{", b'{"queries": [1]}', b'{"queries": ["a"], "topk": true}', b"\xff" * 100, b"[" * 10_000):
                self._note(self._ask(body))
        elif fault == "too much":
            self._note(self._ask(b"", declared=200_000_000))
            self._note(self._ask(json_module.dumps({"queries": ["a"] * 100_000}).encode()))
            self._note(self._ask(b'{"queries": ["a"], "topk": 1000000000}'))
        elif fault == "swap the index":
            self._now = 1 - self._now
            self._point_at(self._now)
            self._server.send_signal(signal.SIGHUP)
        else:
            self._server.send_signal(signal.SIGTERM if fault == "restart" else signal.SIGKILL)
            self._server.wait(90)
            self._start_server()

    def _ask(self, body: bytes, declared: int | None = None) -> str:
        """The status that the server answers with; "closed" where it hangs up."""
        length = len(body) if declared is None else declared
        head = f"POST /retrieve HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n".encode()
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=20) as connection:
                connection.sendall(head + body)
                answer = connection.recv(64)
        except OSError:
            return "closed"
        return answer.split(b" ")[1].decode() if answer.startswith(b"HTTP/1.1 ") else "closed"

    def _note(self, status: str) -> None:
        self._seen[f"answer {status}"] += 1
        if status not in DOCUMENTED:
            self._examples.setdefault(f"answer {status}", status)


if __name__ == "__main__":
    typer.run(run)
