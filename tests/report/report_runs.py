"""Runs made by hand for the tests of the report: small, exact, and with everything in them that can be shown."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mempo_agents.files import write_trajectories
from mempo_agents.learners.credit_files import write_report
from mempo_agents.learners.diagnostics import diagnose
from mempo_agents.learners.groups import group_batch, groups_of
from mempo_agents.learners.memory_reward import MemoryScores, rewarded_steps
from mempo_agents.trajectory import Step, Trajectory
from mempo_env.protocols import get_protocol
from mempo_env.types import Message, StopReason

HEAD: tuple[Message, ...] = (
    {"role": "system", "content": "You answer numbered questions."},
    {"role": "user", "content": "Question 1: Who founded Harrow Mill?\nQuestion 2: Where is it?"},
)
ANSWERS = (("Tomas Beck", "T. Beck"), ("Lima",))


def make_step(
    memory: str | None,
    *,
    query: str = "mill",
    answer: Sequence[str] | None = None,
    observation: str = "",
    seen: Sequence[Message] = (),
    protocol: str = "mempo",
    text: str | None = None,
    history_tokens: int | None = None,
) -> Step:
    """A step whose tokens are words with the blanks before them. `text` replaces the composed response."""
    tags = get_protocol(protocol)
    if text is None:
        text = tags.compose(memory=memory or "", thought="next", query=None if answer else query, answers=answer)
    action = tags.parse(text)
    ends = np.array([match.end() for match in re.finditer(r"\s*(?:\w+|[^\w\s])|\s+$", text)], dtype=np.int64)
    ends = ends if len(ends) else np.array([len(text)])
    spans = {}
    for name, (start, end) in action.spans.items():
        first, last = np.searchsorted(ends, start, side="right"), np.searchsorted(ends, end, side="left")
        spans[name] = (int(first), int(last) + 1)
    messages = (*HEAD, *seen)
    prompt = sum(len(message["content"].split()) for message in messages)
    return Step(
        messages=messages,
        prompt_ids=np.arange(prompt),
        response_ids=np.arange(len(ends)),
        logprobs=np.full(len(ends), -0.5, dtype=np.float32),
        policy_mask=np.ones(len(ends), dtype=bool),
        token_ends=ends,
        spans=spans,
        sampled_text=text,
        response=action.response,
        memory=action.memory,
        action=str(action.kind),
        argument=action.argument,
        invalid_reason=None if action.reason is None else str(action.reason),
        format_valid=action.format_valid,
        observation=observation,
        observation_tokens=len(observation.split()),
        hit_ids=("d1",) if observation else (),
        history_tokens=history_tokens if history_tokens is not None else prompt,
    )


def make_episode(
    task: str,
    sample: int,
    memories: Sequence[str | None],
    observations: Sequence[str],
    *,
    right: bool,
    policy: str = "mempo",
    protocol: str = "mempo",
    context: str = "last_step",
    answers: tuple[tuple[str, ...], ...] = ANSWERS,
    stop: StopReason = StopReason.ANSWERED,
    **changes: Any,
) -> Trajectory:
    """Searches with these memories, then an answer with the last one. `context` decides what the prompts hold."""
    steps: list[Step] = []
    shown: list[Message] = []
    whole: list[Message] = []
    for s, memory in enumerate(memories):
        last = s == len(memories) - 1
        history = sum(len(m["content"].split()) for m in (*HEAD, *whole))
        step = make_step(
            memory,
            query=f"query {s}",
            answer=[golds[0] for golds in answers] if last and stop == StopReason.ANSWERED else None,
            observation="" if last else observations[s],
            seen=shown,
            protocol=protocol,
            history_tokens=history,
        )
        steps.append(step)
        new: list[Message] = [
            {"role": "assistant", "content": step.response},
            {"role": "user", "content": step.observation},
        ]
        whole += new
        shown = whole if context == "full" else new
    failed = stop == StopReason.FAILED
    reward = math.nan if failed else float(right)
    values: dict[str, Any] = {
        "task_id": task,
        "sample": sample,
        "policy": policy,
        "protocol": protocol,
        "context": context,
        "objectives": len(answers),
        "questions": ("Who founded Harrow Mill?", "Where is it?")[: len(answers)],
        "answers": answers,
        "head": HEAD,
        "steps": tuple(steps),
        "reward": reward,
        "reward_parts": {"paper": reward, "all_correct": reward},
        "em": () if failed else (1.0, float(right))[: len(answers)],
        "f1": () if failed else (1.0, float(right))[: len(answers)],
        "answer": None if failed or stop != StopReason.ANSWERED else "; ".join(golds[0] for golds in answers),
        "stop_reason": stop,
        "metadata": {"engine": "hand", "tokenizer": "word"},
    }
    return Trajectory(**{**values, **changes})


OBSERVATIONS = (
    "<information>\nDoc 1(Title: Harrow Mill) Harrow Mill was founded by Tomas Beck in the year of the long rain."
    "\n</information>",
    "<information>\nDoc 1(Title: Harrow) Harrow lies near Lima, in a bend of a slow and rather muddy river."
    "\n</information>",
)


def group_run() -> list[Trajectory]:
    """MemPO episodes of one task with rewards 1, 0, 0, and a ReAct episode; sample 1 loses "Tomas Beck" at step 3."""
    kept = ["nothing yet", "The founder is Tomas Beck.", "The founder is Tomas Beck. It is near Lima."]
    lost = ["nothing yet", "The founder is unknown.", "It is near Lima."]
    return [
        make_episode("world/test/k2/000001", 0, kept, OBSERVATIONS, right=True),
        make_episode("world/test/k2/000001", 1, lost, OBSERVATIONS, right=False),
        make_episode("world/test/k2/000001", 2, kept, OBSERVATIONS, right=False),
        make_episode(
            "world/test/k2/000001",
            0,
            [None, None, None],
            OBSERVATIONS,
            right=True,
            policy="react",
            protocol="react",
            context="full",
        ),
    ]


class Characters:
    """A tokenizer of characters."""

    def decode(self, ids: Sequence[int], **_: object) -> str:
        return "".join(map(chr, ids))


def write_run(folder: Path, trajectories: Sequence[Trajectory], results: dict[str, Any] | None = None) -> Path:
    write_trajectories(folder / "trajectories.jsonl", trajectories)
    if results is not None:
        (folder / "results.json").write_text(json.dumps(results))
    return folder


# P(answer | memory) and P(answer | history) by step, of samples 0, 1, 2 of `group_run`. Step 1 has no result before it.
P_MEMORY = ([0.1, 0.7, 0.9], [0.1, 0.2, 0.4], [0.1, 0.6, 0.8])
P_HISTORY = ([0.1, 0.5, 0.8], [0.1, 0.5, 0.8], [0.1, 0.5, 0.8])


def write_credit(folder: Path, trajectories: Sequence[Trajectory], *, tokens: bool = True) -> Path:
    """What `mempo credit --json` would write for the MemPO episodes of `group_run`, with the probabilities above."""
    groups = groups_of(t for t in trajectories if t.policy == "mempo")
    ids = np.array([ord(c) for c in "Tomas Beck Lima"])
    scored = []
    for group in groups:
        rows = []
        for g, trajectory in enumerate(group.trajectories):
            memory, history = np.array(P_MEMORY[g % 3]), np.array(P_HISTORY[g % 3])
            single = (ids, np.repeat(memory[:, None], 15, 1), np.repeat(history[:, None], 15, 1)) if tokens else ()
            rows.append(MemoryScores(memory, history, rewarded_steps(trajectory), *single))
        scored.append(rows)
    report = diagnose([group_batch(group, rows) for group, rows in zip(groups, scored, strict=True)])
    source = {"model": "by hand", "file": "trajectories.jsonl", "weight": 1.0, "per_step": False}
    write_report(folder / "credit.json", report, groups, scored, source, Characters())
    return folder / "credit.json"


def write_training(folder: Path, *, estimator: str, seed: int, values: Sequence[float]) -> Path:
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps({"estimator": estimator, "seed": seed}))
    lines = [json.dumps({"step": n + 1, "reward_mean": v, "eval_f1": v / 2}) + "\n" for n, v in enumerate(values)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder
