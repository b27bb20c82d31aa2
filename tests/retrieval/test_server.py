"""The search server: Search-R1's protocol to the letter, limits, and an event loop that never waits for a search."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
from retrieval_support import StubRetriever, serve

from mempo_env.retrieval.bm25 import BM25Retriever
from mempo_env.types import Hit, Passage

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")

from mempo_env.retrieval.gather import Gatherer, QueueFullError  # noqa: E402
from mempo_env.retrieval.server import Limits, create_app  # noqa: E402

CLIENT = httpx.Client(trust_env=False, timeout=30)  # one for all: making a client costs 50 ms
PASSAGES = [
    Passage("0", '"Oslo"', "Oslo is the capital of Norway.\nIt lies on a fjord."),
    Passage("1", '"Bergen"', "Bergen is a city of Norway."),
    Passage("2", "", "one line about rain"),
]


@pytest.fixture(scope="module")
def small() -> Iterator[str]:
    app = create_app(BM25Retriever(PASSAGES, backend="numpy"), limits=Limits(max_body_bytes=1 << 20))
    with serve(app) as url:
        yield url


def post(url: str, **body: Any) -> Any:
    return CLIENT.post(f"{url}/retrieve", json=body)


def test_the_protocol_table(small: str) -> None:
    oslo = {"id": "0", "contents": '"Oslo"\nOslo is the capital of Norway.\nIt lies on a fjord.'}
    rain = {"id": "2", "contents": "one line about rain"}
    # One, two and three queries without scores: bare documents, one list per query.
    for queries, expected in (
        (["fjord"], [[oslo]]),
        (["fjord", "rain"], [[oslo], [rain]]),
        (["fjord", "rain", "fjord"], [[oslo], [rain], [oslo]]),
    ):
        assert post(small, queries=queries, topk=3).json() == {"result": expected}
        scored = post(small, queries=queries, topk=3, return_scores=True).json()["result"]
        assert [[hit["document"] for hit in hits] for hits in scored] == expected
        assert all(set(hit) == {"document", "score"} and hit["score"] > 0 for hits in scored for hit in hits)
    assert post(small, queries=[], topk=3, return_scores=True).json() == {"result": []}
    # topk null or absent: the server's default, 3. Fewer passages than topk: a shorter list, no padding.
    assert len(post(small, queries=["norway city rain capital"], topk=None).json()["result"][0]) == 3
    assert len(post(small, queries=["norway city rain capital"]).json()["result"][0]) == 3
    assert len(post(small, queries=["norway"], topk=50).json()["result"][0]) == 2
    assert len(post(small, queries=["norway"], topk=1).json()["result"][0]) == 1
    # No passage shares a word: an empty list, not arbitrary passages.
    assert post(small, queries=["zzzz", "", "the of"]).json() == {"result": [[], [], []]}


@pytest.mark.parametrize(
    "body",
    [
        b'{"queries": ["a"], "topk": 0}',
        b'{"queries": ["a"], "topk": -1}',
        b'{"queries": ["a"], "topk": 1000000000}',
        b'{"queries": ["a"], "topk": "5"}',
        b'{"queries": ["a"], "topk": 2.5}',
        b'{"queries": ["a"], "topk": 2.0}',
        b'{"queries": ["a"], "topk": true}',
        b'{"queries": ["a"], "topk": NaN}',
        b'{"queries": ["a"], "topk": 99999999999999999999999999}',
        b'{"queries": ["a"], "return_scores": 1}',
        b'{"queries": ["a"], "return_scores": null}',
        b'{"queries": "a"}',
        b'{"queries": [1]}',
        b'{"queries": [null]}',
        b'{"queries": ["\\ud800"]}',
        b'{"queries": ["a"], "index": "../../etc"}',
        b'{"topk": 3}',
        b'["a"]',
        b"null",
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps({"queries": ["a"] * 100_000}).encode(),
        json.dumps({"queries": ["a" * 100_000]}).encode(),
    ],
    ids=lambda body: repr(body[:44]),
)
def test_what_is_no_request_is_refused(small: str, body: bytes) -> None:
    started = time.monotonic()
    response = CLIENT.post(f"{small}/retrieve", content=body)
    assert response.status_code == 422, response.text
    assert response.json()["detail"]
    assert time.monotonic() - started < 5
    assert post(small, queries=["fjord"]).status_code == 200


def test_other_methods_and_routes(small: str) -> None:
    assert CLIENT.get(f"{small}/retrieve").status_code == 405
    assert CLIENT.get(f"{small}/../etc/passwd").status_code == 404


def _send(url: str, head: bytes, pieces: Iterator[bytes]) -> bytes:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
        connection.sendall(head)
        try:
            for piece in pieces:
                connection.sendall(piece)
        except OSError:
            pass  # the server has answered and hung up, as it may
        try:
            return connection.recv(65536)
        except ConnectionResetError:
            return b""


def test_large_bodies_are_refused_declared_or_chunked(small: str) -> None:
    head = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    started = time.monotonic()
    answer = _send(small, head + b"Content-Length: 200000000\r\n\r\n", iter([b"x" * 1000]))
    assert answer.startswith(b"HTTP/1.1 413")
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    # 3 MB in chunks without a declared length, where 1 MiB is allowed; the answer may be lost in the reset.
    answer = _send(small, head + b"Transfer-Encoding: chunked\r\n\r\n", iter([chunk] * 48))
    assert answer.startswith(b"HTTP/1.1 413") or answer == b""
    answer = _send(small, head + b"Transfer-Encoding: chunked\r\n\r\n", iter([chunk] * 17))
    assert answer.startswith(b"HTTP/1.1 413")
    assert time.monotonic() - started < 10
    assert post(small, queries=["fjord"]).status_code == 200


def test_a_body_that_drips_is_given_up() -> None:
    app = create_app(StubRetriever(), limits=Limits(body_timeout_seconds=0.3))
    with serve(app) as url:
        head = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
            connection.sendall(head + b"{")
            assert connection.recv(1000).startswith(b"HTTP/1.1 408")


def test_a_slow_search_blocks_nobody() -> None:
    stub = StubRetriever(seconds=0.5)
    with serve(create_app(stub, limits=Limits(workers=4))) as url, ThreadPoolExecutor(5) as pool:
        started = time.monotonic()
        slow = [pool.submit(post, url, queries=[f"q{i}"], topk=i + 1) for i in range(4)]
        time.sleep(0.05)
        asked = time.monotonic()
        assert CLIENT.get(f"{url}/health").json()["status"] == "ok"
        assert time.monotonic() - asked < 0.4
        for i, future in enumerate(slow):
            assert [d["id"] for d in future.result().json()["result"][0]] == [f"q{i}#{j}" for j in range(i + 1)]
        assert time.monotonic() - started < 1.6  # one after the other would take 2 seconds


def test_requests_are_gathered_and_never_mixed_up() -> None:
    stub = StubRetriever(seconds=0.05)
    with serve(create_app(stub, limits=Limits(max_batch_queries=64))) as url, ThreadPoolExecutor(16) as pool:

        def ask(i: int) -> bool:
            queries = [f"q{i}-{j}" for j in range(i % 4)] + ["shared"]
            result = post(url, queries=queries, topk=1 + i % 2).json()["result"]
            return [hits[0]["id"] for hits in result] == [f"{query}#0" for query in queries] and all(
                len(hits) == 1 + i % 2 for hits in result
            )

        assert all(pool.map(ask, range(80)))
        assert len(stub.calls) < 40  # 80 requests
        assert max(stub.calls) <= 64


def test_threads_get_the_answers_that_one_caller_gets(small: str) -> None:
    queries = ["fjord", "norway", "rain", "city of norway", "capital", "nothing here"] * 34
    alone = [post(small, queries=[query], topk=2, return_scores=True).json() for query in queries[:6]] * 34
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda q: post(small, queries=[q], topk=2, return_scores=True).json(), queries))
    assert together == alone


def test_a_full_queue_says_when_to_come_back() -> None:
    stub = StubRetriever(seconds=0.5)
    limits = Limits(max_queue_queries=2, max_batch_queries=1, retry_after_seconds=7)
    with serve(create_app(stub, limits=limits)) as url, ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda i: post(url, queries=[f"q{i}"]), range(8)))
    statuses = sorted(r.status_code for r in responses)
    assert set(statuses) == {200, 503}
    assert all(r.headers["retry-after"] == "7" for r in responses if r.status_code == 503)


def test_a_search_that_takes_too_long_and_one_that_breaks() -> None:
    stub = StubRetriever(seconds=0.6)
    with serve(create_app(stub, limits=Limits(timeout_seconds=0.2))) as url:
        assert post(url, queries=["q"]).status_code == 504
    stub = StubRetriever(seconds=0.1)
    with serve(create_app(stub)) as url, ThreadPoolExecutor(6) as pool:
        responses = list(pool.map(lambda q: post(url, queries=[q]), ["a", "b", "boom", "c", "d", "e"]))
        # The request that breaks the search gets a failure; those gathered with it get their answers.
        assert [r.status_code for r in responses] == [200, 200, 500, 200, 200, 200]
        assert "the index is broken" in responses[2].json()["detail"]


def test_the_token() -> None:
    with serve(create_app(StubRetriever(), token="s3cret \u00e9")) as url:
        assert CLIENT.get(f"{url}/health").status_code == 200
        for header in (None, "Bearer", "Bearer wrong", "Basic s3cret", "Bearer s3cret"):
            headers = {"Authorization": header} if header else {}
            for method, path in (("POST", "/retrieve"), ("GET", "/info"), ("GET", "/metrics")):
                response = CLIENT.request(method, url + path, headers=headers, json={"queries": ["a"]})
                assert response.status_code == 401
    with serve(create_app(StubRetriever(), token="s3cret")) as url:
        for scheme in ("Bearer", "bearer"):
            headers = {"Authorization": f"{scheme} s3cret"}
            body = {"queries": ["a"]}
            assert CLIENT.post(f"{url}/retrieve", headers=headers, json=body).status_code == 200
    with pytest.raises(ValueError, match="token"):
        create_app(StubRetriever(), token="  ")


def test_info_metrics_and_a_swapped_index() -> None:
    app = create_app(StubRetriever(fingerprint="old"))
    with serve(app) as url:
        response = post(url, queries=["a", "b"])
        assert response.headers["x-index-fingerprint"] == "old"
        info = CLIENT.get(f"{url}/info").json()
        assert (info["name"], info["fingerprint"], info["limits"]["max_top_k"]) == ("stub", "old", 100)
        app.state.service.swap(StubRetriever(fingerprint="new"))
        assert post(url, queries=["a"]).headers["x-index-fingerprint"] == "new"
        assert CLIENT.get(f"{url}/info").json()["fingerprint"] == "new"
        post(url, queries="bad")
        text = CLIENT.get(f"{url}/metrics").text
        assert 'mempo_requests_total{status="200"} 2.0' in text
        assert 'mempo_requests_total{status="422"} 1.0' in text
        assert "mempo_queries_total 3.0" in text
        assert "mempo_index_swaps_total 1.0" in text
        assert "mempo_waiting_queries 0.0" in text


def test_stopping_lets_running_requests_finish() -> None:
    answers: list[int] = []
    with serve(create_app(StubRetriever(seconds=0.6))) as url:
        parts = urlsplit(url)

        def ask() -> None:
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
            connection.request("POST", "/retrieve", json.dumps({"queries": ["a"]}))
            answers.append(connection.getresponse().status)
            connection.close()

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.2)  # the request is being searched when the server is told to stop
    thread.join(5)
    assert answers == [200]


def test_search_r1s_client_code_works_unchanged(small: str) -> None:
    """The calls that Search-R1's and MEM1's rollouts make, re-stated: payload, access path, title and text."""
    payload = {"queries": ["fjord", "rain"], "topk": 3, "return_scores": True}
    results = CLIENT.post(f"{small}/retrieve", json=payload).json()["result"]
    text = ""
    for i, item in enumerate(results[0]):
        content = item["document"]["contents"]
        title, body = content.split("\n")[0], "\n".join(content.split("\n")[1:])
        text += f"Doc {i + 1}(Title: {title}) {body}\n"
    assert text == 'Doc 1(Title: "Oslo") Oslo is the capital of Norway.\nIt lies on a fjord.\n'


def test_workers_share_the_queries_alike() -> None:
    """Worked by hand: 12 one-query requests for two workers. The first two are searched at once, a query each. When one
    of them ends, 11 are in the house, and its worker takes half, 6; the other finds 4."""

    async def scenario() -> None:
        stub = StubRetriever(seconds=0.1)
        gatherer = Gatherer(stub, workers=2)
        for _ in range(2):  # the second time, nothing that has ended counts any more
            await asyncio.gather(*(gatherer.search([f"q{i}"], 1) for i in range(12)))
            assert sorted(stub.calls) == [1, 1, 4, 6]  # threads begin in any order
            stub.calls.clear()
            # A request is never cut, and one that is larger than a share is searched all the same.
            await asyncio.gather(gatherer.search([f"q{i}" for i in range(20)], 1), gatherer.search(["last"], 1))
            assert sorted(stub.calls) == [1, 20]
            with pytest.raises(RuntimeError):
                await gatherer.search(["boom"], 1)
            stub.calls.clear()
        await gatherer.close()

    asyncio.run(scenario())


def test_what_is_cancelled_takes_no_place_and_no_share() -> None:
    async def scenario() -> None:
        stub = StubRetriever(seconds=0.1)
        gatherer = Gatherer(stub, workers=2, max_queue_queries=40)
        running = [asyncio.create_task(gatherer.search([f"r{i}"], 1)) for i in range(2)]
        await asyncio.sleep(0)  # they are taken up
        gone = [asyncio.create_task(gatherer.search([f"gone{i}"], 1)) for i in range(40)]
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        assert gatherer.waiting_queries == 0
        await asyncio.gather(*(gatherer.search([f"q{i}"], 1) for i in range(10)), *running)
        assert sorted(stub.calls) == [1, 1, 4, 6]  # threads begin in any order
        await gatherer.close()

    asyncio.run(scenario())


def test_what_cannot_go_along_keeps_its_order() -> None:
    async def scenario() -> None:
        stub = StubRetriever(seconds=0.02)
        gatherer = Gatherer(stub)
        asked = [(1, 1), (1, 1), (4, 2), (5, 3), (1, 1), (6, 2)]  # queries and k; the first is searched alone
        await asyncio.gather(*(gatherer.search([f"q{i}"] * n, k) for i, (n, k) in enumerate(asked)))
        assert stub.calls == [1, 2, 2, 1]  # equal queries are searched once: k=1 twice, k=2 twice, k=3
        stub.calls.clear()
        asked = [(1, 1), (2, 2), (3, 3), (4, 4)]
        await asyncio.gather(*(gatherer.search([f"q{i}" for i in range(n)], k) for n, k in asked))
        assert stub.calls == [1, 2, 3, 4]
        await gatherer.close()

    asyncio.run(scenario())


def test_a_request_larger_than_the_queue_is_served_where_nobody_waits() -> None:
    async def scenario() -> None:
        stub = StubRetriever(seconds=0.05)
        gatherer = Gatherer(stub, max_queue_queries=3)
        found = asyncio.create_task(gatherer.search([f"q{i}" for i in range(10)], 1))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(gatherer.search(["one"], 1))
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="1 queries are waiting, of at most 3"):
            await gatherer.search(["a", "b", "c"], 1)
        assert len((await found).hits) == 10
        await waiting
        assert (await gatherer.search([], 1)).hits == []
        await gatherer.close()

    asyncio.run(scenario())


def test_one_broken_query_is_found_by_halving() -> None:
    async def scenario() -> None:
        stub = StubRetriever(seconds=0.05)
        gatherer = Gatherer(stub)
        first = asyncio.create_task(gatherer.search(["first"], 1))
        await asyncio.sleep(0)  # it is taken up
        tasks = [gatherer.search(["boom" if i == 5 else f"q{i}"], 1) for i in range(8)]
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(item).__name__ for item in found] == ["Found"] * 5 + ["RuntimeError"] + ["Found"] * 2
        assert stub.calls == [1, 8, 4, 4, 2, 1, 1, 2]  # the half of 5, then of 5 and 4
        await first
        await gatherer.close()

    asyncio.run(scenario())


def test_a_retriever_that_ends_an_iteration_costs_its_request_only() -> None:
    class Ending(StubRetriever):
        def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
            if queries == ["end"]:
                raise StopIteration
            return super().search(queries, k)

    async def scenario() -> None:
        gatherer = Gatherer(Ending())
        async with asyncio.timeout(20):
            with pytest.raises(RuntimeError, match="StopIteration"):
                await gatherer.search(["end"], 1)
            assert len((await gatherer.search(["q"], 1)).hits) == 1
        await gatherer.close()

    asyncio.run(scenario())


def test_a_replaced_index_is_let_go() -> None:
    first: StubRetriever | None = StubRetriever()
    gone = weakref.ref(first)
    app = create_app(first)
    with serve(app) as url:
        assert post(url, queries=["q"]).status_code == 200
        app.state.service.swap(StubRetriever(fingerprint="stub-2"))
        first = None
        assert post(url, queries=["q"]).headers["X-Index-Fingerprint"] == "stub-2"
        gc.collect()
        assert gone() is None


def test_gatherer_forgets_cancelled_requests_and_keeps_ks_apart() -> None:
    async def scenario() -> None:
        stub = StubRetriever(seconds=0.1)
        gatherer = Gatherer(stub, max_queue_queries=10)
        first = asyncio.create_task(gatherer.search(["first"], 1))
        await asyncio.sleep(0.02)
        waiting = [asyncio.create_task(gatherer.search([f"q{i}", f"r{i}"], 1 + i % 2)) for i in range(4)]
        await asyncio.sleep(0)
        assert gatherer.waiting_queries == 8
        with pytest.raises(QueueFullError, match="8 queries are waiting"):
            await gatherer.search(["a", "b", "c"], 1)
        waiting[0].cancel()
        found = await asyncio.gather(*waiting[1:])
        assert [[len(hits) for hits in item.hits] for item in found] == [[2, 2], [1, 1], [2, 2]]
        assert (await first).hits[0][0].passage.id == "first#0"
        assert stub.calls == [1, 4, 2]  # the cancelled one is not searched; k=2 and k=1 go apart
        assert gatherer.waiting_queries == 0
        last = asyncio.create_task(gatherer.search(["last"], 1))
        await asyncio.sleep(0)
        await gatherer.close()
        assert len((await last).hits) == 1
        with pytest.raises(QueueFullError, match="stopping"):
            await gatherer.search(["late"], 1)

    asyncio.run(scenario())
