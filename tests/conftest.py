"""Fixtures for all tests. Everything runs offline, on one thread, on the CPU."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest


@pytest.fixture(scope="session")
def tiny_engine():
    """A random two-layer Llama behind `HFEngine`, float32. Shared by all tests: do not change its weights.

    `tiny.make_tiny_engine()` makes one that may be changed.
    """
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tiny import make_tiny_engine

    return make_tiny_engine()
