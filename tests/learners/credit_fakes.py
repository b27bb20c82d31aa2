"""Hand-made trajectories and an engine whose probabilities can be set, for the tests of credit."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from mempo_agents.engines.base import ScoreRow
from mempo_agents.trajectory import Step, Trajectory
from mempo_env.protocols import get_protocol
from mempo_env.types import StopReason

HEAD = ({"role": "system", "content": "S"}, {"role": "user", "content": "Q"})


class CharacterEngine:
    """One character is one token. `logp(context, target, place)` decides what `score` gives; rows are recorded."""

    name = tokenizer_name = fingerprint = "characters"

    def __init__(self, logp: Callable[[str, str, int], float], window_tokens: int | None = None):
        self.logp, self.window_tokens = logp, window_tokens
        self.rows: list[tuple[str, str]] = []

    def encode(self, messages) -> np.ndarray:
        text = "".join(f"[{m['role'][0]}]{m['content']}" for m in messages) + "[a]"
        return self.encode_text(text)

    def encode_text(self, text: str) -> np.ndarray:
        return np.array([ord(c) for c in text], dtype=np.int64)

    def score(self, rows: Sequence[ScoreRow]) -> list[np.ndarray]:
        out = []
        for row in rows:
            context, target = ("".join(map(chr, ids)) for ids in (row.context_ids, row.target_ids))
            self.rows.append((context, target))
            out.append(np.array([self.logp(context, target, i) for i in range(len(target))], dtype=np.float32))
        return out


def step(memory="m", query="q", answers=None, observation="<information>r</information>", protocol="mempo", forced=()):
    """One well-formed step, one character per token. `forced`: places of tokens that guided decoding forced."""
    text = get_protocol(protocol).compose(
        memory=memory or "", thought="t", query=None if answers else query, answers=answers
    )
    action = get_protocol(protocol).parse(text)
    mask = np.ones(len(text), dtype=bool)
    mask[list(forced)] = False
    return Step(
        messages=HEAD,
        prompt_ids=np.arange(5),
        response_ids=np.array([ord(c) for c in text]),
        logprobs=np.full(len(text), -1.0, dtype=np.float32),
        policy_mask=mask,
        token_ends=np.arange(1, len(text) + 1),
        spans=dict(action.spans),
        sampled_text=text,
        response=text,
        memory=action.memory if memory is not None else None,
        action=str(action.kind),
        argument=action.argument,
        invalid_reason=None,
        format_valid=True,
        observation="" if answers else observation,
        observation_tokens=0 if answers else len(observation),
    )


def trajectory(steps, reward=1.0, answers=(("Lima",), ("Quito",)), protocol="mempo", **changes):
    values = {
        "task_id": "t/0",
        "sample": 0,
        "policy": protocol,
        "protocol": protocol,
        "context": "last_step",
        "objectives": len(answers),
        "questions": tuple(f"q{i}" for i in range(len(answers))),
        "answers": answers,
        "head": HEAD,
        "steps": tuple(steps),
        "reward": reward,
        "reward_parts": {"paper": reward, "sum_em": 2 * reward},
        "em": (reward,) * len(answers),
        "f1": (reward,) * len(answers),
        "answer": "Lima; Quito",
        "stop_reason": StopReason.FAILED if math.isnan(reward) else StopReason.ANSWERED,
    }
    return Trajectory(**{**values, **changes})
