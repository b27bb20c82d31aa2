"""Tokens per second of one training step: rollout, memory scoring and update; and TRL's GRPOTrainer beside it.

Both train the same model (nano, about 0.9 million parameters, float32) on the same questions for the same number of
tokens, in one run: TRL samples one completion of exactly `response_tokens` tokens per prompt and updates; ours samples
and updates rows of the same prompts and the same number of tokens, through the same engine that plays episodes. So the
comparison is of the machinery, not of what is learnt. Then one real step in the environment is measured and profiled.
Seconds are processor seconds of this process, which other work on the machine disturbs less than wall time.
"""

from __future__ import annotations

import json as json_module
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

SEED = 0


def run(
    json: Annotated[Path | None, typer.Option(help="Write the figures and where they come from to this file.")] = None,
    quick: Annotated[bool, typer.Option(help="Fewer prompts and steps.")] = False,
) -> None:
    """Measure training: ours and TRL's on equal tokens, and where the time of a real step goes."""
    from mempo_agents.provenance import git_revision, machine_class, versions

    prompts, group, length, steps = (4, 8, 32, 2) if quick else (8, 8, 48, 4)
    theirs = trl(prompts, group, length, steps)
    rows = [ours(prompts, group, length, steps), *([] if theirs is None else [theirs])]
    step = real_step(2 if quick else 4, 8)
    print_table(rows, step)
    if json is not None:
        report = {
            "schema_version": 1, "benchmark": "train", "seed": SEED, "quick": quick,
            "command": "python -m benchmarks.performance " + shlex.join(["train", *sys.argv[2:]]),
            "equal_tokens": rows, "environment_step": step,
            "versions": versions(), "machine": machine_class(), "revision": git_revision(),
        }  # fmt: skip
        json.write_text(json_module.dumps(report, indent=2) + "\n", encoding="utf-8")
        print(f"Written: {json}")


def texts(count: int) -> list[str]:
    """Prompts of the compact world, all of one length: questions of two objectives."""
    from mempo_env.protocols import get_protocol
    from mempo_env.tasks import compose
    from mempo_env.tasks.world import World

    world = World(register="compact", min_hops=2)
    tasks = compose(world.questions("train"), 2, seed=SEED, split="train")
    return [get_protocol("mempo").head(tasks[i], "")[0]["content"] for i in range(count)]


def fresh_model() -> tuple[Any, Any]:
    from mempo_agents.nano.model import nano_model
    from mempo_agents.nano.tokenizer import nano_tokenizer

    tokenizer = nano_tokenizer()
    return nano_model(tokenizer, dtype="float32"), tokenizer


def ours(prompts: int, group: int, length: int, steps: int) -> dict[str, Any]:
    """Sample `group` responses of `length` tokens to each prompt and make one update, `steps` times."""
    from mempo_agents.engines.decoding import decode
    from mempo_agents.learners.batches import TrainRow
    from mempo_agents.learners.optim import MasterOptimizer, OptimizerSettings
    from mempo_agents.learners.update import UpdateSettings, update_policy
    from mempo_agents.tokenizers import HFTokenizer

    model, tokenizer = fresh_model()
    codec = HFTokenizer(tokenizer)
    ids = [codec.encode(text) for text in texts(prompts) for _ in range(group)]
    optimizer = MasterOptimizer(model, OptimizerSettings(lr=1e-6))
    seconds = {"rollout": 0.0, "update": 0.0}
    for step in range(steps + 1):
        began = time.process_time()
        sampled = [FixedRow(row, length, SEED + 1000 * step + i) for i, row in enumerate(ids)]
        decode(model.eval(), sampled, 1.0)
        middle = time.process_time()
        rng = np.random.default_rng(step)
        rows = [
            TrainRow(
                row.prompt_ids, np.array(row.ids), np.ones(length, bool), np.full(length, rng.normal(), np.float32),
                np.array(row.logprobs, np.float32), number,
            )
            for number, row in enumerate(sampled)
        ]  # fmt: skip
        update_policy(model, optimizer, rows, UpdateSettings(micro_tokens=1 << 20))
        if step:  # the first warms up
            seconds["rollout"] += middle - began
            seconds["update"] += time.process_time() - middle
    return _row("mempo-gym", prompts * group, length, steps, sum(map(len, ids)), sum(seconds.values()), **seconds)


class FixedRow:
    """A row that samples exactly `length` tokens, as TRL is told to."""

    def __init__(self, prompt_ids: np.ndarray, length: int, seed: int) -> None:
        self.prompt_ids, self.length, self.seed = prompt_ids, length, seed
        self.pending: list[int] = []
        self.unread = 0
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.finish_reason = "length"
        self.done = False

    @property
    def policy_mask(self) -> list[bool]:
        return [True] * len(self.ids)

    def restriction(self) -> None:
        return None

    def take(self, token: int, logprob: float) -> None:
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.pending = [token]
        self.done = len(self.ids) >= self.length


def trl(prompts: int, group: int, length: int, steps: int) -> dict[str, Any] | None:
    """The same work by TRL's GRPOTrainer; None where TRL is not installed."""
    try:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer
    except ImportError:
        print("TRL is not installed, so ours stands alone: pip install 'mempo-gym[trl]'")
        return None
    from transformers import TrainerCallback

    model, tokenizer = fresh_model()
    marks: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            marks.append(time.process_time())

    def noise(completions: list[Any], **kwargs: Any) -> list[float]:
        return np.random.default_rng(len(marks)).normal(size=len(completions)).tolist()

    wanted = texts(prompts)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, per_device_train_batch_size=prompts * group,
            num_generations=group, max_completion_length=length, beta=0.0, max_steps=steps + 1, report_to=[],
            save_strategy="no", logging_strategy="no", disable_tqdm=True, seed=SEED, learning_rate=1e-6,
            generation_kwargs={"min_new_tokens": length},  # exactly that many tokens each
        )  # fmt: skip
        data = Dataset.from_dict({"prompt": wanted * (steps + 1)})
        GRPOTrainer(
            model=model, reward_funcs=noise, args=config, train_dataset=data, processing_class=tokenizer,
            callbacks=[Clock()],
        ).train()  # fmt: skip
    prompt_tokens = sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in wanted) * group
    return _row("TRL GRPOTrainer", prompts * group, length, steps, prompt_tokens, marks[-1] - marks[0])


def _row(
    name: str, episodes: int, length: int, steps: int, prompt_tokens: int, seconds: float, **parts: float
) -> dict[str, Any]:
    tokens = steps * (prompt_tokens + episodes * length)
    return {
        "name": name, "responses_per_step": episodes, "response_tokens": length, "steps": steps, "tokens": tokens,
        "seconds": seconds, "tokens_per_second": tokens / seconds,
        **{f"{part}_seconds": value for part, value in parts.items()},
    }  # fmt: skip


def real_step(tasks: int, group: int) -> dict[str, Any]:
    """One update of the shipped MemPO model in the environment: tokens a second of each part, and the share of the
    rollout's time that is spent inside the model."""
    from mempo_agents.learners.trainer import Trainer, TrainSettings
    from mempo_agents.nano.shipped import weights_folder

    settings = TrainSettings(
        model="nano-mempo", dataset="world-compact", instructions="", reward="f1", estimator="mempo", tasks=tasks,
        group_size=group, batch_size=tasks * group, max_new_tokens=96, evaluate_every=0, updates=1,
    )  # fmt: skip
    if weights_folder("nano-mempo") is None:
        model, tokenizer = fresh_model()
        trainer = Trainer(settings, Path(tempfile.mkdtemp()), model=model, tokenizer=tokenizer)
    else:
        trainer = Trainer(settings, Path(tempfile.mkdtemp()))
    inside = 0.0
    forward = trainer.model.forward

    def timed(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        began = time.process_time()
        result = forward(*args, **kwargs)
        inside += time.process_time() - began
        return result

    trainer.play(1)  # warms up
    trainer.model.forward = timed
    groups, rollout = _clocked(lambda: trainer.play(0))
    in_model = inside
    trainer.model.forward = forward
    (advantages, _), credit = _clocked(lambda: trainer.credit(groups))
    _, update = _clocked(lambda: trainer.learn(groups, advantages))
    steps = [step for members in groups for t in members for step in t.steps]
    sampled = sum(len(step.response_ids) for step in steps)
    rows = sum(len(step.prompt_ids) + len(step.response_ids) for step in steps)
    return {
        "episodes": tasks * group, "steps": len(steps), "sampled_tokens": sampled, "row_tokens": rows,
        "rollout_seconds": rollout, "credit_seconds": credit, "update_seconds": update,
        "sampled_tokens_per_second": sampled / rollout, "update_tokens_per_second": rows / update,
        "rollout_share_in_model": in_model / rollout,
    }  # fmt: skip


def _clocked(call: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    result = call()
    return result, time.process_time() - began


def print_table(rows: list[dict[str, Any]], step: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="One training step on equal tokens (processor seconds)")
    for heading in ("trainer", "responses", "tokens each", "s/step", "tokens/s"):
        table.add_column(heading, justify="left" if heading == "trainer" else "right")
    for row in rows:
        table.add_row(
            row["name"], str(row["responses_per_step"]), str(row["response_tokens"]),
            f"{row['seconds'] / row['steps']:.2f}", f"{row['tokens_per_second']:,.0f}",
        )  # fmt: skip
    console = Console(width=100)
    console.print(table)
    console.print(
        f"In the environment, {step['episodes']} episodes: sampled {step['sampled_tokens_per_second']:,.0f} tokens/s "
        f"({step['rollout_share_in_model']:.0%} of the time inside the model), memory credit "
        f"{step['credit_seconds']:.2f} s, update {step['update_tokens_per_second']:,.0f} tokens/s."
    )
