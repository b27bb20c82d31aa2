"""`mempo serve` as a process of its own: SIGHUP takes a replaced index, SIGTERM ends it without an error."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mempo_env.retrieval.corpus import Corpus, build_corpus
from mempo_env.types import Passage

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")
pytest.importorskip("pyarrow")

from mempo_env.retrieval.bm25_disk import DiskBM25Retriever, build_bm25  # noqa: E402
from mempo_env.retrieval.remote import RemoteRetriever  # noqa: E402


def build(folder: Path, text: str, overwrite: bool = False) -> None:
    build_corpus([Passage("1", "T", text)], folder / "corpus", source="test", overwrite=overwrite)
    build_bm25(Corpus(folder / "corpus"), folder / "bm25", overwrite=overwrite)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_serve_reload_and_stop(tmp_path: Path) -> None:
    build(tmp_path, "the old word")
    port = free_port()
    environment = {**os.environ, "SEARCH_TOKEN": "s3cret", "OMP_NUM_THREADS": "1"}
    command = ["serve", str(tmp_path), "--port", str(port), "--token-env", "SEARCH_TOKEN", "--top-k", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mempo_agents.cli", *command], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(trust_env=False) as client:
            deadline = time.monotonic() + 60
            while True:
                try:
                    assert client.get(f"{url}/health").status_code == 200
                    break
                except httpx.TransportError:
                    assert process.poll() is None, process.communicate()[1]
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            remote = RemoteRetriever(url, token="s3cret")
            assert remote.search(["old word"], 1)[0][0].passage.text == "the old word"
            before = remote.fingerprint
            build(tmp_path, "a new word", overwrite=True)
            assert remote.search(["old word"], 1)[0][0].passage.text == "the old word"  # mapped files live on
            process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 30
            while remote.search(["word"], 1)[0][0].passage.text != "a new word":
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert remote.fingerprint != before
            # A folder that cannot be opened leaves the index in force.
            (tmp_path / "bm25" / "manifest.json").write_text("{")
            process.send_signal(signal.SIGHUP)
            time.sleep(0.5)
            assert remote.search(["word"], 1)[0][0].passage.text == "a new word"
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode in (0, -signal.SIGTERM), errors
    assert "s3cret" not in errors
    assert "Reload failed, the old index stays" in errors
    assert "Traceback" not in errors


def test_a_free_port_is_named_and_a_taken_one_refused(tmp_path: Path) -> None:
    build(tmp_path, "one word")
    command = [sys.executable, "-m", "mempo_agents.cli", "serve", str(tmp_path), "--port"]
    process = subprocess.Popen([*command, "0"], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        address = next(line.split()[-1] for line in process.stderr if line.startswith("Serving at http://127.0.0.1:"))
        deadline = time.monotonic() + 30
        with httpx.Client(trust_env=False) as client:
            while True:
                try:
                    assert client.get(f"{address}/health").status_code == 200
                    break
                except httpx.TransportError:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
        second = subprocess.run([*command, address.rpartition(":")[2]], capture_output=True, text=True, timeout=60)
        assert second.returncode == 2
        assert "expected an address that is free" in second.stderr
        assert "Traceback" not in second.stderr
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def test_what_cannot_be_served_is_said_in_one_line(tmp_path: Path) -> None:
    for arguments, words in (
        ([str(tmp_path / "nothing.json")], "nothing.json"),
        ([], "Give a folder"),
        (["world", "--kind", "dense"], "bm25 only"),
        (["world", "--token-env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
        (["--shards", "http://127.0.0.1:9", "--workers", "2"], "searched once at a time"),
    ):
        command = [sys.executable, "-m", "mempo_agents.cli", "serve", *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert result.returncode == 2, result.stderr
        assert words in " ".join(result.stderr.split()), json.dumps(result.stderr)
        assert "Traceback" not in result.stderr


# The second load (of the first SIGHUP) opens the old folder and takes its time; meanwhile the folder is replaced and
# a second SIGHUP comes. Which index stands once both reloads are over?
OVERTAKEN = """
import os, signal, sys, threading, time
import mempo_agents.commands.serve as serve
from mempo_env.retrieval.corpus import Corpus, build_corpus
from mempo_env.retrieval.bm25_disk import build_bm25
from mempo_env.types import Passage

folder = sys.argv[1]
opened, loads, open_now = threading.Event(), [], serve._open

def slow(*arguments):
    loads.append(1)
    retriever = open_now(*arguments)
    if len(loads) == 2:
        opened.set()
        time.sleep(1.5)
    return retriever

def drive():
    while not loads:
        time.sleep(0.05)
    time.sleep(1.0)  # it listens for signals when it serves
    os.kill(os.getpid(), signal.SIGHUP)
    opened.wait(20)
    build_corpus([Passage("1", "T", "a new word")], f"{folder}/corpus", source="test", overwrite=True)
    build_bm25(Corpus(f"{folder}/corpus"), f"{folder}/bm25", overwrite=True)
    os.kill(os.getpid(), signal.SIGHUP)

serve._open = slow
threading.Thread(target=drive, daemon=True).start()
serve.typer.run(serve.run)
"""


def test_a_reload_is_not_overtaken_by_an_earlier_one(tmp_path: Path) -> None:
    build(tmp_path, "the old word")
    process = subprocess.Popen(
        [sys.executable, "-c", OVERTAKEN, str(tmp_path), "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        lines = (line for line in process.stderr if line.startswith("Reloaded: "))
        first, last = next(lines), next(lines)
        assert last.split()[-1] == DiskBM25Retriever(Corpus(tmp_path / "corpus"), tmp_path / "bm25").fingerprint
        assert first != last
    finally:
        process.kill()
        process.communicate()
