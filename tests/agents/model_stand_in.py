"""A server that speaks the OpenAI protocol as vLLM extends it, around a tiny model: plain, slow and honest.

It samples token by token with a full forward each, looks for stop strings in the text, and reports raw
log-probabilities, so it shares nothing with the engines that it tests but the model.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import torch

MODEL = "tiny"
# What a strict server, as OpenAI's, accepts.
STRICT = {"model", "messages", "max_tokens", "temperature", "top_p", "seed", "stop", "n"}


class Script(torch.nn.Module):
    """Says exactly these tokens behind a prompt of `prompt` tokens, however often it is asked to go on."""

    def __init__(self, tokens: list[int], prompt: int, size: int) -> None:
        super().__init__()
        self.tokens, self.prompt, self.size = tokens, prompt, size

    def forward(self, ids: torch.Tensor) -> Any:
        logits = torch.full((1, ids.shape[1], self.size), -50.0)
        at = ids.shape[1] - self.prompt
        logits[0, -1, self.tokens[at] if at < len(self.tokens) else 0] = 50.0
        return type("Output", (), {"logits": logits})


class ModelStandIn:
    """Runs in a thread on a free port while entered.

    vllm: with vLLM's fields; else a strict server that has chat alone. echo_only: prompts are scored by echo alone.
    processed: log-probabilities at the sampling temperature. key: what requests must bear. cuts: strict servers cut the
    stop string off. fault(route, body, number) may return (status, body) to answer instead, or sleep.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        vllm: bool = True,
        echo_only: bool = False,
        scores: bool = True,
        processed: bool = False,
        key: str | None = None,
        max_model_len: int | None = 4096,
        fault: Callable[[str, dict[str, Any], int], tuple[int, Any] | None] | None = None,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.vllm, self.echo_only, self.scores, self.processed = vllm, echo_only, scores, processed
        self.key, self.max_model_len, self.fault = key, max_model_len, fault
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.running = self.most = 0
        self.stopped = False
        self.pause = 0.0
        self._lock = threading.Lock()

    def __enter__(self) -> ModelStandIn:
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                stand_in.answer(self, {})

            def do_POST(self) -> None:
                stand_in.answer(self, json.loads(self.rfile.read(int(self.headers["content-length"]))))

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped = True  # for connections that are kept alive
        self.http.shutdown()
        self.http.server_close()

    def answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        if self.stopped:
            handler.close_connection = True
            return
        route = handler.path.removeprefix("/v1/")
        with self._lock:
            self.bodies.append((route, body))
            number = sum(seen == route for seen, _ in self.bodies) - 1
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            if body:
                time.sleep(self.pause)
            if self.key is not None and handler.headers.get("authorization") != f"Bearer {self.key}":
                status, value = 401, _error(f"Incorrect key: {handler.headers.get('authorization')}")
            else:
                status, value = (self.fault and self.fault(route, body, number)) or self.serve(route, body)
        finally:
            with self._lock:
                self.running -= 1
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        try:
            handler.send_response(status)
            handler.send_header("content-type", "application/json")
            handler.send_header("content-length", str(len(content)))
            handler.end_headers()
            handler.wfile.write(content)
        except OSError:  # the client has given up
            pass

    def serve(self, route: str, body: dict[str, Any]) -> tuple[int, Any]:
        if route == "models":
            card: dict[str, Any] = {"id": MODEL, "object": "model", "owned_by": "someone"}
            if self.vllm:
                card |= {"owned_by": "vllm", "root": MODEL, "max_model_len": self.max_model_len}
            return 200, {"object": "list", "data": [card]}
        if not self.vllm and (route != "chat/completions" or set(body) - STRICT):
            return 400, _error(f"Unrecognized request: {route} {sorted(set(body) - STRICT)}")
        if route == "completions":
            return self.complete(body)
        return self.chat(body)

    def complete(self, body: dict[str, Any]) -> tuple[int, Any]:
        prompt = body["prompt"]
        if self.max_model_len is not None and len(prompt) + max(body["max_tokens"], 1) > self.max_model_len:
            return 400, _error(f"This model's maximum context length is {self.max_model_len} tokens. However, ...")
        if "prompt_logprobs" in body and (self.echo_only or not self.scores):
            return 400, _error("Unknown field prompt_logprobs")
        if body.get("echo"):
            if not self.scores:
                return 200, _choice(text="", logprobs=None, finish_reason="length")
            values = [None, *self.scored(prompt)]
            names = [f"token_id:{token}" for token in prompt]
            return 200, _choice(text="", logprobs={"tokens": names, "token_logprobs": values}, finish_reason="length")
        ids, text, logprobs, finish, stop = self.sample(prompt, body)
        choice = {
            "text": text,
            "logprobs": {"tokens": [f"token_id:{token}" for token in ids], "token_logprobs": logprobs},
            "finish_reason": finish,
            "stop_reason": stop,
            "token_ids": ids if body.get("return_token_ids") else None,
            "prompt_token_ids": prompt if body.get("return_token_ids") else None,
        }
        if "prompt_logprobs" in body:
            entries = zip(prompt[1:], self.scored(prompt), strict=True)
            choice["prompt_logprobs"] = [None, *({str(token): {"logprob": value}} for token, value in entries)]
        return 200, _choice(**choice)

    def chat(self, body: dict[str, Any]) -> tuple[int, Any]:
        text = self.tokenizer.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
        prompt = self.tokenizer.encode(text, add_special_tokens=False)
        if self.max_model_len is not None and len(prompt) + body["max_tokens"] > self.max_model_len:
            return 400, _error("Too long.", code="context_length_exceeded")
        _, text, _, finish, stop = self.sample(prompt, body)
        if isinstance(stop, str) and not body.get("include_stop_str_in_output"):
            text = text[: text.rindex(stop)]
        return 200, _choice(message={"role": "assistant", "content": text}, finish_reason=finish)

    def sample(self, prompt: list[int], body: dict[str, Any]) -> tuple[list[int], str, list[float], str, Any]:
        """(ids, text, log-probabilities, finish_reason, stop_reason), where a server would stop."""
        rng = np.random.default_rng(body.get("seed"))
        ids: list[int] = []
        logprobs: list[float] = []
        special = body.get("skip_special_tokens", True)
        end = {self.tokenizer.eos_token_id, *body.get("stop_token_ids", ())}
        while len(ids) < body["max_tokens"]:
            logits = self.logits([*prompt, *ids])[-1]
            raw = torch.log_softmax(logits, -1)
            shown = torch.log_softmax(logits / (body["temperature"] or 1), -1)
            if body["temperature"]:
                top = body.get("top_k", 2)  # a default of its own, as from a generation_config.json
                kept = shown if top < 1 else shown.masked_fill(shown < shown.topk(top).values[-1], -torch.inf)
                p = torch.softmax(kept, -1).numpy()
                token = int(rng.choice(len(p), p=p / p.sum()))
            else:
                token = int(raw.argmax())
            ids.append(token)
            logprobs.append(float((shown if self.processed else raw)[token]))
            if token in end:
                text = self.tokenizer.decode(ids[:-1], skip_special_tokens=special)
                return ids, text, logprobs, "stop", None if token == self.tokenizer.eos_token_id else token
            text = self.tokenizer.decode(ids, skip_special_tokens=special)
            for stop in body.get("stop", ()):
                if stop in text:
                    return ids, text[: text.index(stop) + len(stop)], logprobs, "stop", stop
        return ids, self.tokenizer.decode(ids, skip_special_tokens=special), logprobs, "length", None

    def scored(self, ids: list[int]) -> list[float]:
        logprobs = torch.log_softmax(self.logits(ids), -1)
        return [float(logprobs[at, token]) for at, token in enumerate(ids[1:])]

    def logits(self, ids: list[int]) -> torch.Tensor:
        with self._lock, torch.inference_mode():
            return self.model(torch.tensor([ids])).logits[0].double()


def _choice(**fields: Any) -> dict[str, Any]:
    return {"object": "completion", "model": MODEL, "choices": [{"index": 0, **fields}]}


def _error(message: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "code": code}}
