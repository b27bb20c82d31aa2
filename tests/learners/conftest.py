"""Fixtures of the learners' tests."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def nano_folder(tmp_path_factory):
    """A folder with a random one-layer nano model and its tokenizer. Shared: read it only."""
    from mempo_agents.nano.model import nano_model
    from mempo_agents.nano.tokenizer import nano_tokenizer

    folder = tmp_path_factory.mktemp("nano")
    tokenizer = nano_tokenizer()
    nano_model(tokenizer, width=64, layers=1, dtype="float32").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
