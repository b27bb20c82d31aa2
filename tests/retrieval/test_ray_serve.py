"""The server under Ray Serve: replicas and shards answer like the retriever itself. Needs the extra `ray`."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from retrieval_support import make_passages

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
ray = pytest.importorskip("ray")
serve = pytest.importorskip("ray.serve")

from mempo_env.retrieval.bm25_disk import build_bm25  # noqa: E402
from mempo_env.retrieval.corpus import Corpus, build_corpus  # noqa: E402
from mempo_env.retrieval.ray_serve import application  # noqa: E402
from mempo_env.retrieval.remote import RemoteRetriever  # noqa: E402
from mempo_env.retrieval.sharded import ShardedRetriever  # noqa: E402
from mempo_env.retrieval.store import open_retriever  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.peer]
QUERIES = ["w3 w17", "w1", "", "Title 7", "zzzz"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
    ray.shutdown()


def build(folder: Path, seed: int) -> str:
    passages = [type(p)(f"{seed}-{p.id}", p.title, p.text) for p in make_passages(300, seed)]
    build_corpus(passages, folder / "corpus", source="test")
    build_bm25(Corpus(folder / "corpus"), folder / "bm25")
    return str(folder)


def test_replicas_answer_like_the_index(address: str, tmp_path: Path) -> None:
    folder = build(tmp_path / "one", 0)
    serve.run(application([folder], replicas=2, cpus_per_replica=0.5), name="default")
    remote = RemoteRetriever(address)
    expected = open_retriever(folder).search(QUERIES, 4)
    for _ in range(4):
        assert remote.search(QUERIES, 4) == expected
    assert remote.fingerprint == open_retriever(folder).fingerprint
    remote.close()
    serve.delete("default")


def test_shards_answer_like_their_merge(address: str, tmp_path: Path) -> None:
    folders = [build(tmp_path / str(seed), seed) for seed in range(3)]
    serve.run(application(folders, cpus_per_replica=0.5), name="default")
    merged = ShardedRetriever([open_retriever(folder) for folder in folders])
    remote = RemoteRetriever(address)
    assert remote.search(QUERIES, 4) == merged.search(QUERIES, 4)
    assert remote.fingerprint == merged.fingerprint
    remote.close()
    serve.delete("default")
