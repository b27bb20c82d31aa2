"""Rows of the right keys and the wrong values: every format refuses them in words, whatever stands where."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from mempo_env import load_dataset
from mempo_env.errors import DataError
from mempo_env.tasks.corpora import passages_of
from mempo_env.tasks.formats import BadRowError, detect
from mempo_env.types import Question, Task

HOTPOTQA = {"_id": "1", "question": "q", "answer": "a", "supporting_facts": [["T", 0]], "context": [["T", ["a b."]]]}
QUESTIONS: dict[str, dict[str, Any]] = {
    "hotpotqa": HOTPOTQA,
    "hotpotqa on the hub": {
        **HOTPOTQA,
        "supporting_facts": {"title": ["T"], "sent_id": [0]},
        "context": {"title": ["T"], "sentences": [["a b."]]},
    },
    "2wikimultihopqa": {**HOTPOTQA, "answer_id": "Q1", "evidences": [["T", "r", "a"]]},
    "musique": {
        "id": "2hop__1",
        "question": "q",
        "answer": "a",
        "answer_aliases": ["b"],
        "question_decomposition": [{"question": "x", "answer": "a", "paragraph_support_idx": 0}],
        "paragraphs": [{"idx": 0, "title": "T", "paragraph_text": "a b."}],
    },
    "nq_open": {"question": "q", "answer": ["a"]},
    "triviaqa": {"Question": "q", "QuestionId": "1", "Answer": {"Value": "a", "Aliases": ["b"]}},
    "popqa": {"id": 1, "question": "q", "possible_answers": '["a"]', "prop": "x"},
    "flashrag": {"id": "1", "question": "q", "golden_answers": ["a"], "metadata": {"type": "x"}},
    "phantomwiki": {"id": "1", "question": "q", "answer": ["a"], "difficulty": 1, "type": 3},
}
PASSAGES = [{"id": "1", "contents": "a\nb"}, {"id": "1", "title": "t", "text": "x"}, {"title": "T", "sentences": ["a"]}]
JUNK: list[Any] = [
    *(None, 5, 1.5, True, "", "x", float("nan"), [], [1], [[]], [None], ["x"], [["x", None]], [["x", [None]]]),
    *([["T", True]], [[["T"], 0]], [[{}, 0]], [{"a": 1}], {}, {"a": 1}, {"title": 5, "sentences": 5}),
    *({"title": ["T"], "sentences": [None]}, {"title": ["T"], "sent_id": 5}),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from places(item, (*path, key))


def spoiled(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in places(row):
        for junk in JUNK:
            changed = copy.deepcopy(row)
            target: Any = changed
            for key in path[:-1]:
                target = target[key]
            target[path[-1]] = junk
            yield changed


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_row_is_read_or_refused(name: str) -> None:
    for row in spoiled(QUESTIONS[name]):
        question_format = detect(row)
        if question_format is None:
            continue
        try:
            question = question_format.read(row)
        except BadRowError:
            continue
        texts = [question.text, *question.answers, *(part for passage in question.passages for part in passage)]
        texts += [part for link in question.links or () for part in (link.query, link.title, link.fact, link.answer)]
        assert question.answers
        assert all(isinstance(text, str) for text in texts), row


@pytest.mark.parametrize("row", PASSAGES, ids=lambda row: "+".join(row))
def test_a_passage_row_is_read_or_refused(row: dict[str, Any]) -> None:
    for changed in spoiled(row):
        try:
            found = list(passages_of(changed))
        except BadRowError:
            continue
        assert all(isinstance(text, str) for passage in found for text in passage), changed


@pytest.mark.parametrize("text", ['["Paris", "Lutetia"]', "['Paris', 'Lutetia']", "['Paris' 'Lutetia']", '["It\'s"]'])
def test_a_list_written_as_text_is_never_one_alias(text: str) -> None:
    row = {"question": "q", "answer": text}
    with pytest.raises(BadRowError, match="a list written as a string"):
        detect(row).read(row)


@pytest.mark.parametrize("text", ["[sic]", "[REC]", "['"])
def test_brackets_alone_make_no_list(text: str) -> None:
    row = {"question": "q", "answer": text}
    assert detect(row).read(row).answers == (text,)


@pytest.mark.parametrize(("source", "corpus"), [("", None), ([5], None), ("x.jsonl", 5), ("x.jsonl", []), ("x", [""])])
def test_sources_that_are_no_paths(source: Any, corpus: Any) -> None:
    with pytest.raises(DataError, match=r"expected (a name or a path|at least one file)"):
        load_dataset(source, corpus)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Task("t", ()), ValueError, "expected at least one question"),
        (lambda: Task("t", ["q"]), TypeError, "questions must be a tuple of Question objects"),
        (lambda: Question("i", None, ("a",)), TypeError, "the text must be a string, got NoneType"),
    ],
)
def test_tasks_and_questions_are_checked_when_made(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
