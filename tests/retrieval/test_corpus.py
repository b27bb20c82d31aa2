"""The corpus on disk: nothing lost in silence, fast by row, refused when damaged."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import pickle
import time
from pathlib import Path

import pytest
from retrieval_support import make_passages

from mempo_env.errors import DataError
from mempo_env.retrieval.corpus import PASSAGES, Corpus, build_corpus
from mempo_env.retrieval.sources import read_source
from mempo_env.retrieval.splitting import Windows, parse_windows
from mempo_env.types import Passage

pytest.importorskip("pyarrow")
SMALL_BATCH = 64


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mempo_env.retrieval.corpus.BATCH_ROWS", SMALL_BATCH)


def test_the_report_counts_every_row_that_is_left_out(tmp_path: Path) -> None:
    tail = "The key is under the seventh stone."
    long = " ".join(["filler"] * 893) + " " + tail  # 900 words, the useful fact last
    rows = [
        Passage("1", "Aurora", "A light in the sky."),
        Passage("2", "Aurora", "A town in Oregon."),  # the same title, another text: both stay
        Passage("3", "Aurora", "A light in the sky."),  # exact duplicate: one stays
        Passage("4", "Blank", "  \n "),
        Passage("5", "Long", long),
    ]
    report = build_corpus(rows, tmp_path / "cut", source="test", max_words=256)
    assert (report.n_in, report.n_out, report.n_duplicates, report.n_empty, report.n_truncated) == (5, 3, 1, 1, 1)
    assert [p.id for p in Corpus(tmp_path / "cut")] == ["1", "2", "5"]

    windows = Windows(size=200, overlap=50)
    report = build_corpus(rows, tmp_path / "windows", source="test", windows=windows)
    corpus = Corpus(tmp_path / "windows")
    # 900 words, step 150: windows start at 0, 150, 300, 450, 600, 750; the last holds words 750..899.
    assert (report.n_split, report.n_truncated, report.n_out) == (1, 0, 2 + 6)
    assert [p.id for p in corpus][2:] == [f"5#{i}" for i in range(6)]
    assert corpus[-1].text.endswith(tail)
    assert corpus.manifest["split"] == "words:200:50"


def test_rows_come_back_as_they_went_in(tmp_path: Path) -> None:
    rows = make_passages(SMALL_BATCH + 5, words=3)
    rows[7] = Passage("x", "", "no title, \u6771\u4eac \U0001f9e0")
    build_corpus(iter(rows), tmp_path / "c", source="test")
    corpus = Corpus(tmp_path / "c")
    assert list(corpus) == rows
    assert [corpus[i] for i in (0, 7, SMALL_BATCH - 1, SMALL_BATCH, -1)] == [
        rows[0],
        rows[7],
        rows[SMALL_BATCH - 1],
        rows[SMALL_BATCH],
        rows[-1],
    ]
    assert corpus[SMALL_BATCH - 2 : SMALL_BATCH + 2] == rows[SMALL_BATCH - 2 : SMALL_BATCH + 2]
    assert list(corpus.iter_rows(SMALL_BATCH - 3, SMALL_BATCH + 3)) == rows[SMALL_BATCH - 3 : SMALL_BATCH + 3]
    for outside in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError):
            corpus[outside]
    corpus.verify()


def test_duplicates_are_found_across_blocks(tmp_path: Path) -> None:
    rows = make_passages(SMALL_BATCH + 10, words=3)
    again = [Passage(f"again{i}", rows[i].title, rows[i].text) for i in (3, SMALL_BATCH + 1)]
    report = build_corpus([*rows, *again], tmp_path / "c", source="test")
    assert report.n_duplicates == 2
    assert report.n_out == len(rows)


def test_an_id_with_two_contents_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'a' stands on two passages"):
        build_corpus([Passage("a", "", "one"), Passage("a", "", "two")], tmp_path / "c", source="test")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match=r"no passages \(1 rows read, 1 of them empty\)"):
        build_corpus([Passage("a", "t", "")], tmp_path / "c", source="test")


def test_an_existing_corpus_is_replaced_only_when_asked(tmp_path: Path) -> None:
    build_corpus([Passage("a", "", "one")], tmp_path / "c", source="test")
    old = Corpus(tmp_path / "c")
    with pytest.raises(FileExistsError, match="overwrite"):
        build_corpus([Passage("a", "", "two")], tmp_path / "c", source="test")
    build_corpus([Passage("a", "", "two")], tmp_path / "c", source="test", overwrite=True)
    assert Corpus(tmp_path / "c")[0].text == "two"
    assert old[0].text == "one"  # who has the old file mapped keeps reading it
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_damaged_corpus_is_refused_with_the_reason(tmp_path: Path) -> None:
    build_corpus(make_passages(50), tmp_path / "c", source="test")
    path, manifest_path = tmp_path / "c" / PASSAGES, tmp_path / "c" / "manifest.json"
    whole, manifest = path.read_bytes(), json.loads(manifest_path.read_text())
    path.write_bytes(whole[:-100])
    with pytest.raises(DataError, match=r"expected \d+ bytes .* got \d+ bytes"):
        Corpus(tmp_path / "c")
    text = whole.replace(b"Title 7", b"Title 8")
    path.write_bytes(text)
    with pytest.raises(DataError, match="checksum"):
        Corpus(tmp_path / "c").verify()
    path.write_bytes(whole)
    for change, words in (
        ({"count": 49}, "the manifest says 49 passages, the file holds 50"),
        ({"schema_version": 99}, "schema version 99"),
        ({"kind": "bm25"}, "expected a manifest of kind 'corpus', got 'bm25'"),
    ):
        manifest_path.write_text(json.dumps({**manifest, **change}))
        with pytest.raises(DataError, match=words):
            Corpus(tmp_path / "c")
    with pytest.raises(DataError, match="mempo index"):
        Corpus(tmp_path / "nowhere")


def test_opening_and_fetching_are_fast(tmp_path: Path) -> None:
    build_corpus(make_passages(5_000, words=20), tmp_path / "c", source="test")
    started = time.perf_counter()
    corpus = Corpus(tmp_path / "c")
    for i in range(0, 5_000, 5):
        corpus[i]
    assert time.perf_counter() - started < 1.0  # really a few milliseconds; wide, for busy machines


def _third(corpus: Corpus) -> str:
    return corpus[2].id


def test_pickles_as_its_path_and_works_in_other_processes(tmp_path: Path) -> None:
    build_corpus(make_passages(100), tmp_path / "c", source="test")
    corpus = Corpus(tmp_path / "c")
    assert len(pickle.dumps(corpus)) < 1000
    assert list(pickle.loads(pickle.dumps(corpus))) == list(corpus)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(_third, (corpus,)) == corpus[2].id


def test_equal_content_has_equal_checksums(tmp_path: Path) -> None:
    rows = make_passages(10)
    build_corpus(rows, tmp_path / "a", source="one")
    build_corpus(iter(rows), tmp_path / "b", source="two")
    build_corpus(rows[::-1], tmp_path / "c", source="one")
    a, b, c = (Corpus(tmp_path / name).checksum for name in "abc")
    assert a == b != c


@pytest.mark.parametrize("packing", ["plain", "gz", "zst"])
def test_search_r1_lines_are_read_packed_or_plain(tmp_path: Path, packing: str) -> None:
    lines = [
        {"id": "0", "contents": '"Oslo"\nThe capital of Norway.\nOn a fjord.'},
        {"id": "1", "contents": "a single line has no title"},
    ]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path = tmp_path / ("wiki.jsonl" if packing == "plain" else f"wiki.jsonl.{packing}")
    if packing == "zst":
        data = pytest.importorskip("zstandard").compress(data)
    path.write_bytes(gzip.compress(data) if packing == "gz" else data)
    assert list(read_source(path)) == [
        Passage("0", '"Oslo"', "The capital of Norway.\nOn a fjord."),
        Passage("1", "", "a single line has no title"),
    ]


def test_titles_and_folders_and_bad_names(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"title": "A", "text": "first"}]))
    (tmp_path / "b.json").write_text(json.dumps({"B": ["one. ", "two."], "C": "three"}))
    (tmp_path / "readme.md").write_text("not read")
    assert [(p.title, p.text) for p in read_source(tmp_path)] == [("A", "first"), ("B", "one. two."), ("C", "three")]
    with pytest.raises(DataError, match="no such file or folder"):
        list(read_source(tmp_path / "nothing.jsonl"))
    (tmp_path / "bad.jsonl").write_text('{"id": "1", "contents": "x"}\n{"id": "2"}\n')
    with pytest.raises(DataError, match="line 2"):
        list(read_source(tmp_path / "bad.jsonl"))


def test_a_hub_data_set_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked = []

    def load(path, name=None, *, split, streaming):
        asked.append((path, name, split, streaming))
        if path == "toy/nothing":
            raise FileNotFoundError(path)
        return iter([{"id": "0", "contents": "Oslo\nThe capital."}, {"id": "1"}])

    monkeypatch.setattr(datasets, "load_dataset", load)
    stream = read_source("toy/wiki:en")
    assert next(stream) == Passage("0", "Oslo", "The capital.")
    with pytest.raises(DataError, match="toy/wiki:en/train: row 1: expected passages"):
        next(stream)
    assert next(read_source("toy/wiki", "dev")).id == "0"
    assert asked == [("toy/wiki", "en", "train", True), ("toy/wiki", None, "dev", True)]
    with pytest.raises(DataError, match="the hub could not give it"):
        read_source("toy/nothing")


def test_windows_cover_the_text_and_none_is_inside_another() -> None:
    text = "  ".join(f"u{i}" for i in range(23))
    for size, overlap in ((5, 2), (5, 0), (22, 21), (23, 1), (1, 0)):
        parts = [part.split() for part in Windows(size, overlap)(text)]
        assert [w for part in parts for w in part[(overlap if part is not parts[0] else 0) :]] == text.split()
        assert all(len(part) <= size for part in parts)
        assert all(len(part) > overlap for part in parts)
    assert list(Windows(30, 5)(text)) == [text]


def test_window_specs_that_make_no_sense_are_refused() -> None:
    assert parse_windows("none") is None
    assert parse_windows("words:100:20") == Windows(100, 20)
    for spec in ("words", "words:0:0", "words:10:10", "words:10", "tokens:10:2", "lines:3:1", "words:a:b"):
        with pytest.raises(ValueError, match=r"expected|Windows"):
            parse_windows(spec)
