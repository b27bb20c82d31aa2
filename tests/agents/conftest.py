"""A data set to know by heart: twelve questions, one passage for each, and four passages that answer nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

FOUNDERS = {
    "Northbank Library": "Ada Quill",
    "Harrow Mill": "Tomas Beck",
    "Saltmarsh Observatory": "Ines Corvo",
    "Pinewood Theatre": "Oskar Lund",
    "Gravelton Railway": "Mira Hale",
    "Copperfield Brewery": "Juno Park",
    "Eastgate Hospital": "Leo Brandt",
    "Willowdale Printworks": "Nora Finch",
    "Stonebridge Academy": "Ravi Menon",
    "Lakeside Foundry": "Elsa Moreau",
    "Thistledown Bakery": "Pavel Novak",
    "Quarry Hill Orchestra": "Lucia Ferro",
}


@pytest.fixture
def tiny_data(tmp_path: Path) -> tuple[Path, Path]:
    """(questions, corpus): FlashRAG's question format and title/text passages."""
    questions, corpus = tmp_path / "founders.jsonl", tmp_path / "passages.jsonl"
    with questions.open("w") as file:
        for number, (place, founder) in enumerate(FOUNDERS.items()):
            row = {"id": f"q{number}", "question": f"Who founded {place}?", "golden_answers": [founder]}
            file.write(json.dumps(row) + "\n")
    with corpus.open("w") as file:
        for number, (place, founder) in enumerate(FOUNDERS.items()):
            text = f"{place} was founded by {founder}. It lies by the river."
            file.write(json.dumps({"id": f"p{number}", "title": place, "text": text}) + "\n")
        for number in range(4):
            file.write(json.dumps({"id": f"x{number}", "title": f"Hill {number}", "text": "A hill."}) + "\n")
    return questions, corpus
