"""The published files themselves, where they are at hand (MEMPO_DATA, else ../shared/data beside the repository)."""

import os
from pathlib import Path

import pytest

from mempo_env.retrieval import get_retriever
from mempo_env.scoring import score
from mempo_env.tasks import Dataset, compose, load_dataset, mix
from mempo_env.types import Task

DATA = Path(os.environ.get("MEMPO_DATA", Path(__file__).parents[2].parent / "shared" / "data"))

QUESTIONS = {
    "hotpotqa": "hotpotqa/hotpot_train_100.json",
    "musique": "musique/musique_train_100.json",
    "nq_open": "nq_open/NQ-open.dev.jsonl",
}
CORPORA = {"hotpotqa": "hotpotqa/corpus_994.json", "musique": "musique/corpus_1890.json"}


def real(relative: str) -> Path:
    path = DATA / relative
    if not path.exists():
        pytest.skip(f"real data: no {path} (set MEMPO_DATA)")
    return path


def load(name: str, with_corpus: bool) -> Dataset:
    corpus = real(CORPORA[name]) if with_corpus else None
    return load_dataset(real(QUESTIONS[name]), corpus)


def check_gold(dataset: Dataset, split: str, objectives: int) -> None:
    """Feeding the gold answers back must give full marks, alone and joined."""
    questions = dataset.questions(split)
    for question in questions:
        for alias in question.answers:
            result = score(Task("t", (question,)), alias)
            assert result.all_correct, (question.id, alias)
            assert result.f1 == (1.0,)
    for task in compose(questions, objectives):
        result = score(task, "; ".join(question.answers[0] for question in task.questions))
        assert result.all_correct, task.id


@pytest.mark.parametrize(
    ("name", "with_corpus", "n_questions", "n_passages"),
    [
        ("hotpotqa", False, 100, 994),
        ("hotpotqa", True, 100, 994),
        ("musique", False, 100, 1890),
        ("musique", True, 100, 1890),
        ("nq_open", False, 3610, None),
    ],
)
def test_every_row_is_read_and_its_gold_scores_full_marks(name, with_corpus, n_questions, n_passages):
    dataset = load(name, with_corpus)
    assert dataset.name == name
    report = dataset.report
    assert (report.n_rows, report.n_questions, report.n_skipped) == (n_questions, n_questions, 0)
    passages = dataset.passages("all")
    assert (None if passages is None else len(passages)) == n_passages
    check_gold(dataset, "all", 6)


@pytest.mark.parametrize("name", ["hotpotqa", "musique"])
@pytest.mark.parametrize("with_corpus", [False, True])
def test_every_supporting_fact_is_traced_to_its_passage(name, with_corpus):
    dataset = load(name, with_corpus)
    passages = {p.id: p for p in dataset.passages("all")}
    assert dataset.report.n_without_evidence == 0
    for question in dataset.questions("all"):
        assert len(question.evidence) >= 2
        for link in question.evidence:
            text = passages[link.passage_id].text
            assert link.fact in text
            if link.answer.casefold() in text.casefold():
                assert link.answer.casefold() in link.fact.casefold()


def test_corpus_and_question_files_give_the_same_passages():
    for name in CORPORA:
        assert {p.id for p in load(name, True).passages("all")} == {p.id for p in load(name, False).passages("all")}


@pytest.mark.parametrize("name", ["hotpotqa", "musique"])
def test_the_chain_of_evidence_is_found_by_search(name):
    dataset = load(name, True)
    retriever = get_retriever("bm25", dataset, "all")
    links = [link for question in dataset.questions("all") for link in question.evidence]
    hits = retriever.search([link.query for link in links], 3)
    found = sum(link.passage_id in [h.passage.id for h in row] for link, row in zip(links, hits, strict=True))
    # Paragraphs of one article share their title in MuSiQue, so that a title cannot tell them apart.
    assert found / len(links) > {"hotpotqa": 0.99, "musique": 0.94}[name]


def test_folders_name_split_and_corpus_themselves():
    real(QUESTIONS["hotpotqa"])
    dataset = load_dataset(DATA / "hotpotqa")
    assert dataset.splits == ("train",)
    assert len(dataset.passages("train")) == 994
    assert load_dataset(DATA / "nq_open").splits == ("dev",)


def test_real_questions_mix():
    sources = [load(name, False).questions("all") for name in QUESTIONS]
    for task in mix(sources, 6, length=50):
        assert len({q.id for q in task.questions}) == 6
        assert {q.dataset for q in task.questions} == set(QUESTIONS)
