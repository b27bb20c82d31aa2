"""BM25 on disk ranks exactly like BM25 in memory, whatever the blocks it was built in."""

from __future__ import annotations

import inspect
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from retrieval_support import make_passages

from mempo_env.errors import DataError
from mempo_env.retrieval import bm25_disk
from mempo_env.retrieval.bm25 import BM25Retriever
from mempo_env.retrieval.bm25_disk import DiskBM25Retriever, build_bm25
from mempo_env.retrieval.corpus import Corpus, build_corpus
from mempo_env.types import Passage

pytest.importorskip("pyarrow")

QUERIES = ["w3 w17 w400", "w1", "Title 7", "", "the of", "zzzz qqqq", "w5 w5 w9", "W12, w13!"]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    build_corpus(make_passages(400), tmp_path / "corpus", source="test")
    return Corpus(tmp_path / "corpus")


@pytest.mark.parametrize("block_tokens", [1, 997, 10**9])
@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_same_hits_and_scores_as_in_memory(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_tokens: int, backend: str
) -> None:
    if backend == "numba":
        pytest.importorskip("numba")
    monkeypatch.setattr(bm25_disk, "_BLOCK_TOKENS", block_tokens)
    settings = {"k1": 1.2, "b": 0.6, "title_weight": 2}
    build_bm25(corpus, tmp_path / "bm25", **settings)
    in_memory = BM25Retriever(list(corpus), backend=backend, **settings)
    on_disk = DiskBM25Retriever(corpus, tmp_path / "bm25", backend=backend)
    for k in (1, 3, 1000):
        expected = in_memory.search(QUERIES, k)
        assert on_disk.search(QUERIES, k) == expected
        assert [on_disk.search([query], k)[0] for query in QUERIES] == expected
    assert expected[0]
    assert expected[3] == expected[4] == expected[5] == []


def test_the_defaults_are_those_in_memory() -> None:
    ours, theirs = (inspect.signature(f).parameters for f in (build_bm25, BM25Retriever.__init__))
    for name in ("k1", "b", "title_weight", "stop_words"):
        assert ours[name].default == theirs[name].default


def test_weights_are_those_of_bm25s(corpus: Corpus, tmp_path: Path) -> None:
    import bm25s

    from mempo_env.retrieval.words import words

    build_bm25(corpus, tmp_path / "bm25", title_weight=1)
    ours = DiskBM25Retriever(corpus, tmp_path / "bm25", backend="numpy")
    theirs = bm25s.BM25(k1=1.5, b=0.75, method="lucene", backend="numpy")
    theirs.index([words(p.title) + words(p.text) for p in corpus], show_progress=False)
    for query in ("w3 w17 w400", "w1", "Title 7"):
        scores = theirs.get_scores(words(query))
        for hit in ours.search([query], 5)[0]:
            row = next(i for i, p in enumerate(corpus) if p.id == hit.passage.id)
            assert hit.score == pytest.approx(float(scores[row]), rel=1e-6)


def test_ties_go_by_id_and_not_by_row(tmp_path: Path) -> None:
    rows = [Passage(f"{9 - i}", "", f"same words x{i}") for i in range(6)]
    build_corpus(rows, tmp_path / "corpus", source="test")
    corpus = Corpus(tmp_path / "corpus")
    build_bm25(corpus, tmp_path / "bm25")
    hits = DiskBM25Retriever(corpus, tmp_path / "bm25").search(["same words"], 4)[0]
    assert [hit.passage.id for hit in hits] == ["4", "5", "6", "7"]


def test_a_range_of_rows_is_an_index_of_its_own(corpus: Corpus, tmp_path: Path) -> None:
    build_bm25(corpus, tmp_path / "part", rows=(100, 250))
    part = DiskBM25Retriever(corpus, tmp_path / "part", backend="numpy")
    alone = BM25Retriever([corpus[i] for i in range(100, 250)], backend="numpy")
    assert len(part) == 150
    assert part.search(QUERIES, 5) == alone.search(QUERIES, 5)
    for rows in ((0, 401), (5, 5), (-1, 3)):
        with pytest.raises(ValueError, match="rows"):
            build_bm25(corpus, tmp_path / "bad", rows=rows)


def test_an_index_of_another_corpus_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    build_bm25(corpus, tmp_path / "bm25")
    build_corpus(make_passages(401), tmp_path / "longer", source="test")
    build_corpus(make_passages(400, seed=1), tmp_path / "other", source="test")
    with pytest.raises(DataError, match=r"passages 400, and .* has 401"):
        DiskBM25Retriever(Corpus(tmp_path / "longer"), tmp_path / "bm25")
    with pytest.raises(DataError, match="checksum"):
        DiskBM25Retriever(Corpus(tmp_path / "other"), tmp_path / "bm25")
    (tmp_path / "bm25" / "rows.npy").write_bytes(b"no numpy file")
    with pytest.raises(DataError, match=r"rows\.npy: unreadable"):
        DiskBM25Retriever(corpus, tmp_path / "bm25")


def test_a_pickle_in_place_of_an_array_is_not_run(corpus: Corpus, tmp_path: Path) -> None:
    build_bm25(corpus, tmp_path / "bm25")
    marker = tmp_path / "executed"

    class Payload:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return open, (str(marker), "w")  # type: ignore[return-value]

    array = np.empty(1, object)
    array[0] = Payload()
    np.save(tmp_path / "bm25" / "starts.npy", array, allow_pickle=True)
    with pytest.raises(DataError, match="unreadable"):
        DiskBM25Retriever(corpus, tmp_path / "bm25")
    assert not marker.exists()


def test_pickles_and_has_a_stable_fingerprint(corpus: Corpus, tmp_path: Path) -> None:
    build_bm25(corpus, tmp_path / "a")
    build_bm25(corpus, tmp_path / "b")
    build_bm25(corpus, tmp_path / "c", b=0.5)
    a, b, c = (DiskBM25Retriever(corpus, tmp_path / name) for name in "abc")
    assert a.fingerprint == b.fingerprint != c.fingerprint
    assert len(pickle.dumps(a)) < 1000
    assert pickle.loads(pickle.dumps(a)).search(QUERIES, 3) == a.search(QUERIES, 3)


def test_a_corpus_without_words_finds_nothing(tmp_path: Path) -> None:
    build_corpus([Passage("1", "", "!!!"), Passage("2", "", "the of")], tmp_path / "corpus", source="test")
    corpus = Corpus(tmp_path / "corpus")
    build_bm25(corpus, tmp_path / "bm25")
    assert DiskBM25Retriever(corpus, tmp_path / "bm25").search(["anything", "the"], 3) == [[], []]


def test_a_full_disk_is_refused_before_the_work(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(DataError, match=r"needs about .* GiB of disk .* 0\.00 GiB are free"):
        build_bm25(corpus, tmp_path / "bm25")
    assert not (tmp_path / "bm25").exists()


def test_the_manifest_is_plain_json(corpus: Corpus, tmp_path: Path) -> None:
    manifest = build_bm25(corpus, tmp_path / "bm25")
    assert json.loads((tmp_path / "bm25" / "manifest.json").read_text()) == manifest
    assert sorted(p.name for p in (tmp_path / "bm25").iterdir()) == [
        "manifest.json",
        "order.npy",
        "rows.npy",
        "starts.npy",
        "vocabulary.arrow",
        "weights.npy",
    ]
