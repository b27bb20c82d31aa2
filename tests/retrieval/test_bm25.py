"""BM25 against hand-worked scores, against bm25s itself, and at the edges where bm25s breaks."""

import json
import math
import os
import pickle
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mempo_env.errors import DataError, UnknownNameError
from mempo_env.retrieval import get_retriever
from mempo_env.retrieval.base import Retriever
from mempo_env.retrieval.bm25 import BM25Retriever
from mempo_env.retrieval.words import words
from mempo_env.types import Hit, Passage


def corpus(*texts: str) -> list[Passage]:
    return [Passage(f"p{i:03d}", "", text) for i, text in enumerate(texts)]


def random_corpus(n: int, seed: int) -> list[Passage]:
    rng = random.Random(seed)
    letters = [f"w{i}" for i in range(60)]
    texts = [" ".join(rng.choices(letters, k=rng.randint(3, 30))) for _ in range(n)]
    return [Passage(f"p{rng.random():.12f}", rng.choice(letters), text) for text in texts]


def ids(hits: list[Hit]) -> list[str]:
    return [hit.passage.id for hit in hits]


def test_scores_are_those_worked_on_paper():
    # N = 3, lengths 2, 1, 3, mean 2; k1 = 1.5, b = 0.75.
    # "apple": df 2, idf = ln(1 + 1.5 / 2.5) = ln 1.6.  p000: tf 1, norm 1.5 * (0.25 + 0.75 * 2 / 2) = 1.5
    #   -> ln 1.6 * 1 / 2.5;  p002: tf 2, norm 1.5 * (0.25 + 0.75 * 3 / 2) = 2.0625 -> ln 1.6 * 2 / 4.0625.
    # "pear": df 1, idf = ln(1 + 2.5 / 1.5) = ln(8 / 3);  p000 -> ln(8 / 3) * 1 / 2.5.
    retriever = BM25Retriever(corpus("apple pear", "plum", "apple apple fig"))
    [hits] = retriever.search(["apple pear"], 3)
    assert ids(hits) == ["p000", "p002"]
    assert hits[0].score == pytest.approx(math.log(1.6) / 2.5 + math.log(8 / 3) / 2.5, rel=1e-6)
    assert hits[1].score == pytest.approx(math.log(1.6) * 2 / 4.0625, rel=1e-6)


def test_scores_agree_with_bm25s_own_retrieve():
    import bm25s

    passages = random_corpus(200, seed=1)
    queries = ["w1 w2 w3", "w10", "w59 w59 w4 w20 w33"]
    index = bm25s.BM25()
    index.index([words(p.title) + words(p.text) for p in passages], show_progress=False)
    rows, scores = index.retrieve([q.split() for q in queries], k=5, show_progress=False)
    ours = BM25Retriever(passages, title_weight=1).search(queries, 5)
    for row, hits in enumerate(ours):
        assert [hit.score for hit in hits] == pytest.approx(scores[row].tolist(), rel=1e-5)
        assert {passages[i].id for i in rows[row][:3]} <= set(ids(hits))


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("query", ["", "   ", "zzzz qqqq", "the of", "?!", "_", "\U0001f600"])
def test_a_query_that_matches_nothing_gives_no_hits(backend, query):
    if backend == "numba":
        pytest.importorskip("numba")
    retriever = BM25Retriever(corpus("the apple of pear", "the plum of fig"), backend=backend)
    assert retriever.search([query], 2) == [[]]
    assert [len(hits) for hits in retriever.search([query, "apple", query], 2)] == [0, 1, 0]


def test_k_beyond_the_corpus_gives_what_there_is():
    retriever = BM25Retriever(corpus("apple", "apple pear"))
    assert len(retriever.search(["apple"], 10)[0]) == 2
    assert retriever.search([], 10) == []
    assert len(retriever.search(["pear"], 10)[0]) == 1, "passages without the word are no evidence"


def test_bad_arguments_are_named():
    retriever = BM25Retriever(corpus("apple"))
    with pytest.raises(ValueError, match="Expected k to be an integer of at least 1, got 0"):
        retriever.search(["apple"], 0)
    with pytest.raises(TypeError, match="Expected k to be an integer of at least 1, got '5'"):
        retriever.search(["apple"], "5")
    with pytest.raises(TypeError, match=r"title_weight to be an integer, got 1\.5"):
        BM25Retriever(corpus("apple"), title_weight=1.5)
    with pytest.raises(TypeError, match=r"search\(\[query\], k\)"):
        retriever.search("apple", 1)
    with pytest.raises(UnknownNameError, match="numpy"):
        BM25Retriever(corpus("apple"), backend="numpi")
    with pytest.raises(ValueError, match="0 <= b <= 1"):
        BM25Retriever(corpus("apple"), b=2)
    with pytest.raises(DataError, match="'p000' twice"):
        BM25Retriever(corpus("apple") + corpus("pear"))


@pytest.mark.parametrize("passages", [[], corpus(""), corpus("the of")])
def test_a_corpus_without_words_finds_nothing(passages):
    assert BM25Retriever(passages).search(["apple", ""], 3) == [[], []]


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_ties_stand_in_the_order_of_ids(backend):
    if backend == "numba":
        pytest.importorskip("numba")
    same = [Passage(i, "", "apple pear") for i in ("d", "b", "e", "a", "c")]
    for passages in (same, same[::-1]):
        retriever = BM25Retriever(passages, backend=backend)
        assert [ids(h) for h in retriever.search(["apple", "pear apple"], 3)] == [["a", "b", "c"]] * 2


def test_backends_agree_to_the_last_bit():
    pytest.importorskip("numba")
    passages = random_corpus(300, seed=2) + [Passage(f"twin{i}", "w1", "w2 w3") for i in range(20)]
    rng = random.Random(3)
    queries = [" ".join(f"w{rng.randrange(70)}" for _ in range(rng.randint(0, 9))) for _ in range(100)] + ["w2 w3 w1"]
    for k in (1, 3, 10, 1000):
        by_numpy = BM25Retriever(passages, backend="numpy").search(queries, k)
        by_numba = BM25Retriever(passages, backend="numba").search(queries, k)
        assert by_numpy == by_numba


def test_the_ways_to_the_best_k_agree(monkeypatch):
    passages = random_corpus(80, seed=8) + [Passage(f"twin{i}", "w1", "w2 w3") for i in range(20)]
    retriever = BM25Retriever(passages, backend="numpy")
    queries = ["w2 w3 w1", "w5", "zzz", "w1 w1 w9 w33"]
    for k in (1, 3, 25, 100, 101):
        answers = []
        for few in (0, 1000):
            monkeypatch.setattr("mempo_env.retrieval.bm25._FEW", few)
            answers.append(retriever.search(queries, k))
        assert answers[0] == answers[1]
        assert [len(hits) for hits in answers[0]] == [min(k, len(hits)) for hits in retriever.search(queries, 1000)]


def test_a_batch_gives_what_single_queries_give(monkeypatch):
    retriever = BM25Retriever(random_corpus(150, seed=4), backend="numpy")
    rng = random.Random(5)
    queries = [" ".join(f"w{rng.randrange(70)}" for _ in range(rng.randint(0, 6))) for _ in range(70)]
    batch = retriever.search(queries, 4)
    assert batch == [retriever.search([query], 4)[0] for query in queries]
    monkeypatch.setattr("mempo_env.retrieval.bm25._CELLS_PER_SLICE", 400)  # two queries a slice
    assert batch == retriever.search(queries, 4)


def test_threads_share_one_retriever():
    retriever = BM25Retriever(random_corpus(100, seed=6))
    queries = [f"w{i} w{i + 1}" for i in range(40)]
    expected = retriever.search(queries, 3)
    answers: list[object] = [None] * 8

    def work(slot: int) -> None:
        answers[slot] = [retriever.search(queries, 3) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(slot,)) for slot in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [[expected] * 5] * 8


def test_title_and_text_are_both_found_and_the_title_counts_more():
    passages = [Passage("a", "Maple", "a tree"), Passage("b", "Tree", "a maple")]
    retriever = BM25Retriever(passages)
    assert ids(retriever.search(["maple"], 2)[0]) == ["a", "b"]
    assert ids(retriever.search(["tree"], 2)[0]) == ["b", "a"]
    assert ids(BM25Retriever(passages, title_weight=0).search(["maple"], 2)[0]) == ["b"]


def test_it_is_a_retriever_and_pickles():
    retriever = BM25Retriever(corpus("apple", "apple pear"))
    assert isinstance(retriever, Retriever)
    assert len(retriever) == 2
    copy = pickle.loads(pickle.dumps(retriever))
    assert copy.search(["pear apple"], 2) == retriever.search(["pear apple"], 2)
    assert copy.fingerprint == retriever.fingerprint


def test_the_fingerprint_sees_content_and_parameters():
    base = BM25Retriever(corpus("apple", "pear"))
    assert base.fingerprint == BM25Retriever(corpus("apple", "pear")).fingerprint
    others = [
        BM25Retriever(corpus("apple", "pears")),
        BM25Retriever([Passage("p000", "apple", ""), Passage("p001", "", "pear")]),
        BM25Retriever(corpus("apple", "pear"), k1=1.2),
        BM25Retriever(corpus("apple", "pear"), stop_words=()),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 5


def test_the_same_hits_under_every_hash_seed():
    code = (
        "from mempo_env.retrieval.bm25 import BM25Retriever; from mempo_env.types import Passage\n"
        "r = BM25Retriever([Passage(str(i), f't{i % 7}', f'alpha b{i % 5} c{i % 3}') for i in range(40)])\n"
        "hits = r.search(['alpha b1 c2 t3', 'c1'], 9)\n"
        "print([[(h.passage.id, h.score) for h in row] for row in hits], r.fingerprint)"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_nothing_is_printed_or_logged(capfd, caplog):
    caplog.set_level("DEBUG")
    BM25Retriever(corpus("apple", "pear")).search(["apple"], 1)
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.name.startswith("bm25s")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Quick-Brown fox_jumps!", ["quick", "brown", "fox", "jumps"]),
        ("Alice's and Bob\u2019s 3.5 km", ["alice", "bob", "3", "5", "km"]),
        ("Lilû Málaga Ærø ﬁx Straße", ["lilu", "malaga", "ærø", "fix", "strasse"]),
        ("Ёлка ΆΘΕΝΑ", ["елка", "αθενα"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("東京タワー is 高い", ["東", "京", "タ", "ワ", "ー", "高", "い"]),
        ("서울 한국어", ["서울", "한국어"]),
        ("ＡＢＣ１２", ["abc12"]),
        ("", []),
    ],
)
def test_words(text, expected):
    assert words(text) == expected


def test_composed_and_decomposed_letters_are_one_word():
    assert words("re\u0301sume\u0301") == words("r\u00e9sum\u00e9") == ["resume"]


def test_words_can_keep_stop_words():
    assert words("The Who", ()) == ["the", "who"]
    found = BM25Retriever(corpus("the who played", "plum"), stop_words=()).search(["the who"], 2)
    assert ids(found[0]) == ["p000"]


class _Set:
    name, splits = "tiny", ("train", "test")
    fingerprint = "tiny-1"

    def __init__(self, passages):
        self._passages = passages

    def questions(self, split):
        return []

    def passages(self, split):
        return self._passages


def test_get_retriever_shares_one_index_per_content_and_split():
    dataset = _Set(corpus("apple"))
    first = get_retriever("bm25", dataset, "train")
    assert get_retriever("bm25", _Set(corpus("apple")), None) is first
    assert get_retriever("bm25", dataset, "test") is not first
    assert get_retriever(first, dataset, "test") is first


def test_get_retriever_refuses_with_the_next_step():
    with pytest.raises(DataError, match="no passages to search in"):
        get_retriever("bm25", _without_passages(), "train")
    with pytest.raises(UnknownNameError, match="Did you mean 'bm25'"):
        get_retriever("bm52", _Set(corpus("apple")), "train")
    with pytest.raises(UnknownNameError, match="Known: test, train"):
        get_retriever("bm25", _Set(corpus("apple")), "dev")
    with pytest.raises(TypeError, match="int"):
        get_retriever(3, _Set(corpus("apple")), "train")


def _without_passages():
    dataset = _Set(None)
    dataset.fingerprint = "tiny-none"
    return dataset


def test_threads_that_ask_at_once_build_one_index(monkeypatch):
    built = []

    class Counting(BM25Retriever):
        def __init__(self, *args, **kwargs):
            built.append(1)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr("mempo_env.retrieval.bm25.BM25Retriever", Counting)
    dataset = _Set(random_corpus(200, seed=7))
    dataset.fingerprint = "tiny-threads"
    threads = [threading.Thread(target=get_retriever, args=("bm25", dataset, "train")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1


DATA = Path(os.environ.get("MEMPO_DATA", Path(__file__).parents[2].parent / "shared" / "data"))


def test_real_titles_are_found():
    path = DATA / "hotpotqa" / "corpus_994.json"
    if not path.exists():
        pytest.skip(f"real data: no file {path} (set MEMPO_DATA)")
    passages = [Passage(t, t, "".join(s)) for t, s in json.loads(path.read_text(encoding="utf-8")).items()]
    hits = BM25Retriever(passages).search([p.title for p in passages], 3)
    found = sum(p.id in ids(h) for p, h in zip(passages, hits, strict=True))
    assert found / len(passages) > 0.98
