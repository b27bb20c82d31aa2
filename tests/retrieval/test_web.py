"""Web search and visits against real servers on the loopback that speak the services' protocols."""

from __future__ import annotations

import json
import pickle
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from retrieval_support import http, raw_server, read_request

from mempo_env.errors import DataError, RetrievalError, UnknownNameError
from mempo_env.retrieval.base import Retriever

pytest.importorskip("httpx")
pytest.importorskip("trafilatura")

from mempo_env.retrieval import fetch
from mempo_env.retrieval.fetch import FetchLimits, PageError, is_public, normalise_url
from mempo_env.retrieval.json_client import Patience
from mempo_env.retrieval.replay import ReplayCache
from mempo_env.retrieval.web import WebRetriever, cut

KEY = "k3y-that-nobody-sees"
LOCAL = FetchLimits(allow_private=True, total_seconds=2.0, max_bytes=100_000)
QUICK = Patience(total_seconds=3.0, retries=1, backoff_seconds=0.01)
ARTICLE = """<html><head><title>Lake Saimaa</title></head><body><nav>Home | About</nav><article><h1>Lake Saimaa</h1>
<p>Lake Saimaa is the largest lake in Finland. It covers about 4,400 square kilometres of the country's south-east.</p>
<p>The towns of Lappeenranta, Imatra and Savonlinna stand on its shores, and a rare ringed seal lives in its waters.</p>
</article><script>alert(1)</script></body></html>"""

Route = Callable[[str, bytes], bytes]


def site(route: Route) -> Any:
    """A server: `route(path, whole request)` gives the response."""

    def handle(connection: socket.socket, number: int) -> None:
        request = read_request(connection)
        if request:
            connection.sendall(route(request.split(b" ")[1].decode(), request))

    return raw_server(handle)


def page(body: str, headers: str = "Content-Type: text/html; charset=utf-8\r\n", status: str = "200 OK") -> bytes:
    return http(status, body.encode(), headers)


def pages(path: str, request: bytes) -> bytes:
    table = {
        "/robots.txt": page("User-agent: *\nDisallow: /private\n", "Content-Type: text/plain\r\n"),
        "/saimaa": page(ARTICLE),
        "/moved": page("", "Location: /saimaa\r\n", "302 Found"),
        "/loop": page("", "Location: /loop\r\n", "302 Found"),
        "/away": page("", "Location: ftp://elsewhere/x\r\n", "302 Found"),
        "/plain": page("just words", "Content-Type: text/plain\r\n"),
        "/pdf": page("%PDF", "Content-Type: application/pdf\r\n"),
        "/empty": page("<html><body></body></html>"),
        "/private": page(ARTICLE),
        "/large": page("<html><body><p>" + "long words here " * 100_000 + "</p></body></html>"),
    }
    return table.get(path, page("no", status="404 Not Found"))


@pytest.fixture
def web() -> Iterator[tuple[str, WebRetriever]]:
    with site(pages) as url:
        retriever = WebRetriever("searxng:http://127.0.0.1:9", limits=LOCAL, patience=QUICK)
        yield url, retriever
        retriever.close()


def text_of(retriever: WebRetriever, url: str) -> str:
    (hits,) = retriever.visit([url])
    assert len(hits) == 1
    return hits[0].passage.text


def test_a_visit_gives_title_and_main_text(web: tuple[str, WebRetriever]) -> None:
    url, retriever = web
    (hits,) = retriever.visit([f"{url}/saimaa#part"])
    assert hits[0].passage.id == f"{url}/saimaa"
    assert hits[0].passage.title == "Lake Saimaa"
    assert "largest lake in Finland" in hits[0].passage.text
    assert "alert" not in hits[0].passage.text
    assert "About" not in hits[0].passage.text
    assert text_of(retriever, f"{url}/moved") == hits[0].passage.text
    assert text_of(retriever, f"{url}/plain") == "just words"
    small = WebRetriever("searxng:http://x", limits=LOCAL, max_page_chars=60)
    assert text_of(small, f"{url}/saimaa").endswith("[...]")
    assert len(text_of(small, f"{url}/saimaa")) <= 60
    assert len(text_of(retriever, f"{url}/large")) <= 6000


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/nowhere", "status 404"),
        ("/loop", "too many redirects"),
        ("/away", "only http and https"),
        ("/pdf", "no page of text but application/pdf"),
        ("/empty", "no text on it"),
        ("/private", "robots.txt does not allow it"),
    ],
)
def test_what_is_wrong_with_a_page_is_told(web: tuple[str, WebRetriever], path: str, reason: str) -> None:
    url, retriever = web
    assert text_of(retriever, url + path).startswith("This page cannot be read: ")
    assert reason in text_of(retriever, url + path)


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1/",
        "http://localhost/",
        "http://[::1]/",
        "http://0.0.0.0/",
        "http://10.0.0.1/",
        "http://192.168.1.1/",
        "http://172.16.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fe80::1]/",
        "http://[fc00::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://127.1/",
        "http://100.64.0.1/",
        "http://224.0.0.1/",
    ],
)
def test_addresses_of_private_networks_are_refused(address: str) -> None:
    retriever = WebRetriever("searxng:http://x", limits=FetchLimits(total_seconds=3, respect_robots=False))
    text = text_of(retriever, address)
    assert "not on the public internet" in text or "no such site" in text  # some systems do not read 0x7f.1


def test_a_redirect_into_the_private_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = []

    def route(path: str, request: bytes) -> bytes:
        reached.append(path)
        return page("", "Location: http://169.254.169.254/secret\r\n", "302 Found")

    # The test's own server counts as public; everything else is judged as always.
    monkeypatch.setattr(fetch, "is_public", lambda address: address == "127.0.0.1" or is_public(address))
    with site(route) as url:
        retriever = WebRetriever("searxng:http://x", limits=FetchLimits(total_seconds=3, respect_robots=False))
        assert "not on the public internet" in text_of(retriever, f"{url}/start")
    assert reached == ["/start"]


def test_a_name_that_changes_its_address_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: checked once as public, looked up again as loopback. The connection must go to the first."""
    import asyncio

    lookups: list[str] = []
    loop_class = asyncio.SelectorEventLoop
    original = loop_class.getaddrinfo

    async def getaddrinfo(self: Any, host: Any, port: Any, **options: Any) -> Any:
        if host in ("rebind.example", b"rebind.example"):  # some clients look names up as bytes
            lookups.append(host)
            address = "203.0.113.9" if len(lookups) == 1 else "127.0.0.1"
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]
        return await original(self, host, port, **options)

    monkeypatch.setattr(loop_class, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(fetch, "is_public", lambda address: address == "203.0.113.9")
    with site(pages) as url:
        port = url.rpartition(":")[2]
        limits = FetchLimits(total_seconds=1.0, connect_seconds=0.3, respect_robots=False)
        text = text_of(WebRetriever("searxng:http://x", limits=limits), f"http://rebind.example:{port}/saimaa")
    assert "Saimaa" not in text
    assert lookups == ["rebind.example"]


def test_a_host_with_one_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    async def getaddrinfo(self: Any, host: Any, port: Any, **options: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in ("93.184.216.34", "127.0.0.1")]

    monkeypatch.setattr(asyncio.SelectorEventLoop, "getaddrinfo", getaddrinfo)
    retriever = WebRetriever("searxng:http://x", limits=FetchLimits(total_seconds=1.0, respect_robots=False))
    assert "not on the public internet" in text_of(retriever, "http://both.example/")


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://h/x", "javascript://x", "http://u:p@h/", "http://", "http://a b/", "", "http://h:x/"],
)
def test_addresses_that_cannot_be_opened(url: str) -> None:
    with pytest.raises(PageError):
        normalise_url(url)
    assert text_of(WebRetriever("searxng:http://x"), url).startswith("This page cannot be read")


def test_addresses_are_normalised() -> None:
    assert normalise_url(" example.com/a?b=c#d ") == "https://example.com/a?b=c"
    assert normalise_url("http://b\u00fccher.example") == "http://xn--bcher-kva.example/"
    assert normalise_url("http://[2001:db8::1]:8080/x") == "http://[2001:db8::1]:8080/x"


def test_slow_and_endless_pages_end() -> None:
    def handle(connection: socket.socket, number: int) -> None:
        if read_request(connection).startswith(b"GET /robots.txt"):
            connection.sendall(http("404 No", b""))
            return
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n")
        while True:
            connection.sendall(b"<p>words ")
            time.sleep(0.1)

    with raw_server(handle) as url:
        started = time.monotonic()
        limits = FetchLimits(allow_private=True, total_seconds=0.8)
        assert "did not answer in time" in text_of(WebRetriever("searxng:http://x", limits=limits), url)
        assert time.monotonic() - started < 3


SERPER = {
    "organic": [
        {"title": "One", "link": "https://one.example/a", "snippet": "first", "position": 1},
        {"title": "Two", "link": "https://two.example/", "snippet": "second"},
        {"title": "One again", "link": "https://one.example/a", "snippet": "repeated"},
        {"title": "No link"},
        {"title": "Script", "link": "javascript:alert(1)", "snippet": "x"},
        {"title": "Three", "link": "http://three.example/"},
    ],
    "answerBox": {"answer": "not used"},
}


def test_serper_and_its_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    requests: list[bytes] = []

    def route(path: str, request: bytes) -> bytes:
        requests.append(request)
        if f"x-api-key: {KEY}".encode() not in request.lower():
            return http("403 No", f"bad key {KEY}".encode())
        return http("200 OK", json.dumps(SERPER).encode())

    with site(route) as url:
        retriever = WebRetriever(f"serper:{url}/search", patience=QUICK, replay=tmp_path)
        assert isinstance(retriever, Retriever)
        with pytest.raises(RetrievalError, match="SERPER_API_KEY"):
            retriever.search(["saimaa"], 3)
        monkeypatch.setenv("SERPER_API_KEY", KEY)
        (hits,) = retriever.search(["saimaa"], 3)
        assert [(h.passage.id, h.passage.title) for h in hits] == [
            ("https://one.example/a", "One"),
            ("https://two.example/", "Two"),
            ("http://three.example/", "Three"),
        ]
        assert hits[0].passage.text == "https://one.example/a\nfirst"
        assert json.loads(requests[-1].partition(b"\r\n\r\n")[2]) == {"q": "saimaa", "num": 3}
        recorded = "".join(path.read_text() for path in tmp_path.rglob("*.json"))
        everywhere = repr(retriever) + retriever.fingerprint + recorded + repr(pickle.dumps(retriever))
        assert KEY not in everywhere
        monkeypatch.setenv("SERPER_API_KEY", KEY + "-wrong")
    with site(lambda path, request: http("403 No", f"bad key {KEY}".encode())) as url:
        monkeypatch.setenv("SERPER_API_KEY", KEY)
        with pytest.raises(RetrievalError, match=r"403: bad key \*\*\*"):
            WebRetriever(f"serper:{url}", patience=QUICK).search(["x"], 1)


def test_searxng() -> None:
    answer = {"results": [{"title": "T", "url": "https://t.example/", "content": "about t"}], "number_of_results": 1}
    paths = []

    def route(path: str, request: bytes) -> bytes:
        paths.append(path)
        return http("200 OK", json.dumps(answer).encode())

    with site(route) as url:
        retriever = WebRetriever(f"searxng:{url}", patience=QUICK)
        found = retriever.search(["caf\u00e9 & tea", "", "caf\u00e9 & tea", "\ud800"], 5)
    assert [len(hits) for hits in found] == [1, 0, 1, 1]
    assert sorted(paths)[-1] == "/search?q=caf%C3%A9+%26+tea&format=json"
    assert len(paths) == 2
    with pytest.raises(UnknownNameError, match="searxng:URL"):
        WebRetriever("google")


@pytest.mark.parametrize(
    "response", [http("500 No", b""), http("200 OK", b"<html>"), http("200 OK", b'{"organic": 1}')]
)
def test_a_broken_search_service_is_an_error_and_never_no_results(
    monkeypatch: pytest.MonkeyPatch, response: bytes
) -> None:
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    with site(lambda path, request: response) as url, pytest.raises(RetrievalError):
        WebRetriever(f"serper:{url}", patience=QUICK).search(["a", "b"], 3)


def test_a_recording_is_replayed_offline_word_for_word(tmp_path: Path) -> None:
    answer = {"results": [{"title": "T", "url": "https://t.example/", "content": "about t"}]}

    def route(path: str, request: bytes) -> bytes:
        return http("200 OK", json.dumps(answer).encode()) if path.startswith("/search") else pages(path, request)

    with site(route) as url:
        online = WebRetriever(f"searxng:{url}", limits=LOCAL, patience=QUICK, replay=tmp_path)
        searched = online.search(["q"], 3)
        visited = online.visit([f"{url}/saimaa", f"{url}/nowhere"])
        backend = online.backend
    offline = WebRetriever(backend, limits=LOCAL, patience=QUICK, replay=ReplayCache(tmp_path, "replay"))
    assert offline.search(["q"], 3) == searched
    assert offline.visit([f"{url}/saimaa", f"{url}/nowhere"]) == visited
    with pytest.raises(RetrievalError, match="Not recorded"):
        offline.search(["another"], 3)
    with pytest.raises(RetrievalError, match="Not recorded"):
        offline.visit([f"{url}/plain"])


def test_cut_ends_at_a_word() -> None:
    assert cut("short", 100) == "short"
    assert cut("alpha beta gamma delta", 20) == "alpha beta [...]"
    assert cut("x" * 50, 20) == "x" * 14 + " [...]"
    assert len(cut("ab cd " * 100, 7)) <= 7


def test_the_environment_searches_and_visits(tmp_path: Path) -> None:
    import gymnasium as gym

    import mempo_env  # noqa: F401

    questions = tmp_path / "q.jsonl"
    questions.write_text('{"question": "Largest lake in Finland?", "answer": ["Saimaa"]}\n' * 1)
    with site(pages) as url:
        answer = {"results": [{"title": "Lake Saimaa", "url": f"{url}/saimaa", "content": "a lake"}]}

        def route(path: str, request: bytes) -> bytes:
            return http("200 OK", json.dumps(answer).encode())

        with site(route) as api:
            web = WebRetriever(f"searxng:{api}", limits=LOCAL, patience=QUICK)
            env = gym.make("MemPO-WebQA-v0", dataset=questions, retriever=web, objectives=1, disable_env_checker=True)
            observation, info = env.reset(seed=0)
            assert "visit" in observation

            def step(tool: str, name: str, value: str) -> tuple[Any, ...]:
                call = json.dumps({"name": tool, "arguments": {name: value}})
                return env.step(f"<mem>m</mem><think>t</think><tool_call>{call}</tool_call>")

            observation, *_, info = step("search", "query", "largest lake Finland")
            assert info["hit_ids"] == (f"{url}/saimaa",)
            assert f"{url}/saimaa" in observation
            observation, *_, info = step("visit", "url", f"{url}/saimaa")
            assert info["action"] == "visit"
            assert "largest lake in Finland" in observation
            *_, info = env.step("<mem>m</mem><think>t</think><answer>Saimaa</answer>")
            assert info["em"] == (1.0,)
        env.reset(seed=0)
        _, reward, terminated, truncated, info = step("search", "query", "another thing")  # the service is gone
        assert (info["stop_reason"], terminated, truncated) == ("failed", False, True)
        assert reward != reward
    with pytest.raises(DataError, match="questions about the real world"):
        gym.make("MemPO-WebQA-v0")
