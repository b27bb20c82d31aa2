"""Dense retrieval with a deterministic encoder: edges of FAISS, ties, batches, resuming after SIGKILL."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from retrieval_support import HashEncoder, make_passages

from mempo_env.errors import DataError, RetrievalError
from mempo_env.retrieval import memory
from mempo_env.retrieval.corpus import Corpus, build_corpus
from mempo_env.types import Passage

faiss = pytest.importorskip("faiss")
pytest.importorskip("pyarrow")

from mempo_env.retrieval.build import build_dense, estimate_dense  # noqa: E402
from mempo_env.retrieval.dense import DenseRetriever  # noqa: E402
from mempo_env.retrieval.encoders import Encoder, prefixes_for  # noqa: E402
from mempo_env.retrieval.encoding import Clock  # noqa: E402
from mempo_env.retrieval.exact import aligned, top_inner_products  # noqa: E402
from mempo_env.retrieval.hybrid import HybridRetriever  # noqa: E402
from mempo_env.retrieval.rerank import RerankRetriever  # noqa: E402
from mempo_env.retrieval.sharded import ShardedRetriever  # noqa: E402


def corpus_of(passages: list[Passage], folder: Path) -> Corpus:
    build_corpus(passages, folder, source="test")
    return Corpus(folder)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return corpus_of(make_passages(600), tmp_path / "corpus")


def dense(corpus: Corpus, folder: Path, factory: str = "Flat", **options: object) -> DenseRetriever:
    encoder = options.pop("encoder", None) or HashEncoder()
    build_dense(corpus, folder, encoder=encoder, factory=factory, **{"sample": 0, **options})  # type: ignore[arg-type]
    return DenseRetriever(corpus, folder, encoder=encoder)  # type: ignore[arg-type]


@pytest.mark.parametrize("factory", ["Flat", "SQfp16", "HNSW16", "IVF4,Flat"])
def test_fewer_passages_than_asked_give_a_shorter_list(tmp_path: Path, factory: str) -> None:
    rows = [Passage(str(i), "", f"word{i} shared") for i in range(4)]
    retriever = dense(corpus_of(rows, tmp_path / "c"), tmp_path / "d", factory, effort=4)
    hits = retriever.search(["shared word2"], 9)[0]
    assert sorted(hit.passage.id for hit in hits) == ["0", "1", "2", "3"]
    assert all(np.isfinite(hit.score) for hit in hits)
    assert retriever.search([], 3) == []
    assert retriever.search(["", "  "], 3) == [[], []]


def test_lists_that_are_not_probed_shorten_the_result(tmp_path: Path) -> None:
    # FAISS pads with row -1 here; read as an index it would give the last passage again and again.
    rows = [Passage(str(i), "", f"word{i}") for i in range(8)]
    retriever = dense(corpus_of(rows, tmp_path / "c"), tmp_path / "d", "IVF8,Flat", effort=1)
    hits = retriever.search(["word3"], 8)[0]
    assert 1 <= len(hits) < 8
    assert len({hit.passage.id for hit in hits}) == len(hits)


def test_a_nan_query_is_an_error_and_never_a_hit(tmp_path: Path, corpus: Corpus) -> None:
    class Broken(HashEncoder):
        def encode_queries(self, queries: object) -> np.ndarray:
            return np.full((1, self.dimensions), np.nan, np.float32)

    build_dense(corpus, tmp_path / "d", encoder=HashEncoder(), sample=0)
    retriever = DenseRetriever(corpus, tmp_path / "d", encoder=Broken())
    with pytest.raises((RetrievalError, DataError), match="NaN"):
        retriever.search(["q"], 3)


def test_ties_go_by_id_also_beyond_what_was_fetched(tmp_path: Path) -> None:
    # 300 passages that differ in title only; the encoder reads the text only, so that all scores are equal.
    class TextOnly(HashEncoder):
        def encode_passages(self, texts: object) -> np.ndarray:
            return super().encode_passages([text.partition("\n")[2] for text in texts])  # type: ignore[attr-defined]

    rows = [Passage(f"{i * 7 % 300:03d}", f"t{i}", "same text") for i in range(300)]
    retriever = dense(corpus_of(rows, tmp_path / "c"), tmp_path / "d", encoder=TextOnly())
    for k in (1, 3, 10):
        assert [hit.passage.id for hit in retriever.search(["same"], k)[0]] == [f"{i:03d}" for i in range(k)]


@pytest.mark.parametrize("factory", ["Flat", "SQ8", "HNSW16", "IVF16,SQ8", "IVF8,PQ8x4"])
def test_a_querys_hits_do_not_depend_on_its_batch(tmp_path: Path, corpus: Corpus, factory: str) -> None:
    retriever = dense(corpus, tmp_path / "d", factory)
    queries = [" ".join(f"w{(i * 13 + j) % 200}" for j in range(5)) for i in range(64)]
    together = retriever.search(queries, 5)
    assert [retriever.search([query], 5)[0] for query in queries] == together
    assert [hits for i in range(0, 64, 8) for hits in retriever.search(queries[i : i + 8], 5)] == together
    assert all(hits == sorted(hits, key=lambda h: (-h.score, h.passage.id)) for hits in together)


def test_flat_is_exact_and_the_measured_recall_says_so(tmp_path: Path, corpus: Corpus) -> None:
    encoder = HashEncoder()
    manifest = build_dense(corpus, tmp_path / "d", encoder=encoder, factory="Flat", sample=50)
    assert [manifest["recall"][f"recall_at_{k}"] for k in (1, 3, 10)] == [1.0, 1.0, 1.0]
    # The exact answer by plain numpy, from the encoder's own vectors.
    vectors = encoder.encode_passages([f"{p.title}\n{p.text}" for p in corpus])
    query = encoder.encode_queries(["w1 w7 w33"])
    best = np.argsort(-(vectors @ query[0]), kind="stable")[0]
    assert (
        DenseRetriever(corpus, tmp_path / "d", encoder=encoder).search(["w1 w7 w33"], 1)[0][0].passage == corpus[best]
    )
    coarse = build_dense(corpus, tmp_path / "coarse", encoder=encoder, factory="IVF16,Flat", effort=1, sample=50)
    assert coarse["recall"]["recall_at_10"] < 0.9


def test_the_effort_is_chosen_for_the_recall(tmp_path: Path) -> None:
    corpus = corpus_of(make_passages(4000, words=12), tmp_path / "c")
    encoder = HashEncoder()
    low = build_dense(corpus, tmp_path / "low", encoder=encoder, factory="IVF64,Flat", target_recall=0.2, sample=60)
    high = build_dense(corpus, tmp_path / "high", encoder=encoder, factory="IVF64,Flat", target_recall=0.99, sample=60)
    assert low["effort"] == 16
    assert high["effort"] in (32, 64)
    assert high["recall"]["recall_at_3"] > low["recall"]["recall_at_3"]
    assert DenseRetriever(corpus, tmp_path / "high", encoder=encoder).manifest["effort"] == high["effort"]


@pytest.mark.parametrize("block_rows", [7, 300, 10**6])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_matrix_products_find_what_sorting_finds(monkeypatch: pytest.MonkeyPatch, block_rows: int, dtype: type) -> None:
    monkeypatch.setattr("mempo_env.retrieval.exact._ROWS", block_rows)
    monkeypatch.setattr("mempo_env.retrieval.exact._QUERIES", 3)
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((9000, 6)).astype(dtype)
    queries = rng.standard_normal((7, 6)).astype(np.float32)
    products = queries @ matrix.astype(np.float32).T
    expected = np.argsort(-products, axis=1)[:, :5]
    scores, rows = top_inner_products(queries, matrix, 5)
    assert (rows == expected).all()
    assert np.allclose(scores, np.take_along_axis(products, expected, axis=1), atol=1e-5)
    scores, rows = top_inner_products(queries, matrix[:3], 5)
    assert (rows[:, :3] == np.argsort(-products[:, :3], axis=1)).all()
    assert (rows[:, 3:] == -1).all()
    assert top_inner_products(queries[:0], matrix, 5)[1].shape == (0, 5)


def test_vectors_at_an_odd_address_are_multiplied_by_blas() -> None:
    whole = np.random.default_rng(0).standard_normal((5000, 64)).astype(np.float32)
    raw = np.frombuffer(b"x" + whole.tobytes(), np.uint8)[1:]
    odd = raw.view(np.float32).reshape(whole.shape)  # as in a mapped index file, whose header has any length
    assert not odd.flags.aligned
    assert aligned(odd, np.empty_like(whole)).flags.aligned
    queries = whole[:8]
    assert (top_inner_products(queries, odd, 3)[1] == top_inner_products(queries, whole, 3)[1]).all()


def test_what_does_not_belong_together_is_refused(tmp_path: Path, corpus: Corpus) -> None:
    build_dense(corpus, tmp_path / "d", encoder=HashEncoder(), sample=0)
    with pytest.raises(DataError, match=r"built with the encoder 'hash\|48' .* got 'other\|48'"):
        DenseRetriever(corpus, tmp_path / "d", encoder=HashEncoder(name="other"))
    with pytest.raises(DataError, match="pass it as encoder="):
        DenseRetriever(corpus, tmp_path / "d")
    with pytest.raises(DataError, match=r"passages 600, and .* has 599"):
        DenseRetriever(corpus_of(make_passages(599), tmp_path / "c2"), tmp_path / "d", encoder=HashEncoder())
    with pytest.raises(DataError, match="checksum"):
        DenseRetriever(corpus_of(make_passages(600, 5), tmp_path / "c3"), tmp_path / "d", encoder=HashEncoder())
    (tmp_path / "d" / "index.faiss").write_bytes(b"garbage, no index")
    with pytest.raises(DataError, match="not a readable FAISS index"):
        DenseRetriever(corpus, tmp_path / "d", encoder=HashEncoder())


def test_embeddings_can_be_left_out(tmp_path: Path, corpus: Corpus) -> None:
    slim = dense(corpus, tmp_path / "slim", keep_embeddings=False)
    full = dense(corpus, tmp_path / "full")
    assert not (tmp_path / "slim" / "embeddings.npy").exists()
    queries = ["w1 w2", "w50 w60 w70"]
    assert [[h.passage.id for h in hits] for hits in slim.search(queries, 5)] == [
        [h.passage.id for h in hits] for hits in full.search(queries, 5)
    ]


def test_vectors_are_coded_once_for_several_indexes(tmp_path: Path, corpus: Corpus) -> None:
    first, second = HashEncoder(), HashEncoder()
    build_dense(corpus, tmp_path / "flat", encoder=first, sample=0)
    build_dense(corpus, tmp_path / "hnsw", encoder=second, factory="HNSW16", reuse=tmp_path / "flat", sample=0)
    assert second.coded == 0
    queries = ["w1 w2", "w50 w60"]
    flat, hnsw = (DenseRetriever(corpus, tmp_path / name, encoder=first) for name in ("flat", "hnsw"))
    assert hnsw.search(queries, 3) == flat.search(queries, 3)
    with pytest.raises(DataError, match=r"differ in rows \(\[0, 600\] there, \[0, 10\] here\)"):
        build_dense(corpus, tmp_path / "part", encoder=first, rows=(0, 10), reuse=tmp_path / "flat", sample=0)


def test_pickles_with_its_encoder(tmp_path: Path, corpus: Corpus) -> None:
    retriever = dense(corpus, tmp_path / "d")
    assert pickle.loads(pickle.dumps(retriever)).search(["w1 w2"], 3) == retriever.search(["w1 w2"], 3)


def test_shards_of_rows_merge_to_the_whole(tmp_path: Path, corpus: Corpus) -> None:
    whole = dense(corpus, tmp_path / "whole")
    parts = [dense(corpus, tmp_path / f"part{a}", rows=(a, b)) for a, b in ((0, 250), (250, 251), (251, 600))]
    sharded = ShardedRetriever(parts)
    queries = [f"w{i} w{i + 1}" for i in range(20)]
    assert sharded.search(queries, 5) == whole.search(queries, 5)
    assert pickle.loads(pickle.dumps(sharded)).search(queries, 5) == whole.search(queries, 5)
    sharded.close()


def test_hybrid_is_reciprocal_rank_fusion(tmp_path: Path) -> None:
    class Fixed:
        def __init__(self, name: str, ids: list[str]) -> None:
            self.name, self.fingerprint, self.ids = name, name, ids

        def search(self, queries: list[str], k: int) -> list[list[object]]:
            from mempo_env.types import Hit

            return [[Hit(Passage(i, "", i), 1.0) for i in self.ids[:k]] for _ in queries]

    hybrid = HybridRetriever([Fixed("one", ["a", "b", "c"]), Fixed("two", ["b", "d"])])
    hits = hybrid.search(["q", "r"], 3)
    # b: 1/62 + 1/61; a: 1/61; d: 1/62; c: 1/63
    assert [h.passage.id for h in hits[0]] == ["b", "a", "d"]
    assert hits[0][0].score == pytest.approx(1 / 62 + 1 / 61)
    assert hits[0] == hits[1]
    # a and b swap their ranks: equal sums, so the id decides
    tied = HybridRetriever([Fixed("one", ["b", "a"]), Fixed("two", ["a", "b"])]).search(["q"], 2)
    assert [h.passage.id for h in tied[0]] == ["a", "b"]
    for bad in ([Fixed("one", [])], []):
        with pytest.raises(ValueError, match="at least two"):
            HybridRetriever(bad)


def test_reranking_judges_each_query_with_its_own_passages(tmp_path: Path, corpus: Corpus) -> None:
    seen: list[tuple[str, str]] = []

    def scorer(pairs: list[tuple[str, str]]) -> np.ndarray:
        seen.extend(pairs)
        return np.array([-len(text) for _, text in pairs], float)

    base = dense(corpus, tmp_path / "d")
    hits = RerankRetriever(base, scorer, depth=10).search(["w1 w2", "w3 w4"], 3)
    pool = base.search(["w1 w2", "w3 w4"], 10)
    assert len(seen) == 20
    for query, own, candidates in zip(("w1 w2", "w3 w4"), hits, pool, strict=True):
        texts = {f"{h.passage.title}\n{h.passage.text}" for h in candidates}
        assert {text for q, text in seen if q == query} == texts
        best = sorted(candidates, key=lambda h: (len(h.passage.title + h.passage.text), h.passage.id))[:3]
        assert [h.passage.id for h in own] == [h.passage.id for h in best]
    with pytest.raises(RetrievalError, match="finite scores"):
        RerankRetriever(base, lambda pairs: np.full(len(pairs), np.nan)).search(["w1"], 3)


def test_an_interrupted_build_goes_on_and_ends_the_same(tmp_path: Path, corpus: Corpus) -> None:
    class Stops(HashEncoder):
        def encode_passages(self, texts: object) -> np.ndarray:
            if self.coded >= 300:
                raise KeyboardInterrupt
            return super().encode_passages(texts)  # type: ignore[arg-type]

    with pytest.raises(KeyboardInterrupt):
        build_dense(corpus, tmp_path / "d", encoder=Stops(), shard_rows=100, sample=0)
    assert not (tmp_path / "d").exists()
    second = HashEncoder()
    steps: list[tuple[str, int, int]] = []
    build_dense(corpus, tmp_path / "d", encoder=second, shard_rows=100, sample=0, progress=lambda *s: steps.append(s))
    assert second.coded == 300
    assert steps[0] == ("encoding", 300, 600)
    build_dense(corpus, tmp_path / "once", encoder=HashEncoder(), shard_rows=100, sample=0)
    for name in ("embeddings.npy", "index.faiss"):
        assert (tmp_path / "d" / name).read_bytes() == (tmp_path / "once" / name).read_bytes()
    assert not (tmp_path / "d.partial").exists()


def test_unfinished_work_of_another_build_is_not_mixed_in(tmp_path: Path, corpus: Corpus) -> None:
    class Stops(HashEncoder):
        def count_truncated(self, texts: object) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_dense(corpus, tmp_path / "d", encoder=Stops(), sample=0)
    with pytest.raises(DataError, match=r"unfinished work of another build .* differs in dimensions, encoder"):
        build_dense(corpus, tmp_path / "d", encoder=HashEncoder(32), sample=0)


def test_a_shard_whose_bytes_were_lost_is_coded_again(tmp_path: Path, corpus: Corpus) -> None:
    class Stops(HashEncoder):
        def encode_passages(self, texts: object) -> np.ndarray:
            if self.coded >= 500:
                raise KeyboardInterrupt
            return super().encode_passages(texts)  # type: ignore[arg-type]

    with pytest.raises(KeyboardInterrupt):
        build_dense(corpus, tmp_path / "d", encoder=Stops(), shard_rows=100, sample=0)
    lost = np.load(tmp_path / "d.partial" / "embeddings.npy", mmap_mode="r+")
    lost[250] = 0  # a power cut lost this page
    lost.flush()
    second = HashEncoder()
    build_dense(corpus, tmp_path / "d", encoder=second, shard_rows=100, sample=0)
    assert second.coded == 200  # shard 2 again, and shard 5


_BUILDER = """
import sys, time
sys.path.insert(0, {support!r})
from retrieval_support import HashEncoder
from mempo_env.retrieval.build import build_dense
from mempo_env.retrieval.corpus import Corpus

class Slow(HashEncoder):
    def encode_passages(self, texts):
        time.sleep({seconds})
        return super().encode_passages(texts)

encoder = Slow()
build_dense(Corpus({corpus!r}), {folder!r}, encoder=encoder, shard_rows=50, sample=0)
print(encoder.coded)
"""


def test_kill_9_loses_no_finished_shard(tmp_path: Path, corpus: Corpus) -> None:
    folder = tmp_path / "d"

    def command(seconds: float) -> list[str]:
        values = {"support": str(Path(__file__).parent), "corpus": str(corpus.folder), "folder": str(folder)}
        return [sys.executable, "-c", _BUILDER.format(seconds=seconds, **values)]

    process = subprocess.Popen(command(0.2))
    done = tmp_path / "d.partial" / "done"
    deadline = time.monotonic() + 60
    while len(list(done.glob("0*")) if done.exists() else []) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finished = len(list(done.glob("0*")))
    assert 3 <= finished < 12
    assert not folder.exists()
    again = subprocess.run(command(0.0), capture_output=True, text=True, timeout=120, check=True)
    assert int(again.stdout) == 600 - 50 * finished
    build_dense(corpus, tmp_path / "once", encoder=HashEncoder(), shard_rows=50, sample=0)
    assert (folder / "embeddings.npy").read_bytes() == (tmp_path / "once" / "embeddings.npy").read_bytes()


def test_too_little_disk_or_memory_is_refused_before_the_work(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = HashEncoder()
    monkeypatch.setattr(memory, "available_memory", lambda: 1 << 20)
    with pytest.raises(DataError, match=r"of memory, and 0\.00 GiB are available\. Choose a smaller index"):
        build_dense(corpus, tmp_path / "d", encoder=encoder)
    monkeypatch.undo()
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(DataError, match="of disk under"):
        build_dense(corpus, tmp_path / "d", encoder=encoder)
    assert encoder.coded == 0


@pytest.mark.parametrize("factory", ["Flat", "SQ8", "HNSW16", "IVF16,SQ8", "IVF4,PQ8x4"])
def test_the_estimate_is_near_the_truth(tmp_path: Path, factory: str) -> None:
    corpus = corpus_of(make_passages(3000, words=8), tmp_path / "c")
    build_dense(corpus, tmp_path / "d", encoder=HashEncoder(64), factory=factory, sample=0)
    size = sum((tmp_path / "d" / name).stat().st_size for name in ("index.faiss", "embeddings.npy"))
    assert size == pytest.approx(estimate_dense(3000, 64, factory).disk_bytes, rel=0.12)


def test_factories_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"FAISS does not build 'Flaat'.*Examples"):
        estimate_dense(100, 64, "Flaat")
    with pytest.raises(ValueError, match="1024 lists for 100 passages"):
        estimate_dense(100, 64, "IVF1024,Flat")
    # 8 bits: 2^8 values for each part of a code. The last three are not known here, and taken to be the usual.
    for factory in ("PQ8x8", "IVF10,PQ8x8", "HNSW16_PQ8", "OPQ8,IVF10,PQ8x8", "RQ8x8", "IVF10,RQ8x8", "PQ8x8,RFlat"):
        with pytest.raises(ValueError, match=f"'{factory}' has 256 code values for 255 passages. Use SQ8, or Flat"):
            estimate_dense(255, 64, factory)
        estimate_dense(256, 64, factory)
    for factory in ("SQ8", "HNSW16_SQ8", "IVF10,PQ8x4"):
        estimate_dense(50, 64, factory)


def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path, corpus: Corpus) -> None:
    if faiss.get_num_gpus():
        pytest.skip("this machine has a GPU")
    build_dense(corpus, tmp_path / "d", encoder=HashEncoder(), sample=0)
    with pytest.raises(ValueError, match="FAISS sees no GPU"):
        DenseRetriever(corpus, tmp_path / "d", encoder=HashEncoder(), device="cuda")


def test_prefixes_by_family() -> None:
    assert prefixes_for("intfloat/e5-base-v2") == prefixes_for("/models/E5-large") == ("query: ", "passage: ")
    assert prefixes_for("intfloat/multilingual-e5-small") == ("query: ", "passage: ")
    assert prefixes_for("BAAI/bge-base-en-v1.5") == ("Represent this sentence for searching relevant passages: ", "")
    assert prefixes_for("thenlper/gte-base") == prefixes_for("minilm") == ("", "")


def test_the_clock_goes_by_this_runs_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = Clock()
    assert clock.remaining_seconds(500, 1000) is None  # 500 were done before this run began
    now[0] = 10.0
    assert clock.remaining_seconds(550, 1000) == pytest.approx(90.0)  # 50 in 10 seconds, 450 to go


def test_encoders_are_what_the_protocol_says() -> None:
    assert isinstance(HashEncoder(), Encoder)


def _run(arguments: list[str]) -> None:
    import typer

    from mempo_agents.commands import index

    app = typer.Typer()
    app.command()(index.run)
    app(arguments, standalone_mode=False)


def test_the_command_builds_and_keeps_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mempo_env.retrieval.encoders import register_encoder
    from mempo_env.retrieval.store import open_retriever

    monkeypatch.setattr("mempo_env.retrieval.encoders._ENCODERS", {})
    register_encoder("hash", lambda device, **options: HashEncoder())
    source = tmp_path / "source.jsonl"
    source.write_text("".join(json.dumps({"id": str(i), "contents": f"T{i}\nword{i} same"}) + "\n" for i in range(30)))
    out = str(tmp_path / "out")
    _run([str(source), out])
    assert "30 rows in, 30 passages out; 0 duplicates" in capsys.readouterr().err
    _run([str(source), out, "--kind", "hybrid", "--encoder", "hash", "--sample", "5"])
    assert "bm25: there already" in capsys.readouterr().err
    assert [h.passage.id for h in open_retriever(tmp_path / "out").search(["word7"], 1)[0]] == ["7"]
    with pytest.raises(DataError, match=r"now .* is asked for"):
        _run([str(source), out, "--split", "words:5:1"])
    with pytest.raises(DataError, match="mempo index SOURCE"):
        open_retriever(tmp_path / "nothing")
