"""A folder with a corpus and its indexes, as `mempo index` writes it and `mempo serve` reads it.

folder/corpus    see `mempo_env.retrieval.corpus`
folder/bm25      see `mempo_env.retrieval.bm25_disk`
folder/dense     see `mempo_env.retrieval.dense`
"""

from __future__ import annotations

from pathlib import Path

from mempo_env.errors import DataError, UnknownNameError
from mempo_env.retrieval.base import Retriever
from mempo_env.retrieval.corpus import Corpus
from mempo_env.retrieval.encoders import Encoder

KINDS = ("bm25", "dense", "hybrid")


def indexes_in(folder: str | Path) -> tuple[str, ...]:
    """The kinds of index that stand complete in the folder."""
    return tuple(kind for kind in ("bm25", "dense") if (Path(folder) / kind / "manifest.json").is_file())


def open_retriever(
    folder: str | Path,
    kind: str | None = None,
    *,
    encoder: Encoder | None = None,
    device: str = "cpu",
    placement: str = "shard",
    effort: int | None = None,
    rerank: str | None = None,
) -> Retriever:
    """The retriever over a folder's indexes.

    kind: "bm25", "dense" or "hybrid"; None takes the one index there is, or both as a hybrid.
    encoder, device, placement, effort: see `DenseRetriever`. rerank: a cross-encoder's name.
    Raises DataError when the folder has no such index, or it does not belong to the corpus.
    """
    folder = Path(folder)
    if kind is not None and kind not in KINDS:
        raise UnknownNameError("kind of index", kind, KINDS)
    there = indexes_in(folder)
    needed = ("bm25", "dense") if kind == "hybrid" else (kind,) if kind else there
    missing = [name for name in needed if name not in there]
    if missing or not needed:
        raise DataError(
            f"{folder}: expected {' and '.join(missing) or 'an index'}, found "
            f"{', '.join(there) or 'none'}. Build it with: mempo index SOURCE {folder} --kind {kind or 'bm25'}"
        )
    corpus = Corpus(folder / "corpus")
    parts: list[Retriever] = []
    if "bm25" in needed:
        from mempo_env.retrieval.bm25_disk import DiskBM25Retriever

        parts.append(DiskBM25Retriever(corpus, folder / "bm25"))
    if "dense" in needed:
        from mempo_env.retrieval.dense import DenseRetriever

        parts.append(
            DenseRetriever(corpus, folder / "dense", encoder=encoder, device=device, placement=placement, effort=effort)
        )
    retriever = parts[0]
    if len(parts) > 1:
        from mempo_env.retrieval.hybrid import HybridRetriever

        retriever = HybridRetriever(parts)
    if rerank is not None:
        from mempo_env.retrieval.rerank import RerankRetriever

        retriever = RerankRetriever(retriever, rerank)
    return retriever
