"""Policies in environments: tasks in, trajectories out, many episodes at a time.

The episodes of a batch run side by side in one vector environment: one batched call of the engine and one batched
search per step. An episode that ends is yielded at once and its row takes the next task. What a task yields does not
depend on the batch: the sampling seed of a step is a function of the run's seed, the task, the sample and the step.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from mempo_agents.engines.base import Generation, Request
from mempo_agents.policies.base import Policy
from mempo_agents.spans import token_spans
from mempo_agents.trajectory import Step, Trajectory
from mempo_env.context import get_context
from mempo_env.episode import Episode
from mempo_env.types import StopReason, Task, Turn

FULL_HISTORY = get_context("full")


def step_seed(run_seed: int, task_id: str, sample: int, step: int) -> int:
    """The sampling seed of one step, in [0, 2**63): BLAKE2b of everything that tells the step from all others."""
    key = f"{run_seed}\0{task_id}\0{sample}\0{step}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1


def rollout(
    policy: Policy,
    tasks: Iterable[Task | tuple[Task, int]],
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    samples: int = 1,
    seed: int = 0,
    batch_size: int = 8,
    progress: Callable[[Trajectory], None] | None = None,
) -> Iterator[Trajectory]:
    """Plays every task `samples` times and yields each trajectory as it finishes, so not in the order of the tasks.

    tasks: read lazily; (task, sample) pairs name single episodes, and `samples` does not apply to them. env_kwargs:
    arguments of `SearchQAEnv` other than protocol and context, which are the policy's.
    batch_size: episodes side by side; it decides the speed only (see `engines.decoding` for the limits of that).
    progress: called with each trajectory just before it is yielded.

    An episode whose next prompt would leave no room for a response in the engine's window is truncated with the stop
    reason "context_length". One whose search broke down, or whose request the engine could not answer, has failed: it
    is yielded too, with a NaN reward and no scores.
    """
    from gymnasium.vector import AutoresetMode

    from mempo_env.vector import SearchQAVectorEnv

    if samples < 1 or batch_size < 1:
        raise ValueError(f"samples and batch_size must be at least 1, got {samples} and {batch_size}.")
    for name in ("protocol", "context"):
        if env_kwargs and name in env_kwargs:
            raise ValueError(f"env_kwargs must not hold {name!r}: it is the policy's.")
    jobs = _jobs(tasks, samples)
    waiting = list(islice(jobs, batch_size))
    if not waiting:
        return
    env = SearchQAVectorEnv(
        len(waiting),
        autoreset_mode=AutoresetMode.DISABLED,
        protocol=policy.protocol,
        context=policy.context,
        **{"objectives": 1, **(env_kwargs or {})},  # of the environment's own tasks, none of which is played
    )
    try:
        rows: list[_Row | None] = [None] * env.num_envs
        while True:
            free = [index for index, row in enumerate(rows) if row is None]
            waiting += islice(jobs, len(free) - len(waiting))
            _begin(env, rows, free, waiting)
            running = [(index, row) for index, row in enumerate(rows) if row is not None]
            if not running:
                return
            _step(env, policy, running, seed)
            for index, row in running:
                if row.episode.done:
                    rows[index] = None
                    trajectory = row.trajectory(policy, seed)
                    if progress is not None:
                        progress(trajectory)
                    yield trajectory
    finally:
        env.close()


def _jobs(tasks: Iterable[Task | tuple[Task, int]], samples: int) -> Iterator[tuple[Task, int]]:
    for task in tasks:
        if isinstance(task, Task):
            yield from ((task, sample) for sample in range(samples))
        else:
            yield task


@dataclass
class _Row:
    """An episode in progress, and the steps recorded so far."""

    episode: Episode
    task: Task
    sample: int
    steps: list[Step] = field(default_factory=list)
    seconds: float = 0.0

    def request(self, seed: int) -> Request:
        return Request(
            messages=self.episode.messages,
            seed=step_seed(seed, self.task.id, self.sample, len(self.steps)),
            task=self.task,
            last_step=len(self.episode.turns) + 1 >= self.episode.max_steps,
        )

    def trajectory(self, policy: Policy, seed: int) -> Trajectory:
        episode = self.episode
        failed = episode.stop_reason == StopReason.FAILED
        assert episode.stop_reason is not None
        return Trajectory(
            task_id=self.task.id,
            sample=self.sample,
            policy=policy.name,
            protocol=policy.protocol,
            context=episode.context.name,
            objectives=self.task.objectives,
            questions=tuple(question.text for question in self.task.questions),
            answers=tuple(question.answers for question in self.task.questions),
            head=episode.head,
            steps=tuple(self.steps),
            reward=float("nan") if failed else float(episode.reward),
            reward_parts={} if episode.result is None else dict(episode.result.parts),
            em=() if episode.score is None else tuple(episode.score.em),
            f1=() if episode.score is None else tuple(episode.score.f1),
            answer=episode.answer,
            stop_reason=episode.stop_reason,
            error=episode.error,
            seed=seed,
            guided=policy.sampling.guided,
            seconds=self.seconds,
            metadata={"engine": policy.engine.name, "tokenizer": policy.engine.tokenizer_name},
        )


def _begin(env: Any, rows: list[_Row | None], free: list[int], waiting: list[tuple[Task, int]]) -> None:
    """Start the waiting jobs in the free rows, as far as there are some of both."""
    started = dict(zip(free, waiting, strict=False))
    if not started:
        return
    del waiting[: len(started)]
    mask = np.zeros(env.num_envs, dtype=np.bool_)
    mask[list(started)] = True
    tasks = [started[index][0] if index in started else None for index in range(env.num_envs)]
    env.reset(options={"tasks": tasks, "reset_mask": mask})
    for index, (task, sample) in started.items():
        rows[index] = _Row(env.episodes[index], task, sample)


def _step(env: Any, policy: Policy, running: list[tuple[int, _Row]], seed: int) -> None:
    """One response of the policy in every running row, and the environment's answers."""
    began = time.perf_counter()
    requests = [row.request(seed) for _, row in running]
    generations = policy.act(requests)
    texts: list[str | None] = [None] * env.num_envs
    finish_reasons: list[str | None] = [None] * env.num_envs
    acted: list[tuple[int, _Row, Request, Generation]] = []
    for (index, row), request, generation in zip(running, requests, generations, strict=True):
        if generation.error is not None:
            env.fail(index, generation.error)  # not the policy's doing: never a step, never a score
            continue
        if not len(generation.response_ids) and generation.finish_reason == "length":
            env.truncate(index)  # the window is full: nothing was asked, so there is no step
            continue
        texts[index], finish_reasons[index] = generation.text, generation.finish_reason
        acted.append((index, row, request, generation))
    if acted:
        env.step(texts, finish_reasons=finish_reasons)
    share = (time.perf_counter() - began) / len(running)
    for _, row in running:
        row.seconds += share
    for _, row, request, generation in acted:
        row.steps.append(_record(policy, row.episode, request, generation, share))
    for _, row in running:
        if row.steps and row.episode.stop_reason == StopReason.CONTEXT_LENGTH:
            # The last reply did not fit and was dropped: nobody has seen it.
            row.steps[-1] = replace(row.steps[-1], observation="", observation_tokens=0)


def _record(policy: Policy, episode: Episode, request: Request, generation: Generation, seconds: float) -> Step:
    turn: Turn = episode.turns[-1]
    action = turn.action
    observation = turn.observation
    return Step(
        messages=request.messages,
        prompt_ids=generation.prompt_ids,
        response_ids=generation.response_ids,
        logprobs=generation.logprobs,
        policy_mask=_kept(generation, action.response),
        token_ends=generation.token_ends,
        spans=token_spans(generation.token_ends, action.spans),
        sampled_text=generation.text,
        response=action.response,
        memory=action.memory,
        action=str(action.kind),
        argument=action.argument,
        invalid_reason=None if action.reason is None else str(action.reason),
        format_valid=action.format_valid,
        observation=observation,
        observation_tokens=len(policy.engine.encode_text(observation)) if observation else 0,
        hit_ids=tuple(hit.passage.id for hit in turn.hits),
        finish_reason=generation.finish_reason,
        seconds=seconds,
        history_tokens=_history_tokens(policy, episode, request, generation),
    )


def _kept(generation: Generation, response: str) -> np.ndarray:
    """The policy mask without the tokens that lie wholly after the end of the action: they are in no one's context."""
    if len(response) >= len(generation.text):
        return generation.policy_mask
    starts = np.concatenate([[0], generation.token_ends[:-1]])
    return generation.policy_mask & (starts < len(response))


def _history_tokens(policy: Policy, episode: Episode, request: Request, generation: Generation) -> int:
    """How long the prompt of the last step would have been under the rule `full`."""
    messages = FULL_HISTORY.messages(episode.head, episode.turns[:-1])
    if messages == request.messages:
        return len(generation.prompt_ids)
    return len(policy.engine.encode(messages))
