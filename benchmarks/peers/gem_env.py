"""GEM's question environment with its search tool, timed. Runs in an interpreter of its own; prints JSON.

    python -m venv GEM && GEM/bin/pip install gem-llm transformers datasets requests

(the last three it needs, but does not declare)

    PYTHON gem_env.py JOB.json

The job holds questions, the texts of an episode and a table of search results. The search server is GEM's counterpart
in its own wire format (Search-R1's, in msgpack), in a process of its own; it answers from the table, so a search costs
it nothing but the transport.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from typing import Any


def serve(table: dict[str, list[str]], port_pipe: Any) -> None:
    """Answer searches from `table` until the process is ended."""
    import msgspec

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            query = msgspec.msgpack.decode(self.rfile.read(int(self.headers["Content-Length"])))["query"]
            found = [{"document": {"contents": text}, "score": 1.0} for text in table.get(query, [])]
            body = msgspec.msgpack.encode({"result": found})
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    port_pipe.send(server.server_address[1])
    server.serve_forever()


def measure(play: Callable[[], int], seconds: float, repeats: int) -> dict[str, list[float]]:
    """Steps per second, and this process's CPU milliseconds per step, of each repeat; `play` returns its steps."""
    play()
    rates, cpu = [], []
    for _ in range(repeats):
        steps, start, cpu_start = 0, time.perf_counter(), time.process_time()
        while (elapsed := time.perf_counter() - start) < seconds:
            steps += play()
        rates.append(steps / elapsed)
        cpu.append((time.process_time() - cpu_start) / steps * 1000)
    return {"steps_per_second": rates, "cpu_ms_per_step": cpu}


def main(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with redirect_stdout(sys.stderr):  # GEM prints while it builds
        import gem
        from datasets import Dataset
        from gem.tools.search_tool import SearchTool
        from gem.tools.tool_env_wrapper import ToolEnvWrapper
        from gem.wrappers.wrapper_factory import WRAPPER_FACTORY

        ours, theirs = multiprocessing.Pipe()
        server = multiprocessing.get_context("spawn").Process(target=serve, args=(job["table"], theirs), daemon=True)
        server.start()
        url = f"http://127.0.0.1:{ours.recv()}/retrieve"
        questions = Dataset.from_list(job["questions"])
        gem.register(
            "bench:QA", "gem.envs.qa_env:QaEnv", dataset=questions, question_key="question", answer_key="answer"
        )
        # The search tool, then the whole history as the observation: what our ReAct episodes show as well.
        wrappers = [
            partial(ToolEnvWrapper, tools=[SearchTool(topk=job["top_k"], search_url=url)], max_tool_uses=10),
            WRAPPER_FACTORY["concat_with_action"],
        ]
        results: dict[str, Any] = {"versions": {"gem-llm": version("gem-llm"), "python": sys.version.split()[0]}}
        for name, rows in (("single", 1), ("sync", job["rows"]), ("async", job["rows"])):
            envs = gem.make_vec(["bench:QA"] * rows, wrappers=wrappers, async_mode=name == "async")
            envs.reset(seed=0)
            check(envs.step([job["searches"][0]] * rows))
            envs.reset(seed=0)
            results[name] = measure(partial(play, envs, rows, job), job["seconds"], job["repeats"])
        server.terminate()
    print(json.dumps(results))


def play(envs: Any, rows: int, job: dict[str, Any]) -> int:
    """One episode in every row; the step that ends it begins the next (GEM's default)."""
    searches = job["searches"]
    for number in range(job["per_episode"]):
        envs.step([searches[(row + number) % len(searches)] for row in range(rows)])
    _, _, terminations, _, _ = envs.step([job["answer"]] * rows)
    assert terminations.all()
    return (job["per_episode"] + 1) * rows


def check(step: Any) -> None:
    """A search must have brought passages; its failures would come as text, and be fast."""
    observation = step[0][0]
    if "[SearchTool Error" in observation or "Doc 1(Title:" not in observation:
        raise RuntimeError(f"GEM's search did not work: {observation[-300:]!r}")


if __name__ == "__main__":
    main(sys.argv[1])
