"""Engines without a model: one that plays from the evidence, one that plays at random, one that replays a file."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from mempo_agents.engines.base import Generation, Request, Sampling, ScoreRow
from mempo_agents.engines.oracle import PERFECT, Style, write_step
from mempo_agents.tokenizers import TokenCodec, WordTokenizer
from mempo_agents.trajectory import Step, Trajectory
from mempo_env.errors import DataError
from mempo_env.protocols import Protocol as TagProtocol
from mempo_env.types import Message, Task


class ScriptedEngine:
    """Base of the engines that write text by rule. A subclass writes `respond`.

    Tokens are those of `tokenizer` (`WordTokenizer` by default), so that costs can be compared with a model's. Every
    token counts as the policy's; log-probabilities are NaN. `Sampling` is ignored: a script needs no budget and no
    guidance.
    """

    name = "scripted"
    window_tokens: int | None = None

    def __init__(self, tokenizer: TokenCodec | None = None) -> None:
        self.tokenizer = WordTokenizer() if tokenizer is None else tokenizer

    @property
    def tokenizer_name(self) -> str:
        return self.tokenizer.name

    @property
    def fingerprint(self) -> str:
        return f"{self.name}/{self.tokenizer_name}"

    def respond(self, request: Request, protocol: TagProtocol) -> str:
        raise NotImplementedError

    def encode(self, messages: Sequence[Message]) -> np.ndarray:
        return self.tokenizer.encode_messages(messages)

    def encode_text(self, text: str) -> np.ndarray:
        return self.tokenizer.encode(text)

    def generate(self, requests: Sequence[Request], protocol: TagProtocol, sampling: Sampling) -> list[Generation]:
        return [self._generation(request, self.respond(request, protocol)) for request in requests]

    def score(self, rows: Sequence[ScoreRow]) -> list[np.ndarray]:
        raise NotImplementedError(f"A {self.name} engine has no probabilities; score with an HFEngine.")

    def _generation(self, request: Request, text: str) -> Generation:
        response_ids, token_ends = self.tokenizer.encode_with_ends(text)
        return Generation(
            prompt_ids=self.encode(request.messages),
            response_ids=response_ids,
            logprobs=np.full(len(response_ids), np.nan, dtype=np.float32),
            policy_mask=np.ones(len(response_ids), dtype=bool),
            token_ends=token_ends,
            text=text,
            finish_reason="stop",
        )


class OracleEngine(ScriptedEngine):
    """Plays every protocol from the evidence of the task, using only the facts that it can see; see
    `engines.oracle`. `style` says how it writes, and its faults."""

    name = "oracle"

    def __init__(self, tokenizer: TokenCodec | None = None, *, style: Style = PERFECT) -> None:
        super().__init__(tokenizer)
        self.style = style

    @property
    def fingerprint(self) -> str:
        plain = super().fingerprint
        return plain if self.style == PERFECT else f"{plain}/{self.style}"

    def respond(self, request: Request, protocol: TagProtocol) -> str:
        return write_step(_task(request, self.name), request.messages, protocol, self.style, request.seed)


class RandomEngine(ScriptedEngine):
    """Random words of the questions, in a random form. A request's seed alone decides its response.

    well_formed: the share of well-formed steps, in [0, 1]; the rest breaks the protocol in one of several ways.
    answer: the share of steps that answer instead of searching.
    """

    name = "random"

    def __init__(self, tokenizer: TokenCodec | None = None, *, well_formed: float = 0.7, answer: float = 0.15) -> None:
        super().__init__(tokenizer)
        for name, share in (("well_formed", well_formed), ("answer", answer)):
            if not 0 <= share <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {share}.")
        self.well_formed = well_formed
        self.answer = answer

    @property
    def fingerprint(self) -> str:
        return f"{self.name}/{self.tokenizer_name}/{self.well_formed}/{self.answer}"

    def respond(self, request: Request, protocol: TagProtocol) -> str:
        task = _task(request, self.name)
        rng = random.Random(request.seed)
        words = " ".join(question.text for question in task.questions).replace(";", " ").split()

        def some(most: int) -> str:
            return " ".join(rng.choices(words, k=rng.randint(1, most)))

        memory, thought = some(12), some(6)
        if rng.random() < self.answer:
            answers = [some(2) for _ in task.questions]
            text = protocol.compose(memory=memory, thought=thought, answers=answers)
        else:
            text = protocol.compose(memory=memory, thought=thought, query=some(5))
        if rng.random() < self.well_formed:
            return text
        middle = rng.randrange(len(text))
        broken = [text[:middle], text[middle:], text[middle:] + text[:middle], some(10), ""]
        return rng.choice(broken)


class ReplayEngine(ScriptedEngine):
    """Gives back the recorded responses of trajectories, token for token.

    A step is found by its sampling seed, so the run must use the recorded run's seed, tasks and number of samples.
    Policies of one run share their seeds; of such steps, the one with the very messages that the policy sees is played.
    Where what the policy sees is not what was recorded, replaying would be a lie: DataError says where the two part.

    source: a file of trajectories, or the trajectories. tokenizer: the one that they were recorded with.
    """

    name = "replay"

    def __init__(self, source: str | Path | Iterable[Trajectory], tokenizer: TokenCodec | None = None) -> None:
        from mempo_agents.files import read_trajectories
        from mempo_agents.rollout import step_seed

        super().__init__(tokenizer)
        trajectories = read_trajectories(source) if isinstance(source, str | Path) else source
        self._steps: dict[int, list[tuple[str, Step]]] = {}
        for trajectory in trajectories:
            recorded_with = trajectory.metadata.get("tokenizer", self.tokenizer_name)
            if recorded_with != self.tokenizer_name:
                raise DataError(
                    f"The trajectories were recorded with the tokenizer {recorded_with!r}, but the replay counts with "
                    f"{self.tokenizer_name!r}. Pass that tokenizer: ReplayEngine(source, tokenizer=...)."
                )
            for index, step in enumerate(trajectory.steps):
                seed = step_seed(trajectory.seed, trajectory.task_id, trajectory.sample, index)
                episode = f"policy {trajectory.policy!r}, task {trajectory.task_id!r}, sample {trajectory.sample}"
                where = f"{episode}, step {index}"
                self._steps.setdefault(seed, []).append((where, step))

    def generate(self, requests: Sequence[Request], protocol: TagProtocol, sampling: Sampling) -> list[Generation]:
        return [self._recorded(request) for request in requests]

    def _recorded(self, request: Request) -> Generation:
        if request.seed not in self._steps:
            raise DataError(
                f"No recorded step has the sampling seed {request.seed}: replay the same tasks with the recorded run's "
                "seed, and no more samples or steps than it has."
            )
        recorded = self._steps[request.seed]
        where, step = next((pair for pair in recorded if tuple(pair[1].messages) == request.messages), recorded[0])
        for index in range(max(len(request.messages), len(step.messages))):
            now, then = request.messages[index : index + 1], step.messages[index : index + 1]
            if now != then:
                raise DataError(
                    f"The replay of {where} parts from the recording at message {index}: recorded "
                    f"{then[0]['content'][:200] if then else None!r}, now {now[0]['content'][:200] if now else None!r}."
                )
        return Generation(
            prompt_ids=step.prompt_ids,
            response_ids=step.response_ids,
            logprobs=step.logprobs,
            policy_mask=step.policy_mask,
            token_ends=step.token_ends,
            text=step.sampled_text,
            finish_reason=step.finish_reason,
        )


def _task(request: Request, name: str) -> Task:
    if request.task is None:
        raise ValueError(f"The {name} engine plays from the task: Request.task must not be None.")
    return request.task
