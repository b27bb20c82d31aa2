"""Reinforcement in the environment: tasks, groups of episodes, reward, credit, update, evaluation, log.

    Trainer(TrainSettings(model=..., estimator="mempo"), Path("out/run")).run()

The model that samples is the model that is trained, in this process, or a vLLM that gets its weights after every update
(see `samplers`): episodes of other weights are refused, so nothing can be stale.
Everything random is a function of the settings' seed and the number of the update; a checkpoint therefore needs no
random state, and a run that was killed goes on as if nothing had happened, bit for bit on a CPU.

    FOLDER/settings.json    what the run is; a folder that holds another run is refused
    FOLDER/metrics.jsonl    one line an update, see docs/training.md
    FOLDER/checkpoints/     the newest ones, to continue from
    FOLDER/best/            the model with the best evaluation so far
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mempo_agents.engines.base import Sampling
from mempo_agents.engines.hf import HFEngine
from mempo_agents.learners.checkpoint import checkpoints, load_checkpoint, put_back, save_checkpoint, save_model
from mempo_agents.learners.estimators import Estimator, get_estimator
from mempo_agents.learners.groups import group_batch
from mempo_agents.learners.lora import trainable
from mempo_agents.learners.memory_reward import MemoryScores, memory_scores
from mempo_agents.learners.metrics_log import MetricsLog
from mempo_agents.learners.monitors import CollapseRule, rollout_figures
from mempo_agents.learners.optim import MasterOptimizer, rate_at
from mempo_agents.learners.processes import Processes
from mempo_agents.learners.samplers import Sampler, vllm_sampler
from mempo_agents.learners.shards import copy_weights, shard
from mempo_agents.learners.trackers import usable
from mempo_agents.learners.train_settings import TrainSettings
from mempo_agents.learners.update import train_rows, update_policy
from mempo_agents.policies import get_policy
from mempo_agents.rollout import rollout
from mempo_agents.run_folder import SETTINGS, claim, only_writer
from mempo_agents.trajectory import Trajectory
from mempo_env.errors import EngineError, MempoError
from mempo_env.retrieval import get_retriever
from mempo_env.tasks import check_split, compose, load_dataset

# What a run may go on with another value of: its weights are the same, up to the rounding of other batches.
_FREE = ("batch_size", "update.micro_tokens", "save_every", "keep")


class Trainer:
    """One run in one folder. `run` does everything; `play`, `credit` and `learn` are its three parts.

    model, tokenizer: a loaded model, instead of the one that the settings name. estimator: an object, instead of the
    settings' name. watch: called with each record of metrics.jsonl. track: trackers that get the records as well, see
    `learners.trackers`.
    """

    def __init__(
        self,
        settings: TrainSettings,
        folder: Path,
        *,
        model: Any = None,
        tokenizer: Any = None,
        estimator: Estimator | None = None,
        device: str | None = None,
        watch: Callable[[dict[str, Any]], None] | None = None,
        track: Sequence[str] | None = None,
    ) -> None:
        self.settings, self.folder, self.watch = settings, folder, watch
        self.track = usable(track)
        self.estimator = estimator or get_estimator(settings.estimator, **settings.estimator_options)
        if "values" in self.estimator.needs:
            raise ValueError(f"Estimator {self.estimator.name!r} needs a critic's values, which this trainer has not.")
        self.processes = Processes(device)
        self.dataset = load_dataset(settings.dataset, settings.corpus)
        for split in (settings.split, *((settings.eval_split,) if settings.evaluate_every else ())):
            check_split(self.dataset, split)
            get_retriever(settings.retriever, self.dataset, split)  # refused here, before the folder is claimed
        self.engine = self._engine(model, tokenizer)
        self.processes.sharded = settings.shard and self.processes.count > 1
        self.reference = self._reference() if settings.update.kl_coefficient else None
        self.model = self._sharded() if self.processes.sharded else self.engine.model
        sampling = Sampling(settings.max_new_tokens, settings.update.temperature, settings.guided)
        self.optimizer = MasterOptimizer(self.model, settings.optimizer)
        self.sampler = self._sampler(None if model is not None else settings.model)
        self.policy = get_policy(settings.policy, self.sampler, sampling, context=settings.context)
        self.scorer = self.sampler if self.processes.sharded else self.engine  # a model in shards scores nothing
        self._played: int | None = None
        self.tasks = self._compose(settings.split, settings.seed)
        self.update = 0
        self.best = -math.inf
        self.collapse = CollapseRule(settings.collapse)

    def run(self) -> dict[str, Any]:
        """Trains to the end, from the newest checkpoint in the folder if there is one; returns the last record.

        Ends early where the policy collapses (`stopped` in the record says so). Raises FloatingPointError where a loss
        is no number, and MempoError where every episode of an update or an evaluation failed, as they do when a search
        server is gone; `run` then goes on later. In all cases the checkpoints and `best` hold good weights.
        """
        if not self.processes.is_main:
            return self._run(None)
        with only_writer(self.folder), MetricsLog(self.folder, track=self.track, about=asdict(self.settings)) as log:
            return self._run(log)

    def play(self, update: int) -> list[list[Trajectory]]:
        """This process's groups of that update: one list of `group_size` trajectories a task, by sample."""
        settings = self.settings
        first = update * settings.tasks
        chosen = [self.tasks[(first + i) % len(self.tasks)] for i in range(settings.tasks)]
        mine = self.processes.share(chosen)
        self.sampler.follow()
        self._played = self.sampler.version
        played = list(
            rollout(
                self.policy,
                mine,
                env_kwargs=self._environment(settings.split),
                samples=settings.group_size,
                seed=_mix(settings.seed, update),
                batch_size=settings.batch_size,
            )
        )
        self._check_played(played, f"update {update + 1}")
        groups: dict[str, list[Trajectory]] = {task.id: [] for task in mine}
        for trajectory in played:
            groups[trajectory.task_id].append(trajectory)
        return [sorted(group, key=lambda t: t.sample) for group in groups.values()]

    def credit(self, groups: Sequence[Sequence[Trajectory]]) -> tuple[list[Any], list[list[MemoryScores] | None]]:
        """The advantages of each group's tokens, and the memory scores they rest on (None where none are needed)."""
        scores: list[list[MemoryScores] | None] = [None] * len(groups)
        if "scores" in self.estimator.needs:
            flat = [trajectory for group in groups for trajectory in group]
            rest = memory_scores(flat, self.scorer, threshold=self.settings.memory_threshold)
            for number, group in enumerate(groups):
                scores[number], rest = rest[: len(group)], rest[len(group) :]
        advantages = [
            self.estimator(group_batch(group, scores=known)) for group, known in zip(groups, scores, strict=True)
        ]
        return advantages, scores

    def learn(self, groups: Sequence[Sequence[Trajectory]], advantages: Sequence[Any]) -> dict[str, float]:
        """One update on the groups played last; see `update_policy`. EngineError where other weights played them."""
        settings = self.settings
        if self._played != self.optimizer.version:
            raise EngineError(
                f"The episodes were sampled with version {self._played} of the weights, and version "
                f"{self.optimizer.version} would be trained on them: play new ones."
            )
        return update_policy(
            self.model,
            self.optimizer,
            train_rows(
                groups, advantages, [self.processes.rank + i * self.processes.count for i in range(len(groups))]
            ),
            settings.update,
            rate=self._rate(),
            seed=_mix(settings.seed, self.update),
            reference=self.reference,
            processes=self.processes,
        )

    def evaluate(self, split: str | None = None, tasks: int | None = None) -> dict[str, float]:
        """Held-out tasks, each played once: the means of reward, f1, em, all_correct, format_valid and steps."""
        settings = self.settings
        split = split or settings.eval_split
        chosen = [self._compose(split, 0)[i] for i in range(tasks or settings.eval_tasks)]
        mine = self.processes.share(chosen)
        self.sampler.follow()
        environment = self._environment(split)
        played = list(
            rollout(self.policy, mine, env_kwargs=environment, seed=settings.seed, batch_size=settings.batch_size)
        )
        self._check_played(played, f"the evaluation after update {self.update}")
        figures = rollout_figures([[t] for t in played], None, self.processes)
        names = ("reward_mean", "f1", "em", "all_correct", "format_valid", "steps", "response_tokens")
        return {f"eval_{name}": figures[name] for name in names}

    def _run(self, log: MetricsLog | None) -> dict[str, Any]:
        settings = self.settings
        self._claim()
        if self.processes.is_main:
            put_back(self.folder / "best")
        finished = self._resume()
        if log is not None:
            log.cut(self.update if checkpoints(self.folder / "checkpoints") else -1)
            record = log.last()
        else:
            record = {}
        if finished:
            return record
        if self.update == 0 and settings.evaluate_every:
            record = {"step": 0, **self.evaluate()}
            self._keep_best(record)
            self._tell(log, record)
        while self.update < settings.updates:
            record = self._one_update()
            self.update += 1
            record["step"] = self.update
            last = self.update == settings.updates
            if settings.evaluate_every and (last or self.update % settings.evaluate_every == 0):
                record |= self.evaluate()
                self._keep_best(record)
            stopped = self.collapse(record["format_valid"])
            if stopped:
                record["stopped"] = stopped
            self._tell(log, record)
            if last or stopped or (settings.save_every and self.update % settings.save_every == 0):
                self._save(finished=bool(last or stopped))
            if stopped:
                break
        return record

    def _one_update(self) -> dict[str, Any]:
        began = time.perf_counter()
        groups = self.play(self.update)
        played = time.perf_counter()
        advantages, scores = self.credit(groups)
        credited = time.perf_counter()
        record: dict[str, Any] = rollout_figures(groups, scores, self.processes)
        record |= self.learn(groups, advantages)
        learnt = time.perf_counter()
        return {
            "step": 0,
            **record,
            "learning_rate": self.settings.optimizer.lr * self._rate(),
            "rollout_seconds": round(played - began, 3),
            "credit_seconds": round(credited - played, 3),
            "update_seconds": round(learnt - credited, 3),
        }

    def _check_played(self, played: Sequence[Trajectory], what: str) -> None:
        """MempoError, in every process, where no episode of any was whole: that is no lesson and no collapse."""
        told = self.processes.gather((len(played), [t.error for t in played if t.failed]))
        errors = [error for _, failed in told for error in failed]
        if errors and len(errors) == sum(count for count, _ in told):
            raise MempoError(
                f"All {len(errors)} episodes of {what} failed, so it was left out; the first: {errors[0]} Mend what is "
                f"wrong, and give the same command again: it goes on from the newest checkpoint in {self.folder}."
            )

    def _rate(self) -> float:
        settings = self.settings
        done = (self.update + 1) / settings.updates  # the first update has a rate, too
        return rate_at(min(done, 1.0), warmup=settings.warmup, decay=settings.decay, floor=0.1)

    def _environment(self, split: str) -> dict[str, Any]:
        settings = self.settings
        return {
            "dataset": self.dataset,
            "split": split,
            "objectives": settings.objectives,
            "retriever": get_retriever(settings.retriever, self.dataset, split),
            "top_k": settings.top_k,
            "max_steps": settings.max_steps,
            "instructions": settings.instructions,
            "reward": settings.reward,
        }

    def _compose(self, split: str, seed: int) -> Sequence[Any]:
        questions = self.dataset.questions(split)
        return compose(questions, self.settings.objectives, seed=seed, split=split, name=self.dataset.name)

    def _engine(self, model: Any, tokenizer: Any) -> HFEngine:
        if model is None:
            engine = HFEngine(self.settings.model, dtype=self.settings.dtype, device=str(self.processes.device))
        else:
            engine = HFEngine(model.to(self.processes.device), tokenizer)
        base = self.settings.model if model is None else None
        opened = trainable(engine.model, self.settings.lora_rank, self.settings.seed, base=base)
        return engine if opened is engine.model else HFEngine(opened, engine.codec)

    def _sampler(self, model: str | None) -> Sampler:
        settings = self.settings

        def version() -> int:
            return self.optimizer.version

        def fill(_: int = 0) -> None:
            copy_weights(self.model, self.engine.model)

        first = fill if self.processes.sharded else None
        if settings.sampler == "hf":
            return Sampler(self.engine, version, first)
        return vllm_sampler(
            self.engine, version, self.processes, model=model, dtype=settings.dtype, options=settings.sampler_options,
            first=first,
        )  # fmt: skip

    def _sharded(self) -> Any:
        """The model to train; the engine keeps a whole copy: on the device, or on the CPU where vLLM has another."""
        sharded = shard(self.engine.model, self.processes)
        if self.settings.sampler == "hf":
            self.engine.model.to(self.processes.device)
        return sharded

    def _reference(self) -> Any:
        reference = copy.deepcopy(self.engine.model)
        return reference.requires_grad_(False).eval()

    def _tell(self, log: MetricsLog | None, record: dict[str, Any]) -> None:
        if log is not None:
            log.write(record)
            if self.watch is not None:
                self.watch(record)

    def _keep_best(self, record: Mapping[str, Any]) -> None:
        if record["eval_f1"] > self.best:
            self.best = record["eval_f1"]
            if self.processes.is_main:
                save_model(self.folder / "best", self.engine.model, self.engine.tokenizer)

    def _save(self, finished: bool) -> None:
        self.sampler.follow()  # with weights in shards, the whole copy is what is saved
        tensors = self.optimizer.state(keep=self.processes.is_main)
        if self.processes.is_main:
            state = {"finished": finished, "best": self.best if math.isfinite(self.best) else None,
                     "collapse": self.collapse.state(), "kind": "train"}  # fmt: skip
            save_checkpoint(
                self.folder / "checkpoints", self.update, self.engine.model, self.engine.tokenizer, tensors,
                state, self.settings.keep,
            )  # fmt: skip
        self.processes.wait()

    def _resume(self) -> bool:
        found = checkpoints(self.folder / "checkpoints")
        if not found:
            return False
        state, tensors = load_checkpoint(found[-1], "train")
        self.optimizer.load(tensors)
        self.update = state["step"]
        self.best = -math.inf if state["best"] is None else state["best"]
        self.collapse.load(state["collapse"])
        return bool(state["finished"])

    def _claim(self) -> None:
        """Write down what this run is, or check that the folder holds the same one."""
        path = self.folder / SETTINGS
        if self.processes.is_main or path.exists():
            mine = {**asdict(self.settings), "dataset_fingerprint": self.dataset.fingerprint}
            claim(path, mine, default=asdict(TrainSettings()), free=_FREE)  # the file may be older than a setting
        self.processes.wait()


def _mix(seed: int, update: int) -> int:
    """A seed of its own for every update of every run."""
    return (seed * 1_000_003 + update * 7919 + 17) % 2**31
