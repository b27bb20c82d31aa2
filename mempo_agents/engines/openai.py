"""Language models behind an OpenAI-compatible server: policies to evaluate, and teachers.

    completions   vLLM's `/completions`: token ids go in and come back, so tokens, log-probabilities and stops are those
                  of an engine in this process, and `score` works
    chat          `/chat/completions`, any server: text goes in and comes back. Which tokens were sampled is not known:
                  the ids are those of a tokenizer here, all log-probabilities NaN. Good for evaluation and as a
                  teacher, not for policy gradients

A request that fails (after bounded retries, within its deadline) fails its own episode. The API key is sent, and
otherwise neither shown nor stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mempo_agents.engines.base import Generation, Request, Sampling, ScoreRow
from mempo_agents.engines.chat_text import close_action
from mempo_agents.engines.model_server import Choice, ModelServer, PromptTooLongError
from mempo_agents.engines.served import (
    ScoreJobs,
    as_codec,
    check_sampling,
    open_row,
    prompt_of,
    read_prompt_logprobs,
    seed_of,
    take,
)
from mempo_agents.tokenizers import HFTokenizer, TokenCodec, WordTokenizer
from mempo_env.errors import DataError, EngineError, UnknownNameError
from mempo_env.protocols import Protocol as TagProtocol
from mempo_env.protocols import replace_surrogates
from mempo_env.retrieval.json_client import Patience
from mempo_env.types import Message

Api = Literal["auto", "completions", "chat"]

# A server may have defaults of its own for these, from the model's generation_config.json; they would change what is
# sampled and leave the log-probabilities as they are.
_FULL_SUPPORT = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


class OpenAIEngine:
    """A model on a server.

    base_url: up to and with the version, such as "http://127.0.0.1:8000/v1". model: the server's name for it.
    tokenizer: a folder, a hub name or a loaded one. For "completions" it must be the model's own (default: found by the
        name or path that the server gives); for "chat" it only counts tokens (default: words).
    api: "auto" takes "completions" where the server is vLLM, else "chat".
    api_key_env: the environment variable that holds the key; where it is not set, none is sent.
    window_tokens: the longest prompt plus response; default: what vLLM says, one token less, because scoring a prompt
        samples one; None for other servers, whose refusal of a long prompt ends the episode all the same.
    max_concurrent: requests at a time. patience: of one response, retries included.
    logprobs_at: what the server's log-probabilities are of. "raw", vLLM's default: temperature 1, so they are unknown
        (NaN) at other temperatures; "processed": the sampling temperature (vLLM's --logprobs-mode processed_logprobs).
    chat_limit_field: how the chat server calls the limit of new tokens ("max_completion_tokens" for OpenAI's newer
        models). chat_fields: further fields for chat requests; None as a value leaves a field out, for servers that
        refuse it ({"stop": None}).

    Raises EngineError where the server does not answer or refuses the key, UnknownNameError for a model that it does
    not serve, DataError for a missing tokenizer, ValueError for an address with a password or a query in it.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        tokenizer: str | Path | TokenCodec | Any = None,
        api: Api = "auto",
        api_key_env: str = "OPENAI_API_KEY",
        window_tokens: int | None = None,
        max_concurrent: int = 16,
        patience: Patience | None = None,
        logprobs_at: Literal["raw", "processed"] = "raw",
        chat_limit_field: str = "max_tokens",
        chat_fields: Mapping[str, Any] | None = None,
    ) -> None:
        if api not in ("auto", "completions", "chat"):
            raise UnknownNameError("api", api, ("auto", "completions", "chat"))
        if logprobs_at not in ("raw", "processed"):
            raise UnknownNameError("logprobs_at", logprobs_at, ("raw", "processed"))
        self.server = ModelServer(
            base_url,
            model,
            api_key_env=api_key_env,
            patience=patience or Patience(read_seconds=300.0, total_seconds=600.0),
            max_concurrent=max_concurrent,
        )
        self.logprobs_at = logprobs_at
        self._chat_limit_field, self._chat_fields = chat_limit_field, dict(chat_fields or {})
        self._worked = False  # whether any request ever succeeded
        self._echo = False  # whether prompts are scored the older way
        card = self.server.find()
        self.is_vllm = card.get("owned_by") == "vllm"
        self.api = ("completions" if self.is_vllm else "chat") if api == "auto" else api
        self.codec = self._codec(tokenizer, card)
        self.tokenizer_name = self.codec.name
        limit = card.get("max_model_len")
        self.window_tokens = limit - 1 if window_tokens is None and isinstance(limit, int) else window_tokens
        self.end_ids: frozenset[int] = frozenset()
        if isinstance(self.codec, HFTokenizer):
            from mempo_agents.engines.hf import end_ids_of

            self.end_ids = end_ids_of(self.codec.tokenizer)

    def __repr__(self) -> str:
        return f"OpenAIEngine({self.server.base_url!r}, {self.server.model!r}, api={self.api!r})"

    @property
    def name(self) -> str:
        """ "openai", or "openai-chat" where tokens are not exact: trajectories carry it."""
        return "openai" if self.api == "completions" else "openai-chat"

    @property
    def fingerprint(self) -> str:
        """The server and its name for the model: what weights stand behind the name only the server knows."""
        return f"{self.server.base_url}/{self.api}/{self.server.model}"

    def encode(self, messages: Sequence[Message]) -> np.ndarray:
        return self.codec.encode_messages(messages)

    def encode_text(self, text: str) -> np.ndarray:
        return self.codec.encode(text)

    def generate(self, requests: Sequence[Request], protocol: TagProtocol, sampling: Sampling) -> list[Generation]:
        """One response per request, in order; one that failed says so in its `error`.

        Raises EngineError where all of them failed and the server is gone, refuses the key, or has never answered one
        rightly: going on would only collect failed episodes. Raises ValueError for guided decoding.
        """
        check_sampling(self.name, sampling)
        respond = self._complete if self.api == "completions" else self._chat
        found = self.server.run_all([partial(respond, request, protocol, sampling) for request in requests])
        errors = [result for result in found if isinstance(result, EngineError)]
        if errors and len(errors) == len(found) and not (self._worked and self.server.usable()):
            raise errors[0]
        self._worked = self._worked or len(errors) < len(found)
        return [
            _failed(self.encode(request.messages), result) if isinstance(result, EngineError) else result
            for request, result in zip(requests, found, strict=True)
        ]

    def score(self, rows: Sequence[ScoreRow]) -> list[np.ndarray]:
        """See `Engine`. The server reads each different row once; what it shares between rows is its own affair.

        Raises NotImplementedError where the server gives no prompt log-probabilities, EngineError for a failure,
        ValueError for an empty context or a row longer than the window.
        """
        if self.api != "completions":
            raise NotImplementedError(
                f"{self!r} cannot score: a chat server gives no log-probabilities of a prompt. Score with a vLLM "
                "server (api='completions') or with the engine 'hf'."
            )
        jobs = ScoreJobs(rows, self.window_tokens)
        found = self.server.run_all([partial(self._score, ids.tolist()) for ids in jobs.sequences])
        logprobs = []
        for result in found:
            if isinstance(result, EngineError):
                raise result
            logprobs.append(result)
        return jobs.split(logprobs)

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        self.server.close()

    async def _complete(
        self, request: Request, protocol: TagProtocol, sampling: Sampling, deadline: float
    ) -> Generation:
        from mempo_agents.engines.free import generation_of

        row = open_row(self.codec, request, protocol, sampling, self.window_tokens, self.end_ids)
        known = self.logprobs_at == "processed" or sampling.temperature in (0, 1)
        while not row.done:
            body = {
                "prompt": prompt_of(row),
                "max_tokens": row.max_new_tokens - len(row.ids),
                "temperature": sampling.temperature,
                "top_p": 1.0,
                "seed": seed_of(row),
                "stop": list(protocol.stop),
                "stop_token_ids": sorted(self.end_ids),
                "logprobs": 1,
                "include_stop_str_in_output": True,
                "skip_special_tokens": False,
                "spaces_between_special_tokens": False,
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,
                **_FULL_SUPPORT,
            }
            try:
                choice = await self.server.post("completions", body, deadline)
            except PromptTooLongError:
                break
            ids, logprobs = _tokens(choice)
            if not known:
                logprobs = [math.nan] * len(ids)
            take(row, ids, logprobs, choice.get("finish_reason"), choice.get("stop_reason"))
        return generation_of(self.codec.tokenizer, row)

    async def _chat(self, request: Request, protocol: TagProtocol, sampling: Sampling, deadline: float) -> Generation:
        prompt_ids = self.encode(request.messages)
        if self.window_tokens is not None and len(prompt_ids) >= self.window_tokens:
            return _worded(self.codec, prompt_ids, "", "length")
        fields = {
            "messages": [{"role": m["role"], "content": m["content"]} for m in request.messages],
            self._chat_limit_field: sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": 1.0,
            "seed": request.seed,
            "stop": list(protocol.stop),
            **({**_FULL_SUPPORT, "include_stop_str_in_output": True} if self.is_vllm else {}),
            **self._chat_fields,
        }
        body = {name: value for name, value in fields.items() if value is not None}
        try:
            choice = await self.server.post("chat/completions", body, deadline)
        except PromptTooLongError:
            return _worded(self.codec, prompt_ids, "", "length")
        message, reason = choice.get("message"), choice.get("finish_reason")
        content = message.get("content") if isinstance(message, dict) else 0
        if reason not in ("stop", "length") or not isinstance(content, str | None):
            raise EngineError(f"Expected a text with finish reason 'stop' or 'length', got {str(choice)[:120]}.")
        text = replace_surrogates(content or "")
        if reason == "stop":
            text, reason = close_action(text, protocol.stop, complete=self.is_vllm or "stop" not in body)
        elif not text:
            reason = "eos"  # hidden reasoning took the budget; the window has room, so the episode goes on
        return _worded(self.codec, prompt_ids, text, reason)

    async def _score(self, ids: list[int], deadline: float) -> list[float | None]:
        body: dict[str, Any] = {"prompt": ids, "temperature": 0.0, "return_token_ids": True}
        if not self._echo:
            asked = {**body, "max_tokens": 1, "prompt_logprobs": 0}
            choice = await self.server.post_or_none("completions", asked, deadline)
            if choice is not None and choice.get("prompt_logprobs") is not None:
                if choice.get("prompt_token_ids") not in (None, ids):
                    raise EngineError(f"Scored other tokens than were sent: {str(choice['prompt_token_ids'])[:80]}.")
                return read_prompt_logprobs(ids, choice["prompt_logprobs"], lambda entry: entry["logprob"])
        asked = {**body, "max_tokens": 0, "echo": True, "logprobs": 1, "return_tokens_as_token_ids": True}
        choice = await self.server.post_or_none("completions", asked, deadline)
        logprobs = None if choice is None else choice.get("logprobs")
        if not isinstance(logprobs, dict):
            raise NotImplementedError(
                f"{self!r} cannot score: the server gives no log-probabilities of a prompt, neither by prompt_logprobs "
                "nor by echo. Score with a vLLM server or with the engine 'hf'."
            )
        self._echo = True
        names, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
        if names != [f"token_id:{token}" for token in ids] or not isinstance(values, list):
            raise EngineError(f"Echoed other tokens than were sent: {str(names)[:80]}.")
        entries = [None if value is None else {token: value} for token, value in zip(ids, values, strict=False)]
        return read_prompt_logprobs(ids, entries, float)

    def _codec(self, tokenizer: Any, card: Mapping[str, Any]) -> Any:
        if tokenizer is not None:
            codec = tokenizer if hasattr(tokenizer, "encode_messages") else as_codec(tokenizer)
            if self.api == "completions" and not isinstance(codec, HFTokenizer):
                raise DataError(
                    f"api='completions' needs the model's own tokenizer, of transformers; got {codec.name!r}."
                )
            return codec
        if self.api == "chat":
            return WordTokenizer()
        for name in dict.fromkeys(name for name in (card.get("root"), self.server.model) if name):
            try:
                return as_codec(str(name))
            except DataError:
                continue
        raise DataError(
            f"The tokenizer of {self.server.model!r} was not found here. Name it, a folder or a hub name (tokenizer=, "
            "--tokenizer); or use the chat API, which needs none and knows no exact tokens (api='chat', --engine "
            "openai-chat)."
        )


def _tokens(choice: Choice) -> tuple[list[int], list[float]]:
    """The sampled ids and their log-probabilities; EngineError where they are missing or not numbers."""
    given = choice.get("logprobs")
    given = given if isinstance(given, dict) else {}
    ids, values = choice.get("token_ids"), given.get("token_logprobs")
    if ids is None:  # servers that know only the older way of showing ids
        names = [str(name) for name in given.get("tokens") or ("",)]
        shown = [name.removeprefix("token_id:") for name in names if name.startswith("token_id:")]
        ids = [int(digits) for digits in shown if digits.isdecimal()] if len(shown) == len(names) else None
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        raise EngineError(
            "Expected the ids of the sampled tokens, got none: this server does not send them. Use api='chat'."
        )
    if not isinstance(values, list) or not all(isinstance(value, int | float) for value in values):
        raise EngineError(f"Expected a log-probability for each of {len(ids)} tokens, got {str(values)[:80]}.")
    return ids, [float(value) for value in values]


def _worded(codec: TokenCodec, prompt_ids: np.ndarray, text: str, finish_reason: str) -> Generation:
    """A response of which only the text is known."""
    try:
        ids, ends = codec.encode_with_ends(text)
    except ValueError as error:
        raise EngineError(f"The tokenizer that counts cannot hold the response. {error}") from None
    unknown = np.full(len(ids), np.nan, dtype=np.float32)
    return Generation(prompt_ids, ids, unknown, np.ones(len(ids), dtype=bool), ends, text, finish_reason)


def _failed(prompt_ids: np.ndarray, error: EngineError) -> Generation:
    nothing = np.zeros(0, dtype=np.int64)
    return Generation(
        prompt_ids, nothing, np.zeros(0, np.float32), np.zeros(0, bool), nothing, "", "error", error=str(error)
    )
