"""What memory credit costs: scoring whole rows, as the released MemPO code does, against scoring shared prefixes once.

A trajectory of S steps asks for P(answer | memory) and P(answer | everything before) at every step. Each step adds a
memory, a thought, a call and three passages of about 150 tokens. Token ids are random; time does not depend on which.

    plain     every row by itself, rows of similar length batched together (little padding)
    padded    the same in one batch of all rows, padded to the longest: the released code's way (tokens only, since
              its time at 16 steps is out of proportion)
    shared    mempo_agents.engines.prefix.score_rows

Ratios are plain over shared, so larger is better, and `token_ratio_padded` is padded over shared. Seconds are processor
seconds of this process, which other work on the machine disturbs less than wall time; the wall seconds stand beside.
"""

from __future__ import annotations

import json as json_module
import shlex
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from mempo_agents.engines.base import ScoreRow
from mempo_agents.provenance import git_revision, machine_class, versions

SEED = 0
HEAD, MEMORY, THOUGHT, CALL, PASSAGES, PASSAGE, OPENING, ANSWER = 260, 60, 30, 30, 3, 150, 3, 6
STEPS, QUICK_STEPS = (2, 4, 8, 16), (2, 4, 8)
TOKENS = 1_000_000


@dataclass(slots=True)
class Row:
    """One model at one number of steps. max_difference: the largest |log p| difference of the two ways."""

    model: str
    parameters: int
    dtype: str
    steps: int
    method: str
    tokens_plain: int
    tokens_padded: int
    tokens_shared: int
    token_ratio: float
    token_ratio_padded: float
    seconds_plain: float
    seconds_shared: float
    wall_seconds_plain: float
    wall_seconds_shared: float
    time_ratio: float
    max_difference: float
    max_probability_difference: float


def run(
    json: Annotated[Path | None, typer.Option(help="Write the rows and where they come from to this file.")] = None,
    quick: Annotated[bool, typer.Option(help="Up to 8 steps, each once; the language model up to 4 steps.")] = False,
) -> None:
    """Measure tokens and seconds of memory credit, plain against prefix-shared, and the advantages' arithmetic."""
    rows = []
    for name, steps in (
        ("llama-1m (random)", QUICK_STEPS if quick else STEPS),
        ("smollm2", STEPS[:2] if quick else STEPS),
    ):
        model = load(name)
        for count in steps:
            rows.append(measure(name, model, count, repeats=1 if quick or name == "smollm2" else 3))
            print(
                f"{name}, {count} steps: {rows[-1].token_ratio:.1f}x fewer tokens, {rows[-1].time_ratio:.1f}x less time"
            )
    arithmetic = arithmetic_seconds(repeats=3 if quick else 9)
    print_table(rows, arithmetic)
    if json is not None:
        report = {
            "schema_version": 1,
            "benchmark": "credit",
            "command": "python -m benchmarks.performance " + shlex.join(["credit", *sys.argv[2:]]),
            "seed": SEED,
            "quick": quick,
            "trajectory": {
                "head_tokens": HEAD, "memory_tokens": MEMORY, "thought_tokens": THOUGHT, "call_tokens": CALL,
                "passages": PASSAGES, "passage_tokens": PASSAGE, "answer_tokens": ANSWER,
            },
            "arithmetic": {"tokens": TOKENS, "seconds": arithmetic},
            "versions": versions(),
            "machine": machine_class(),
            "revision": git_revision(),
            "rows": [asdict(row) for row in rows],
        }  # fmt: skip
        json.write_text(json_module.dumps(report, indent=2) + "\n", encoding="utf-8")
        print(f"Written: {json}")


def load(name: str) -> Any:
    """The embedded language model in float32, or a random Llama of about a million parameters."""
    import torch

    if name == "smollm2":
        from mempo_agents.engines.hf import HFEngine

        return HFEngine("smollm2", dtype="float32").model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=2048, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=16384, bos_token_id=0, eos_token_id=1, pad_token_id=1,
        )
    ).eval()  # fmt: skip


def trajectory_rows(steps: int, vocabulary: int) -> list[ScoreRow]:
    """History and memory rows of one trajectory, as `memory_scores` asks for them."""
    rng = np.random.default_rng([SEED, steps])

    def ids(count: int) -> np.ndarray:
        return rng.integers(0, vocabulary, count)

    head, opening, answer = ids(HEAD), ids(OPENING), ids(ANSWER)
    history, rows = head, []
    for _ in range(steps):
        memory = ids(MEMORY)
        rows.append(ScoreRow(np.concatenate([history, opening]), answer))
        rows.append(ScoreRow(np.concatenate([head, memory, opening]), answer))
        history = np.concatenate([history, memory, ids(THOUGHT + CALL + PASSAGES * PASSAGE)])
    return rows


def measure(name: str, model: Any, steps: int, repeats: int) -> Row:
    from mempo_agents.engines.prefix import ScoreStats, choose_method, score_rows

    rows = trajectory_rows(steps, int(model.config.vocab_size))
    lengths = [len(row.context_ids) + len(row.target_ids) - 1 for row in rows]
    choose_method(model, max(lengths))  # the test of the model belongs to no measurement
    best: dict[str, tuple[float, float]] = {}
    stats, values = {}, {}
    for method in ("auto", "plain"):
        for _ in range(repeats):
            stats[method] = ScoreStats()
            wall, cpu = time.perf_counter(), time.process_time()
            values[method] = score_rows(model, rows, method=method, stats=stats[method])  # type: ignore[arg-type]
            spent = (time.process_time() - cpu, time.perf_counter() - wall)
            best[method] = min(best.get(method, spent), spent)
    pairs = list(zip(values["plain"], values["auto"], strict=True))
    padded = len(rows) * max(lengths)
    return Row(
        model=name,
        parameters=sum(p.numel() for p in model.parameters()),
        dtype=str(model.dtype).removeprefix("torch."),
        steps=steps,
        method=stats["auto"].method,
        tokens_plain=stats["plain"].tokens,
        tokens_padded=padded,
        tokens_shared=stats["auto"].tokens,
        token_ratio=stats["plain"].tokens / stats["auto"].tokens,
        token_ratio_padded=padded / stats["auto"].tokens,
        seconds_plain=best["plain"][0],
        seconds_shared=best["auto"][0],
        wall_seconds_plain=best["plain"][1],
        wall_seconds_shared=best["auto"][1],
        time_ratio=best["plain"][0] / best["auto"][0],
        max_difference=max(float(np.abs(a - b).max()) for a, b in pairs),
        max_probability_difference=max(float(abs(np.exp(a.mean()) - np.exp(b.mean()))) for a, b in pairs),
    )


def arithmetic_seconds(repeats: int) -> float:
    """From the rewards of 64 groups of 16 trajectories to a million tokens' advantages: the median, in seconds."""
    from mempo_agents.learners.advantages import memory_advantages, token_advantages, trajectory_advantages

    groups, size, steps = 64, 16, 4
    length = TOKENS // (groups * size * steps)
    rng = np.random.default_rng(SEED)
    rewards, memory = rng.integers(0, 2, (groups, size)), rng.normal(size=(groups, size, steps))
    memory[:, :, 0] = np.nan
    lengths = np.full(size * steps, length)
    spans = np.tile([0, MEMORY], (size * steps, 1))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        for reward_G, memory_GS in zip(rewards, memory, strict=True):
            outcome = np.repeat(trajectory_advantages(reward_G), steps)
            token_advantages(outcome, memory_advantages(memory_GS).ravel(), lengths, spans)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def print_table(rows: list[Row], arithmetic: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Memory credit of one trajectory: plain over shared")
    table.add_column("model", no_wrap=True)
    for heading in (
        "steps",
        "plain",
        "padded",
        "shared",
        "tokens",
        "padded",
        "plain s",
        "shared s",
        "time",
        "difference",
    ):
        table.add_column(heading, justify="right")
    for row in rows:
        counts = (f"{n:,}" for n in (row.tokens_plain, row.tokens_padded, row.tokens_shared))
        ratios = (f"{row.token_ratio:.1f}x", f"{row.token_ratio_padded:.1f}x")
        times = (f"{row.seconds_plain:.2f}", f"{row.seconds_shared:.2f}", f"{row.time_ratio:.1f}x")
        table.add_row(row.model, str(row.steps), *counts, *ratios, *times, f"{row.max_difference:.1e}")
    console = Console(width=140)
    console.print(table)
    console.print(f"Advantages of {TOKENS:,} tokens: {1000 * arithmetic:.1f} ms")
