"""Questions, their corpora, and the tasks composed of them."""

from __future__ import annotations

from mempo_env.tasks.compose import TaskSet, compose, mix
from mempo_env.tasks.dataset import Dataset, check_split
from mempo_env.tasks.load import load_dataset

__all__ = ["Dataset", "TaskSet", "check_split", "compose", "load_dataset", "mix"]
