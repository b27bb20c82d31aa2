"""What every data set is: named splits of questions, and the passages that they are answered from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from mempo_env.errors import UnknownNameError
from mempo_env.types import Passage, Question


@runtime_checkable
class Dataset(Protocol):
    """Questions by split, with their corpus.

    `splits` are the names that `questions` and `passages` accept, the preferred one first. `passages` is None where
    the source has questions only (open-domain sets, searched in a corpus of the user's choice). `fingerprint`
    identifies the content: equal fingerprints mean equal questions and passages.
    """

    @property
    def name(self) -> str: ...

    @property
    def splits(self) -> tuple[str, ...]: ...

    @property
    def fingerprint(self) -> str: ...

    def questions(self, split: str) -> Sequence[Question]: ...

    def passages(self, split: str) -> Sequence[Passage] | None: ...


def check_split(dataset: Dataset, split: str | None) -> str:
    """`split` if the data set has it, the first split for None; an error that lists the splits otherwise."""
    if split is None:
        return dataset.splits[0]
    if split not in dataset.splits:
        raise UnknownNameError(f"split of data set {dataset.name!r}", split, dataset.splits)
    return split
