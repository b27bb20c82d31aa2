"""k questions become one task, each a function of (questions, arguments, index) and found without listing the rest."""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import overload

import numpy as np

from mempo_env.checks import whole_number
from mempo_env.errors import DataError, UnknownNameError
from mempo_env.scoring import without_separator
from mempo_env.types import Question, Task

METHODS = ("sample", "blocks")

Objectives = int | tuple[int, int]


class TaskSet(Sequence[Task]):
    """A read-only sequence of tasks; `compose` and `mix` make it.

    `tasks[i]` costs the same for every i and depends on (questions, objectives, method, seed, i) only: no global random
    state, no hash seed, no numpy generator whose stream may change with its version. An index outside the set raises
    IndexError. `dropped` counts the questions that no task of an epoch uses.

    Attributes:
        name, split: they open the task ids: "world/test/k4-s0/000017".
        objectives: (low, high), questions in a task; equal for a fixed number.
        method: "sample", "blocks" or "mix". seed: of the order (blocks have none).
    """

    def __init__(
        self,
        sources: Sequence[Sequence[Question]],
        objectives: Objectives,
        *,
        method: str,
        seed: int,
        split: str,
        name: str,
        length: int | None,
    ) -> None:
        self.low, self.high = check_objectives(objectives)
        self.name, self.split, self.method = name, split, method
        self.seed = whole_number("the seed of the tasks", seed, least=None)
        self._sources = tuple(sources)
        if not self._sources:
            raise DataError("mix expects at least one set of questions, got none.")
        # Questions that a task takes from each source, at most; consecutive places of the source's shuffled order.
        self._width = -(-self.high // len(self._sources))
        for source in self._sources:
            if len(source) < self._width:
                share = "" if len(self._sources) == 1 else f" from each of {len(self._sources)} sets"
                raise DataError(
                    f"A task of {self.high} objectives needs {self._width} questions{share}, but {name or 'a set'}"
                    f"{'/' + split if split else ''} has {len(source)}. "
                    "Ask for fewer objectives or give more questions."
                )
        total = sum(len(source) for source in self._sources)
        if method == "blocks":
            whole, rest = divmod(total, self._cycle_sum())
            extra, used = _fit_cycle(self.low, self.high, rest)
            natural, self.dropped = whole * (self.high - self.low + 1) + extra, rest - used
        else:
            natural, self.dropped = total, sum(len(source) % self._width for source in self._sources)
        if length is not None and (length < 1 or (method == "blocks" and length > natural)):
            most = f" and at most {natural} (blocks use each question once)" if method == "blocks" else ""
            raise DataError(f"length: expected a whole number from 1{most}, got {length}.")
        self._length = natural if length is None else length
        self.objectives = (self.low, self.high)
        sizes = f"{self.low}" if self.low == self.high else f"{self.low}to{self.high}"
        order = "blocks" if method == "blocks" else f"{'mix' if method == 'mix' else 's'}{self.seed}"
        self._prefix = "/".join(part for part in (name, split, f"k{sizes}-{order}") if part)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        given = operator.index(index)
        i = given + self._length if given < 0 else given
        if not 0 <= i < self._length:
            raise IndexError(
                f"Task index {given} is out of range: {self._prefix} has {self._length} tasks, "
                f"0 to {self._length - 1}. compose(..., length=) makes more."
            )
        questions = self._block(i) if self.method == "blocks" else self._draw(i)
        return answerable(Task(f"{self._prefix}/{i:06d}", questions, self.split))

    def find(self, task_id: str) -> Task:
        """The task with this id. DataError says what ids look like."""
        match = re.fullmatch(r"(.*)/(\d{6,})", task_id)
        if match and match[1] == self._prefix and int(match[2]) < self._length:
            return self[int(match[2])]
        raise DataError(
            f"Unknown task id {task_id!r}. Expected {self._prefix}/000000 to {self._prefix}/{self._length - 1:06d}."
        )

    def from_questions(self, question_ids: Iterable[str]) -> Task:
        """A task of these questions, in this order. Looks through all questions; DataError names the id it misses."""
        wanted = list(question_ids)
        if not wanted or len(set(wanted)) < len(wanted):
            raise DataError(f"A task needs at least one question and each only once, got {wanted!r}.")
        asked = frozenset(wanted)
        found = {q.id: q for source in self._sources for q in source if q.id in asked}
        for question_id in wanted:
            if question_id not in found:
                example = self._sources[0][0].id
                raise DataError(f"Unknown question id {question_id!r} in {self._prefix}. Ids look like {example!r}.")
        return answerable(Task("+".join(wanted), tuple(found[question_id] for question_id in wanted), self.split))

    def _round(self, i: int, turn: int) -> Sequence[int] | np.ndarray:
        """The order in which task i draws from the sources in one round."""
        if len(self._sources) == 1:
            return (0,)
        return _shuffled(len(self._sources), _number(self.seed, "round", i, turn))

    def _cycle_sum(self) -> int:
        return (self.low + self.high) * (self.high - self.low + 1) // 2

    def _block(self, i: int) -> tuple[Question, ...]:
        # Sizes go low, low + 1, ..., high, low, ...: the start of a block is a closed formula.
        cycle, place = divmod(i, self.high - self.low + 1)
        start = cycle * self._cycle_sum() + place * self.low + place * (place - 1) // 2
        source = self._sources[0]
        return tuple(source[j] for j in range(start, start + self.low + place))

    def _draw(self, i: int) -> tuple[Question, ...]:
        """Rounds over the sources, each in a shuffled order, until the task is full.

        Task i owns `width` places of every source's shuffled order, so no question repeats inside a task or, within
        one pass over a source, between tasks.
        """
        size = self.low + _number(self.seed, "size", i) % (self.high - self.low + 1)
        picked: list[Question] = []
        for turn in range(self._width):
            for s in self._round(i, turn):
                source = self._sources[s]
                epoch, block = divmod(i, len(source) // self._width)
                order = _epoch_order(len(source), _number(self.seed, "epoch", s, epoch))
                picked.append(source[int(order[block * self._width + turn])])
        questions = tuple(picked[:size])
        if len({q.id for q in questions}) < size:
            repeated = sorted({q.id for q in questions if sum(q.id == other.id for other in questions) > 1})
            raise DataError(f"Question ids must be unique over all sets, got {repeated} twice in {self._prefix}.")
        return questions


def compose(
    questions: Sequence[Question],
    objectives: Objectives,
    *,
    method: str = "sample",
    seed: int = 0,
    split: str = "",
    name: str = "",
    length: int | None = None,
) -> TaskSet:
    """Tasks of `objectives` questions each.

    Args:
        questions: with unique ids; any sequence, read where needed.
        objectives: k >= 1, or (low, high), both included: each task then has its own seeded size.
        method: "sample" shuffles all questions, cuts the order into tasks, and shuffles anew for the next epoch: no
            question repeats inside a task, nor in an epoch. "blocks" takes consecutive questions in file order and
            drops the remainder, as MEM1's data construction does (sizes of a range go low to high in turn; no seed).
        seed: of the shuffles. length: number of tasks. By default a sample has as many tasks as there are questions
            (so k epochs), blocks have as many as fit.

    Raises:
        UnknownNameError: method. DataError: fewer questions than objectives, or a size or length out of range.
    """
    if method not in METHODS:
        raise UnknownNameError("composition method", method, METHODS)
    return TaskSet([questions], objectives, method=method, seed=seed, split=split, name=name, length=length)


def mix(
    sources: Sequence[Sequence[Question]],
    objectives: Objectives,
    *,
    seed: int = 0,
    split: str = "",
    name: str = "mix",
    length: int | None = None,
) -> TaskSet:
    """Tasks whose questions come from all `sources` in equal shares, in a seeded order; arguments as in `compose`.

    With k objectives and D sources, a task takes floor(k / D) or ceil(k / D) questions of each. Small sources are gone
    through more often than large ones. By default there are as many tasks as questions in all.
    """
    return TaskSet(list(sources), objectives, method="mix", seed=seed, split=split, name=name, length=length)


def answerable(task: Task) -> Task:
    """`task` with every ";" inside an accepted answer written as ",": it separates the answers of a step, so no policy
    could give one. The same task where there is none."""
    if not any(";" in answer for question in task.questions for answer in question.answers):
        return task
    questions = tuple(replace(q, answers=without_separator(q.answers)) for q in task.questions)
    return replace(task, questions=questions)


def check_objectives(objectives: Objectives) -> tuple[int, int]:
    """(low, high) of a number or a range of objectives; DataError unless 1 <= low <= high."""
    try:
        if isinstance(objectives, (tuple, list)):
            low, high = (operator.index(value) for value in objectives)
        else:
            low = high = operator.index(objectives)
    except (TypeError, ValueError):
        low, high = 0, 0
    if not 1 <= low <= high or isinstance(objectives, bool):
        raise DataError(
            f"objectives: expected a whole number from 1, or (low, high) with low <= high, got {objectives!r}."
        )
    return low, high


def _fit_cycle(low: int, high: int, rest: int) -> tuple[int, int]:
    """How many more blocks of the sizes low, low + 1, ... fit into `rest` questions, and how many they use."""
    blocks, used = 0, 0
    while low + blocks <= high and used + low + blocks <= rest:
        used += low + blocks
        blocks += 1
    return blocks, used


def _number(seed: int, *parts: int | str) -> int:
    digest = hashlib.blake2b("|".join(map(str, (seed, *parts))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _shuffled(n: int, key: int) -> np.ndarray:
    """A permutation of range(n): the order of a 64-bit mix (SplitMix64's finaliser) of key and position."""
    x = np.arange(n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.argsort(x ^ (x >> np.uint64(31)), kind="stable").astype(np.int32)


@lru_cache(maxsize=32)
def _epoch_order(n: int, key: int) -> np.ndarray:
    order = _shuffled(n, key)
    order.flags.writeable = False  # shared by all who ask
    return order
