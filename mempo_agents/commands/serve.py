"""`mempo serve`: a search server that speaks Search-R1's protocol."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from mempo_env.retrieval.base import Retriever


def run(
    source: Annotated[
        str | None, typer.Argument(help="A folder that `mempo index` wrote, or a data set such as world or a file.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="bm25, dense or hybrid; default: what the folder has.")] = None,
    shards: Annotated[
        str | None, typer.Option(help="Addresses of other servers, comma-separated, each over a part of the corpus.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 opens it to the network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    device: Annotated[str, typer.Option(help="cpu or cuda, for encoder and index.")] = "cpu",
    placement: Annotated[str, typer.Option(help="On several GPUs: shard or replicate.")] = "shard",
    effort: Annotated[int | None, typer.Option(min=1, help="Lists probed (IVF) or candidates kept (HNSW).")] = None,
    rerank: Annotated[str | None, typer.Option(help="A cross-encoder that ranks the hits again.")] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Hits per query where the request names no topk.")] = 3,
    max_top_k: Annotated[int, typer.Option(min=1, help="The largest topk.")] = 100,
    max_queries: Annotated[int, typer.Option(min=1, help="Queries in one request.")] = 1024,
    max_body_mb: Annotated[float, typer.Option(min=0.001, help="Megabytes of one request.")] = 4.0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until a request is given up (504).")] = 60.0,
    batch: Annotated[
        int, typer.Option(min=1, help="Queries gathered into one search; 1 switches gathering off.")
    ] = 256,
    queue: Annotated[int, typer.Option(min=1, help="Queries that may wait; more are refused with 503.")] = 8192,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Searches at the same time. Default: one a processor, at most 4; one on a GPU and over --shards.",
        ),
    ] = None,
    token_env: Annotated[
        str | None, typer.Option(help="Name of an environment variable that holds the token clients must send.")
    ] = None,
) -> None:
    """Serve POST /retrieve (Search-R1's protocol), /health, /info and /metrics.

    SIGTERM and Ctrl-C let running requests finish. SIGHUP opens the folder again, for an index that was replaced.
    """
    import asyncio
    import os
    import signal
    import threading
    import time

    if shards is not None and (workers or 1) > 1:
        raise typer.BadParameter(
            "--workers: --shards are searched once at a time, so that hits and index belong together."
        )
    workers = workers or default_workers(device if shards is None else "shards")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads_within(workers)))  # read at import
    try:
        import uvicorn
    except ImportError:
        from mempo_env.errors import MissingExtraError

        raise MissingExtraError("uvicorn", "server", "The search server") from None
    from mempo_env.retrieval.server import Limits, SearchService, create_app, example_query

    if (source is None) == (shards is None):
        raise typer.BadParameter("Give a folder or data set, or --shards, and not both.")
    token = None
    if token_env is not None:
        token = os.environ.get(token_env, "").strip()
        if not token:
            raise typer.BadParameter(f"--token-env: the environment variable {token_env} is not set.")
    elif host not in ("127.0.0.1", "localhost", "::1"):
        typer.echo(f"Anyone who can reach {host}:{port} can search; --token-env asks for a token.", err=True)

    def load() -> Retriever:
        return _open(source, shards, kind, device, placement, effort, rerank)

    if hasattr(signal, "SIGHUP"):
        # Until the server runs there is nothing to reload, and the default would end the process.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    retriever = load()
    listener = _bound(host, port)
    started = time.perf_counter()
    example = example_query(retriever)
    retriever.search([example], top_k)
    first = time.perf_counter() - started
    started = time.perf_counter()
    retriever.search([example], top_k)
    typer.echo(
        f"{retriever.name} {retriever.fingerprint}: first search {first * 1000:.0f} ms, "
        f"next {(time.perf_counter() - started) * 1000:.1f} ms",
        err=True,
    )

    def on_start(service: SearchService) -> None:
        one_at_a_time, asked = threading.Lock(), 0

        def reload(number: int) -> None:
            with one_at_a_time:
                if number < asked:
                    return  # a later signal wants the same, and finds a newer folder
                try:
                    fresh = load()
                    fresh.search([example_query(fresh)], top_k)
                except Exception as error:
                    typer.echo(f"Reload failed, the old index stays: {type(error).__name__}: {error}", err=True)
                    return
                loop.call_soon_threadsafe(service.swap, fresh)
                typer.echo(f"Reloaded: {fresh.name} {fresh.fingerprint}", err=True)

        def on_signal() -> None:
            nonlocal asked
            asked += 1
            threading.Thread(target=reload, args=(asked,), daemon=True).start()

        typer.echo(f"Serving at {_address(listener)}", err=True)
        loop = asyncio.get_running_loop()
        if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
            loop.add_signal_handler(signal.SIGHUP, on_signal)

    limits = Limits(
        max_body_bytes=int(max_body_mb * 2**20),
        max_queries=max_queries,
        max_top_k=max_top_k,
        default_top_k=min(top_k, max_top_k),
        timeout_seconds=timeout,
        max_batch_queries=batch,
        max_queue_queries=queue,
        workers=workers,
    )
    config = uvicorn.Config(
        create_app(retriever, limits=limits, token=token, on_start=on_start),
        log_level="warning",
        access_log=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(timeout) + 1,
    )
    del retriever  # the service has it, and lets it go for the next one
    with listener, suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])


def _bound(host: str, port: int) -> socket.socket:
    """A socket at that address. Nobody can connect until the server listens."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ValueError(
            f"--host {host} --port {port}: expected an address that is free on this machine, got {error.strerror!r}. "
            "Name another port; 0 takes a free one."
        ) from error
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def default_workers(where: str) -> int:
    """Searches at the same time: one a processor ("cpu"), at most 4, so that batches stay large; one anywhere else."""
    return min(4, _processors()) if where == "cpu" else 1


def threads_within(workers: int) -> int:
    """Of each search: the processors go to searches at the same time first."""
    return max(1, _processors() // workers)


def _processors() -> int:
    """Those that this process may use."""
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _open(
    source: str | None,
    shards: str | None,
    kind: str | None,
    device: str,
    placement: str,
    effort: int | None,
    rerank: str | None,
) -> Retriever:
    if shards is not None:
        from mempo_env.retrieval.remote import RemoteRetriever
        from mempo_env.retrieval.sharded import ShardedRetriever

        return ShardedRetriever([RemoteRetriever(url.strip()) for url in shards.split(",")])
    folder = Path(source or "")
    options: dict[str, Any] = {"device": device, "placement": placement, "effort": effort, "rerank": rerank}
    if (folder / "corpus" / "manifest.json").exists():
        import threading

        from mempo_env.retrieval.memory import read_ahead
        from mempo_env.retrieval.store import indexes_in, open_retriever

        indexes = indexes_in(folder) if kind in (None, "hybrid") else (kind,)
        threading.Thread(target=read_ahead, args=[folder / part for part in ("corpus", *indexes)], daemon=True).start()
        return open_retriever(folder, kind, **options)
    if kind not in (None, "bm25") or effort is not None or rerank is not None:
        raise typer.BadParameter(f"{source} is no folder that `mempo index` wrote; it can be served with bm25 only.")
    from mempo_env.retrieval import get_retriever
    from mempo_env.tasks import load_dataset

    return get_retriever("bm25", load_dataset(source or ""))
