"""The client against servers that are slow, dead, lying, half-closed, or somewhere else: right hits or a typed
error."""

from __future__ import annotations

import gc
import json
import multiprocessing
import pickle
import socket
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from retrieval_support import StubRetriever, http, raw_server, read_request, serve

from mempo_env.errors import RetrievalError
from mempo_env.retrieval.base import Retriever
from mempo_env.types import Hit, Passage

psutil = pytest.importorskip("psutil")
pytest.importorskip("httpx")
pytest.importorskip("fastapi")

from mempo_env.retrieval.remote import RemoteRetriever  # noqa: E402
from mempo_env.retrieval.server import Limits, create_app  # noqa: E402

FAST = {"connect_seconds": 1.0, "read_seconds": 1.0, "total_seconds": 3.0, "backoff_seconds": 0.01}
GOOD = json.dumps({"result": [[{"document": {"id": "1", "contents": "T\nbody"}, "score": 0.5}]]}).encode()
HIT = Hit(Passage("1", "T", "body"), 0.5)


def answers(*responses: bytes) -> Callable[[socket.socket, int], None]:
    """Connection number n gets response n; the last one repeats."""

    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(responses[min(number, len(responses) - 1)])

    return handle


def test_parity_with_the_retriever_behind_the_server() -> None:
    stub = StubRetriever()
    with serve(create_app(stub)) as url:
        remote = RemoteRetriever(url)
        assert isinstance(remote, Retriever)
        queries = ["a", "nothing", "caf\u00e9 \u6771\u4eac \U0001f9e0", "a", "", "two\nlines"]
        assert remote.search(queries, 3) == stub.search(queries, 3)
        assert [remote.search([q], 3)[0] for q in queries] == stub.search(queries, 3)
        assert remote.search([], 3) == []
        assert remote.fingerprint == "stub-1"
        with pytest.raises(ValueError, match="Expected k to be an integer of at least 1"):
            remote.search(["a"], 0)
        with pytest.raises(TypeError, match="one string"):
            remote.search("a", 1)
        # A policy may write anything: too long is cut, half a surrogate pair is replaced, and both are answered.
        assert remote.search(["x" * 100_000], 1)[0][0].passage.text == "about " + "x" * 4096
        assert remote.search(["\ud800y"], 1)[0][0].passage.text == "about \ufffdy"
        remote.close()
        assert remote.search(["again"], 1) == stub.search(["again"], 1)


def open_connections() -> int:
    return sum(connection.status == "ESTABLISHED" for connection in psutil.Process().net_connections())


def test_many_clients_need_one_thread_and_leave_no_connection() -> None:
    with serve(create_app(StubRetriever())) as url, warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(10):
            assert RemoteRetriever(url).search([f"q{i}"], 1)[0][0].passage.id == f"q{i}#0"
        gc.collect()
        deadline = time.monotonic() + 10
        while open_connections() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert open_connections() == 0
    assert sum(thread.name == "retrieval-client" for thread in threading.enumerate()) == 1


def test_many_queries_go_out_in_parts_and_come_back_in_order() -> None:
    stub = StubRetriever()
    with serve(create_app(stub, limits=Limits(max_queries=10))) as url:
        remote = RemoteRetriever(url, max_queries=10)
        queries = [f"q{i % 60}" for i in range(95)]
        assert remote.search(queries, 2) == stub.search(queries, 2)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda i: remote.search([f"t{i}"], 1), range(40)))
        assert [hits[0][0].passage.id for hits in found] == [f"t{i}#0" for i in range(40)]


@pytest.mark.parametrize("status", ["408 Slow", "429 Many", "500 Broken", "503 Busy"])
def test_passing_troubles_are_tried_again(status: str) -> None:
    with raw_server(answers(http(status, b"no"), http(status, b"no"), http("200 OK", GOOD))) as url:
        assert RemoteRetriever(url, **FAST).search(["q"], 3) == [[HIT]]


def test_a_broken_connection_is_tried_again() -> None:
    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        if number == 0:
            return  # hang up without a word
        if number == 1:
            connection.sendall(http("200 OK", GOOD)[:-5])  # half a body, then closed
            return
        connection.sendall(http("200 OK", GOOD))

    with raw_server(handle) as url:
        assert RemoteRetriever(url, **FAST).search(["q"], 3) == [[HIT]]


def test_retries_are_bounded() -> None:
    seen = []

    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        seen.append(number)
        connection.sendall(http("503 Busy", b"come back later"))

    with raw_server(handle) as url, pytest.raises(RetrievalError, match=r"503: come back later .attempt 3 of 3"):
        RemoteRetriever(url, retries=2, **FAST).search(["q"], 3)
    assert len(seen) == 3


def test_retry_after_is_honoured_in_both_forms_and_bounded() -> None:
    for form, least in (("seconds", 0.9), ("date", 0.5)):
        value = "1" if form == "seconds" else formatdate(time.time() + 2, usegmt=True)
        busy = http("503 Busy", b"", f"Retry-After: {value}\r\n")
        with raw_server(answers(busy, http("200 OK", GOOD))) as url:
            started = time.monotonic()
            assert RemoteRetriever(url, **FAST).search(["q"], 3) == [[HIT]]
            assert time.monotonic() - started >= least
    with raw_server(answers(http("503 Busy", b"", "Retry-After: 3600\r\n"))) as url:
        started = time.monotonic()
        with pytest.raises(RetrievalError, match="after total_seconds"):
            RemoteRetriever(url, **FAST).search(["q"], 3)
        assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (http("200 OK", b"<html>proxy login</html>"), "status 200, but the body is no JSON: <html>proxy login"),
        (http("200 OK", b'{"result": ['), "no JSON"),
        (http("200 OK", b'{"hits": []}'), "expected .*result"),
        (http("200 OK", b'{"result": []}'), "sent 1 queries, got 0 results"),
        (http("200 OK", b'{"result": [[], []]}'), "sent 1 queries, got 2 results"),
        (http("200 OK", b'{"result": ["text"]}'), "expected a list of documents"),
        (http("200 OK", b'{"result": [[{"document": {"id": "1"}, "score": 1}]]}'), "contents or text"),
        (http("200 OK", b'{"result": [[{"document": {"contents": "a"}, "score": NaN}]]}'), "finite number"),
        (http("200 OK", b'{"result": [[{"document": {"contents": "a"}, "score": "1"}]]}'), "finite number"),
        (http("404 No", b"nothing here"), "status 404: nothing here"),
        (http("401 Who", b"token?"), "status 401: token"),
        (http("422 No", b"topk"), "status 422: topk"),
        (http("204 No", b""), "status 204"),
        (http("200 OK", b"[" * 100_000), "no JSON"),
        (http("200 OK", b"not gzip", "Content-Encoding: gzip\r\n"), "encoding is broken"),
    ],
    ids=range(15),
)
def test_lies_are_errors_and_not_tried_again(response: bytes, words: str) -> None:
    seen = []

    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        seen.append(number)
        connection.sendall(response)

    with raw_server(handle) as url, pytest.raises(RetrievalError, match=words):
        RemoteRetriever(url, **FAST).search(["q"], 3)
    assert seen == [0]


def _silent(connection: socket.socket, number: int) -> None:
    read_request(connection)
    time.sleep(30)


def _drip_head(connection: socket.socket, number: int) -> None:
    read_request(connection)
    for byte in http("200 OK", GOOD):
        connection.sendall(bytes([byte]))
        time.sleep(0.2)


def _drip_body(connection: socket.socket, number: int) -> None:
    read_request(connection)
    response = http("200 OK", GOOD)
    head = len(response) - len(GOOD)
    connection.sendall(response[:head])
    for byte in response[head:]:
        connection.sendall(bytes([byte]))
        time.sleep(0.2)


def _half_closed(connection: socket.socket, number: int) -> None:
    connection.shutdown(socket.SHUT_RD)
    time.sleep(30)


@pytest.mark.parametrize("handle", [_silent, _drip_head, _drip_body, _half_closed])
def test_the_total_deadline_holds_against_any_server(handle: Any) -> None:
    with raw_server(handle) as url:
        started = time.monotonic()
        with pytest.raises(RetrievalError):
            RemoteRetriever(url, connect_seconds=0.5, read_seconds=0.5, total_seconds=1.0, retries=9).search(["q"], 3)
        assert time.monotonic() - started < 2.5


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    remote = RemoteRetriever(f"http://127.0.0.1:{port}", retries=1, **FAST)
    with pytest.raises(RetrievalError, match="ConnectError"):
        remote.search(["q"], 3)
    assert remote.fingerprint.startswith("remote-")


def test_redirects_stay_on_the_server() -> None:
    with raw_server(answers(http("200 OK", GOOD))) as elsewhere:
        for status in ("301 Moved", "302 Found", "307 Moved", "308 Moved"):
            redirect = http(status, b"", f"Location: {elsewhere}/retrieve\r\n")
            with raw_server(answers(redirect)) as url, pytest.raises(RetrievalError, match="refused the redirect"):
                RemoteRetriever(url, **FAST).search(["q"], 3)
    moved = http("307 Moved", b"", "Location: /v2/retrieve\r\n")
    with raw_server(answers(moved, http("200 OK", GOOD))) as url:
        assert RemoteRetriever(url, **FAST).search(["q"], 3) == [[HIT]]
    with raw_server(answers(moved)) as url, pytest.raises(RetrievalError, match="more than 3 redirects"):
        RemoteRetriever(url, **FAST).search(["q"], 3)


def test_the_environments_proxy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with raw_server(answers(http("200 OK", GOOD))) as url:
        assert RemoteRetriever(url, **FAST).search(["q"], 3) == [[HIT]]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        # a document as a plain string, of one line and of two
        (["just text"], [Passage("fe5be3ce4b19a6b4", "", "just text")]),
        ([{"document": "T\nb", "score": 1.0}], [Passage("6d0d6c5a1e3ff5f9", "T", "b")]),
        # no score, title and text instead of contents, whole-number ids, the same passage twice, more than k
        ([{"document": {"id": 7, "title": "T", "text": "b"}}] * 2, [Passage("7", "T", "b")]),
        ([{"id": str(i), "contents": "x"} for i in range(7)], [Passage(str(i), "", "x") for i in range(3)]),
    ],
)
def test_other_servers_of_the_protocol_are_understood(result: list[Any], expected: list[Passage]) -> None:
    with raw_server(answers(http("200 OK", json.dumps({"result": [result]}).encode()))) as url:
        found = [hit.passage for hit in RemoteRetriever(url, **FAST).search(["q"], 3)[0]]
    assert [(p.title, p.text) for p in found] == [(p.title, p.text) for p in expected]
    if not isinstance(result[0], str) and not isinstance(result[0].get("document"), str):
        assert found == expected
    assert len({p.id for p in found}) == len(found)


def test_the_token_is_sent_and_shown_nowhere() -> None:
    with serve(create_app(StubRetriever(), token="s3cret")) as url:
        remote = RemoteRetriever(url, token="s3cret")
        assert remote.search(["a"], 1)[0][0].passage.id == "a#0"
        assert "s3cret" not in repr(remote) + str(remote) + remote.fingerprint + remote.name
        with pytest.raises(RetrievalError, match="401"):
            RemoteRetriever(url, token="wrong").search(["a"], 1)


@pytest.mark.parametrize("url", ["ftp://host", "localhost:8000", "http://", "http://user:pw@host/"])
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="RemoteRetriever: expected"):
        RemoteRetriever(url)


def _search_in_child(remote: RemoteRetriever) -> str:
    return remote.search(["child"], 1)[0][0].passage.id


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pickles_and_survives_a_fork_with_open_connections(method: str) -> None:
    with serve(create_app(StubRetriever())) as url:
        remote = RemoteRetriever(url)
        remote.search(["parent"], 1)
        assert pickle.loads(pickle.dumps(remote)).search(["copy"], 1)[0][0].passage.id == "copy#0"
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.apply_async(_search_in_child, (remote,)).get(20) == "child#0"
        assert remote.search(["parent again"], 1)[0][0].passage.id == "parent again#0"


def _inherit(remote: RemoteRetriever, queue: Any) -> None:
    queue.put(remote.search(["inherited"], 1)[0][0].passage.id)


def test_an_inherited_client_opens_its_own_connections() -> None:
    context = multiprocessing.get_context("fork")
    with serve(create_app(StubRetriever())) as url:
        remote = RemoteRetriever(url)
        remote.search(["parent"], 1)
        queue = context.Queue()
        process = context.Process(target=_inherit, args=(remote, queue))  # forked: the object itself, not a pickle
        process.start()
        assert queue.get(timeout=20) == "inherited#0"
        process.join(10)
        assert remote.search(["parent"], 1)[0][0].passage.id == "parent#0"


def test_the_cache_answers_only_for_the_same_index(tmp_path: Path) -> None:
    stub = StubRetriever(fingerprint="one")
    app = create_app(stub)
    with serve(app) as url:
        for _ in range(2):  # the second time from disk, in a new client
            remote = RemoteRetriever(url, cache_dir=tmp_path)
            assert remote.search(["a", "b", "a"], 2) == StubRetriever().search(["a", "b", "a"], 2)
        assert stub.calls == [2]
        assert remote.search(["a", "c"], 2) == StubRetriever().search(["a", "c"], 2)
        assert remote.search(["a"], 3) == StubRetriever().search(["a"], 3)  # another k is another question
        assert stub.calls == [2, 1, 1]
        other = StubRetriever(fingerprint="two")
        app.state.service.swap(other)
        remote.search(["a"], 2)
        assert other.calls == [1]
        remote.close()
    with raw_server(answers(http("404 No", b""))) as url, pytest.raises(RetrievalError, match="404"):
        RemoteRetriever(url, cache_dir=tmp_path, **FAST).search(["a"], 2)


def test_an_expected_index_is_checked() -> None:
    app = create_app(StubRetriever(fingerprint="one"))
    with serve(app) as url:
        remote = RemoteRetriever(url, expect="one")
        remote.search(["a"], 1)
        app.state.service.swap(StubRetriever(fingerprint="two"))
        with pytest.raises(RetrievalError, match="expected the index 'one', the server answers from 'two'"):
            remote.search(["a"], 1)
