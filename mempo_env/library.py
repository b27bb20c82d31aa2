"""Where an environment's tasks and search results come from: one data set, its composed tasks, its retrievers.

Loaded once and shared: the rows of a vector environment hold one `Library`, and their searches go out together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mempo_env.checks import whole_number
from mempo_env.errors import DataError, RetrievalError, UnknownNameError
from mempo_env.retrieval import get_retriever
from mempo_env.retrieval.base import Retriever
from mempo_env.tasks.compose import TaskSet, answerable, compose
from mempo_env.tasks.dataset import Dataset, check_split
from mempo_env.tasks.load import load_dataset
from mempo_env.types import ActionKind, Hit, Task

if TYPE_CHECKING:
    from mempo_env.episode import Episode

RESET_OPTIONS = ("split", "index", "task")


def read_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of `reset`'s options, empty for None; TypeError unless they are a mapping."""
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"Expected options to be a dictionary or None, got {options!r}.")
    return dict(options or {})


class Library:
    """A data set ready to be asked for tasks and to be searched. Everything is built at first need and kept.

    Arguments are those of `SearchQAEnv`; `tools` are the protocol's. A pickle holds the names that were given, not what
    was built from them.

    Raises:
        UnknownNameError: The data set, split, composition or retriever does not exist.
        DataError: The data set has no passages and no corpus was given, or too few questions.
        TypeError: The protocol offers a tool that the retriever does not have.
    """

    def __init__(
        self,
        *,
        dataset: str | Path | Dataset,
        split: str | None,
        objectives: int | tuple[int, int],
        composition: str,
        task_seed: int,
        retriever: str | Retriever,
        corpus: str | Path | None,
        top_k: int,
        tools: Sequence[str] = ("search",),
    ) -> None:
        self._dataset_spec = dataset
        self._retriever_spec = retriever
        self._corpus = corpus
        self._objectives = objectives
        self._composition = composition
        self._task_seed = task_seed
        self._tools = tuple(tools)
        self.top_k = whole_number("top_k", top_k)
        self._forget()
        self.split = check_split(self.dataset, split)
        self.tasks(self.split)
        self.retriever(self.split)

    def _forget(self) -> None:
        self._dataset: Dataset | None = None
        self._tasks: dict[str, TaskSet] = {}
        self._retrievers: dict[str, Retriever] = {}

    @property
    def dataset(self) -> Dataset:
        if self._dataset is None:
            self._dataset = load_dataset(self._dataset_spec, self._corpus)
        return self._dataset

    def tasks(self, split: str) -> TaskSet:
        """The composed tasks of a split."""
        if split not in self._tasks:
            self._tasks[split] = compose(
                self.dataset.questions(split),
                self._objectives,
                method=self._composition,
                seed=self._task_seed,
                split=split,
                name=self.dataset.name,
            )
        return self._tasks[split]

    def retriever(self, split: str) -> Retriever:
        """The retriever that serves a split's episodes."""
        if split not in self._retrievers:
            retriever = get_retriever(self._retriever_spec, self.dataset, split)
            if "visit" in self._tools and not hasattr(retriever, "visit"):
                raise TypeError(
                    f"The protocol offers the tool 'visit', but the retriever {retriever.name!r} cannot open pages: "
                    "expected a method visit(urls) that returns one list of hits per url."
                )
            self._retrievers[split] = retriever
        return self._retrievers[split]

    def choose(self, options: Mapping[str, Any] | None) -> tuple[Task | None, str]:
        """The task that `reset`'s options name, or None where they leave it to chance, and the split.

        Raises:
            UnknownNameError: An option, split, task or question id does not exist.
            IndexError: The index is outside the split.
            TypeError, ValueError: An option has the wrong type, or both `index` and `task` were given.
        """
        options = read_options(options)
        for name in options:
            if name not in RESET_OPTIONS:
                raise UnknownNameError("reset option", name, RESET_OPTIONS)
        split, index, task = (options.get(name) for name in RESET_OPTIONS)
        if index is not None and task is not None:
            raise ValueError(f"Expected options to hold 'index' or 'task', got both: {index!r} and {task!r}.")
        if isinstance(task, Task):
            # A task of one's own need not come from this data set; it is searched in the passages of its split.
            if split is None:
                split = task.split if task.split in self.dataset.splits else self.split
            return answerable(task), check_split(self.dataset, split)
        split = check_split(self.dataset, self.split if split is None else split)
        if isinstance(task, str):
            return self._task_by_id(task, split, fixed=options.get("split") is not None)
        if task is not None:
            return self._task_of_questions(task, split), split
        return None if index is None else self._task_at(index, split), split

    def serve(self, episodes: Sequence[Episode]) -> None:
        """Run the pending searches of these episodes, one batch per retriever, and hand each its hits.

        An infrastructure failure fails every episode of the batch; those that searched nothing are not touched.
        """
        batches: dict[tuple[int, ActionKind], list[Episode]] = {}
        for episode in episodes:
            if episode.pending is not None:
                key = (id(self.retriever(episode.split)), episode.pending.kind)
                batches.setdefault(key, []).append(episode)
        for (_, kind), batch in batches.items():
            arguments = [episode.pending.argument for episode in batch if episode.pending is not None]
            try:
                found = self._look_up(kind, arguments, batch[0].split)
            except (RetrievalError, OSError) as error:
                for episode in batch:
                    episode.fail(f"{type(error).__name__}: {error}")
            else:
                for episode, hits in zip(batch, found, strict=True):
                    episode.observe(hits)

    def _look_up(self, kind: ActionKind, arguments: list[str], split: str) -> list[list[Hit]]:
        retriever: Any = self.retriever(split)
        visiting = kind is ActionKind.VISIT
        found = retriever.visit(arguments) if visiting else retriever.search(arguments, self.top_k)
        if len(found) != len(arguments):
            raise RetrievalError(
                f"Expected one list of hits per query, {len(arguments)} in all, got {len(found)} from {retriever!r}."
            )
        return found if visiting else [hits[: self.top_k] for hits in found]

    def _task_at(self, index: Any, split: str) -> Task:
        tasks = self.tasks(split)
        position = whole_number("the option 'index'", index, least=None)
        if not 0 <= position < len(tasks):
            raise IndexError(
                f"Task index {position} is out of range: split {split!r} of data set {self.dataset.name!r} has "
                f"{len(tasks)} tasks here, expected 0 to {len(tasks) - 1}."
            )
        return tasks[position]

    def _task_by_id(self, task_id: str, split: str, fixed: bool) -> tuple[Task, str]:
        # The split asked for comes first; without one, an id from any split of the data set is understood.
        others = () if fixed else tuple(name for name in self.dataset.splits if name != split)
        for name in (split, *others):
            with contextlib.suppress(DataError):
                return self.tasks(name).find(task_id), name
        return self.tasks(split).find(task_id), split  # raises, and says what ids look like

    def _task_of_questions(self, question_ids: Any, split: str) -> Task:
        if not isinstance(question_ids, (tuple, list)) or not all(isinstance(i, str) for i in question_ids):
            raise TypeError(
                "Expected the option 'task' to be a Task, a task id, or a tuple of question ids, "
                f"got {type(question_ids).__name__}: {question_ids!r}."
            )
        return self.tasks(split).from_questions(question_ids)

    def __getstate__(self) -> dict[str, Any]:
        built = ("_dataset", "_tasks", "_retrievers")
        return {name: value for name, value in self.__dict__.items() if name not in built}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()
