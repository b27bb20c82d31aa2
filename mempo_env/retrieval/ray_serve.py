"""Scale-out on Ray Serve: replicas of one index, or shards whose hits are merged. The application is `create_app`'s.

    from ray import serve
    from mempo_env.retrieval.ray_serve import application
    serve.run(application(["/data/wiki"], replicas=4))                     # four replicas behind Ray's proxy
    serve.run(application(["/data/part0", "/data/part1"], replicas=2))     # two shards of two replicas each

Each replica opens its folder by itself: the nodes need the same path, on shared or copied disks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from mempo_env.errors import MissingExtraError, RetrievalError
from mempo_env.retrieval.server import Limits, create_app
from mempo_env.retrieval.sharded import ShardedRetriever
from mempo_env.retrieval.store import open_retriever
from mempo_env.types import Hit, Passage

try:
    from ray import serve
except ImportError:
    raise MissingExtraError("ray[serve]", "ray", "Serving with Ray") from None

Rows = list[list[tuple[str, str, str, float | None]]]


class ShardServer:
    """One shard: answers with plain values, so that only text and numbers travel."""

    def __init__(self, folder: str, kind: str | None, device: str) -> None:
        self._retriever = open_retriever(folder, kind, device=device)

    def fingerprint(self) -> str:
        return self._retriever.fingerprint

    async def search(self, queries: list[str], k: int) -> Rows:
        # In a thread: the replica's event loop must stay free for health checks.
        found = await asyncio.to_thread(self._retriever.search, queries, k)
        return [[(h.passage.id, h.passage.title, h.passage.text, h.score) for h in hits] for hits in found]


class HandleRetriever:
    """A shard's deployment as a retriever; searched from worker threads, never from the event loop."""

    def __init__(self, handle: Any, timeout_seconds: float) -> None:
        self.name = "ray-shard"
        self._handle = handle
        self._timeout_seconds = timeout_seconds
        self._fingerprint: str | None = None

    @property
    def fingerprint(self) -> str:
        if self._fingerprint is None:
            self._fingerprint = str(self._ask(self._handle.fingerprint))
        return self._fingerprint

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        rows = self._ask(self._handle.search, list(queries), k)
        return [[Hit(Passage(*passage), score) for *passage, score in hits] for hits in rows]

    def _ask(self, method: Any, *arguments: Any) -> Any:
        try:
            return method.remote(*arguments).result(timeout_s=self._timeout_seconds)
        except Exception as error:  # Ray's errors have many types, the shard's own among them
            raise RetrievalError(f"A shard failed: {type(error).__name__}: {error}") from error


def application(
    folders: Sequence[str],
    *,
    kind: str | None = None,
    replicas: int = 1,
    device: str = "cpu",
    cpus_per_replica: float = 1,
    gpus_per_replica: float = 0,
    limits: Limits | None = None,
    token: str | None = None,
) -> Any:
    """A Ray Serve application for `serve.run`.

    folders: one folder of `mempo index`, or one for each shard. kind, device: see `open_retriever`. replicas: of the
    index, or of each shard. limits, token: see `create_app`.
    """
    if not folders:
        raise ValueError("application: expected at least one folder, got none.")
    limits = limits or Limits()
    actor = {"num_cpus": cpus_per_replica, "num_gpus": gpus_per_replica}
    if len(folders) == 1:
        folder = folders[0]

        def build_replica() -> Any:
            return create_app(open_retriever(folder, kind, device=device), limits=limits, token=token)

        ingress = serve.deployment(serve.ingress(build_replica)())
        return ingress.options(  # type: ignore[attr-defined]
            name="search", num_replicas=replicas, ray_actor_options=actor, max_ongoing_requests=1024
        ).bind()
    names = [f"shard-{number}" for number in range(len(folders))]
    shards = [
        serve.deployment(ShardServer)
        .options(name=name, num_replicas=replicas, ray_actor_options=actor, max_ongoing_requests=16)
        .bind(folder, kind, device)
        for name, folder in zip(names, folders, strict=True)
    ]

    def build_router() -> Any:
        seconds = limits.timeout_seconds
        handles = [serve.get_deployment_handle(name, app_name=_app_name()) for name in names]
        retriever = ShardedRetriever([HandleRetriever(handle, seconds) for handle in handles])
        return create_app(retriever, limits=limits, token=token)

    router = serve.deployment(serve.ingress(build_router)())
    return router.options(name="search", max_ongoing_requests=1024).bind(*shards)  # type: ignore[attr-defined]


def _app_name() -> str:
    return str(serve.get_replica_context().app_name)
