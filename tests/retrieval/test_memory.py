"""What is mapped, what is read ahead, and how much room the machine or the container leaves."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from retrieval_support import HashEncoder, make_passages

from mempo_env.retrieval.memory import available_memory, read_ahead

MIB = 1 << 20


def test_read_ahead_reads_every_file_through_links_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, folder = tmp_path / "shared", tmp_path / "index"
    for path, size in ((shared / "corpus" / "a.arrow", 1000), (folder / "dense" / "b.faiss", 30), (folder / "c", 0)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    (folder / "corpus").symlink_to(shared / "corpus")
    monkeypatch.setattr("mempo_env.retrieval.memory._READ_AT_ONCE", 64)  # 1000 bytes take 16 reads
    assert read_ahead(folder) == 1030
    (folder / "gone").symlink_to(tmp_path / "taken away")
    (folder / "loop").symlink_to(folder / "loop")
    assert read_ahead(folder) == 1030
    assert read_ahead(folder / "dense", folder / "corpus") == 1030
    assert read_ahead(folder / "dense") == 30
    monkeypatch.setattr("mempo_env.retrieval.memory.available_memory", lambda: 2060)
    assert read_ahead(folder) == 1030
    monkeypatch.setattr("mempo_env.retrieval.memory.available_memory", lambda: 2059)
    assert read_ahead(folder) == 0
    monkeypatch.setattr("mempo_env.retrieval.memory.available_memory", lambda: None)  # the system does not say
    assert read_ahead(folder) == 1030


def _system(root: Path, cgroup: str | bytes, files: dict[str, int | str]) -> tuple[Path, Path]:
    """A /proc with 8,000 MiB available and this /proc/self/cgroup, and control groups with these files (in MiB)."""
    proc, groups = root / "proc", root / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {8000 * 1024} kB\n")
    (proc / "self/cgroup").write_bytes(cgroup.encode() if isinstance(cgroup, str) else cgroup)
    for name, value in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(value if isinstance(value, str) else f"{value * MIB}\n")
    return proc, groups


def _stat(total: str = "", **mib: int) -> str:
    return "".join(f"{total}{name} {value * MIB}\n" for name, value in mib.items())


V1 = "12:cpu,cpuacct:/\n4:memory:/pod/one\n1:name=systemd:/x:y\n"
ONE, V1_TOP = "pod/one/memory", "memory/memory"


@pytest.mark.parametrize(
    ("cgroup", "files", "room"),
    [
        ("0::/pod/one\n", {}, 8000),  # no limits to be seen
        # Of 500 MiB in use, 390 are the cache of files, which the system takes back: 600 - 500 + 390.
        (
            "0::/pod/one\n",
            {
                f"{ONE}.max": 600,
                f"{ONE}.current": 500,
                f"{ONE}.stat": _stat(anon=110, active_file=300, inactive_file=80, slab_reclaimable=10, shmem=100),
            },
            490,
        ),
        ("0::/pod/one\n", {f"{ONE}.max": "max\n", f"{ONE}.current": 500}, 8000),
        ("0::/pod/one\n", {f"{ONE}.max": 600}, 600),  # the use is not to be seen: the limit is
        (
            "0::/pod/one\n",
            {f"{ONE}.max": 600, f"{ONE}.current": 100, f"{ONE}.stat": "\nfile 3 4\nactive_file x\n"},
            500,
        ),
        # A group above has a tighter limit than one's own.
        (
            "0::/pod/one\n",
            {f"{ONE}.max": 600, f"{ONE}.current": 0, "pod/memory.max": 500, "pod/memory.current": 300},
            200,
        ),
        # In a container, one's own group is the top one, whatever /proc calls it.
        ("0::/\n", {"memory.max": 600, "memory.current": 700}, 0),
        (
            V1,
            {
                f"{V1_TOP}.limit_in_bytes": 600,
                f"{V1_TOP}.usage_in_bytes": 400,
                f"{V1_TOP}.stat": _stat(active_file=7) + _stat("total_", active_file=200, inactive_file=100, rss=100),
            },
            500,
        ),
        (V1, {"memory/pod/one/memory.limit_in_bytes": 600, "memory/pod/one/memory.usage_in_bytes": 550}, 50),
        # Beside the groups of memory, others may stand: nothing outside them is asked.
        (V1, {"memory.max": 1, "memory.current": 0, "memory.limit_in_bytes": 1}, 8000),
        # Names of groups are bytes, and lines may be none.
        (b"0::/a\xff\xe2\x80\xa8b\n\nodd\n3:memory\n", {"memory.max": 600}, 600),
    ],
)
def test_a_container_s_limit_counts(
    tmp_path: Path, cgroup: str | bytes, files: dict[str, int | str], room: int
) -> None:
    assert available_memory(*_system(tmp_path, cgroup, files)) == room * MIB


def test_the_system_may_not_say(tmp_path: Path) -> None:
    assert available_memory(tmp_path, tmp_path) is None
    (tmp_path / "meminfo").write_text("MemAvailable: 5 kB\n")
    assert available_memory(tmp_path, tmp_path) == 5120


@pytest.mark.skipif(sys.platform != "linux", reason="the flags of a mapping are Linux's to tell")
def test_rows_are_mapped_for_reading_at_random_and_columns_in_order(tmp_path: Path) -> None:
    """A mapping that is read at random has the flag "rr" in /proc/self/smaps."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("faiss")
    from mempo_env.retrieval.bm25_disk import DiskBM25Retriever, build_bm25
    from mempo_env.retrieval.build import build_dense
    from mempo_env.retrieval.corpus import Corpus, build_corpus
    from mempo_env.retrieval.dense import DenseRetriever

    build_corpus(make_passages(50), tmp_path / "corpus", source="test")
    corpus = Corpus(tmp_path / "corpus")
    build_dense(corpus, tmp_path / "dense", encoder=HashEncoder(), factory="SQ8", sample=0)
    retriever = DenseRetriever(corpus, tmp_path / "dense", encoder=HashEncoder())
    assert len(retriever.search(["fjord"], 3)[0]) == 3
    build_bm25(corpus, tmp_path / "bm25")
    lexical = DiskBM25Retriever(corpus, tmp_path / "bm25")
    assert lexical.manifest["count"] == 50
    at_random = _mappings_at_random(tmp_path)
    assert at_random["passages.arrow"] == [False, True]
    assert at_random["embeddings.npy"] == [True]
    # Of a word its run of postings is read; by passage and by word, one number here and one there.
    assert {name: at_random[f"{name}.npy"] for name in ("order", "starts", "weights", "rows")} == {
        "order": [True], "starts": [True], "weights": [False], "rows": [False],
    }  # fmt: skip


def _mappings_at_random(folder: Path) -> dict[str, list[bool]]:
    text = Path("/proc/self/smaps").read_text()
    found: dict[str, list[bool]] = {}
    for path, flags in re.findall(rf" ({re.escape(os.fspath(folder))}/\S+)\n.*?VmFlags: ([^\n]*)", text, re.DOTALL):
        found.setdefault(Path(path).name, []).append("rr" in flags.split())
    return {name: sorted(values) for name, values in found.items()}
