"""The two servers that the load test compares, each as a process of its own.

    python -m benchmarks.search_servers ours  FOLDER --kind dense --port 8001 [--batch 1] [--workers 1]
    python -m benchmarks.search_servers plain FOLDER --kind dense --port 8002

"plain" is a Search-R1-style server, written for the comparison: FastAPI, one search a request in a thread of its pool,
the corpus as a list in memory, the index loaded into memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

import benchmarks.projection_encoder  # noqa: F401  registers the encoder that manifests may name

app = typer.Typer(add_completion=False)


class Query(BaseModel):
    """The body of a request to the plain server."""

    queries: list[str]
    topk: int | None = None
    return_scores: bool = False


@app.command()
def ours(
    folder: Path,
    port: Annotated[int, typer.Option()],
    kind: Annotated[str, typer.Option()] = "dense",
    batch: Annotated[int, typer.Option()] = 256,
    workers: Annotated[int | None, typer.Option()] = None,
) -> None:
    """The project's server."""
    import uvicorn

    from mempo_agents.commands.serve import default_workers
    from mempo_env.retrieval.server import Limits, create_app, example_query
    from mempo_env.retrieval.store import open_retriever

    retriever = open_retriever(folder, kind)
    retriever.search([example_query(retriever)], 3)
    limits = Limits(max_batch_queries=batch, workers=workers or default_workers("cpu"))
    uvicorn.run(create_app(retriever, limits=limits), port=port, log_level="warning", access_log=False)


@app.command()
def plain(
    folder: Path,
    port: Annotated[int, typer.Option()],
    kind: Annotated[str, typer.Option()] = "dense",
) -> None:
    """The comparison."""
    import uvicorn
    from fastapi import FastAPI

    from mempo_env.retrieval.corpus import Corpus

    corpus = [{"id": p.id, "contents": f"{p.title}\n{p.text}"} for p in Corpus(folder / "corpus")]
    search = _plain_dense(folder) if kind == "dense" else _plain_bm25(corpus)

    server = FastAPI()

    @server.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @server.post("/retrieve")
    def retrieve(request: Query) -> dict[str, Any]:
        scores, rows = search(request.queries, request.topk or 3)
        return {
            "result": [
                [{"document": corpus[row], "score": float(score)} for row, score in zip(r, s, strict=True)]
                for r, s in zip(rows, scores, strict=True)
            ]
        }

    retrieve(Query(queries=[corpus[0]["contents"][:60]]))
    uvicorn.run(server, port=port, log_level="warning", access_log=False)


def _plain_dense(folder: Path) -> Any:
    import faiss

    from mempo_env.retrieval import storage
    from mempo_env.retrieval.encoders import get_encoder
    from mempo_env.retrieval.vectors import set_effort

    manifest = storage.read_manifest(folder / "dense", "dense")
    encoder = get_encoder(manifest["encoder"]["model"])
    index = faiss.read_index(str(folder / "dense" / "index.faiss"))
    if manifest["effort"] is not None:
        set_effort(index, manifest["effort"])  # FAISS' own would probe one list, for another recall than ours
    return lambda queries, k: index.search(encoder.encode_queries(queries), k)


def _plain_bm25(corpus: list[dict[str, str]]) -> Any:
    import bm25s

    index = bm25s.BM25(backend="auto")
    tokens = bm25s.tokenize([d["contents"] for d in corpus], show_progress=False)
    index.index(tokens, show_progress=False)

    def search(queries: list[str], k: int) -> tuple[Any, Any]:
        asked = bm25s.tokenize(queries, show_progress=False, return_ids=False)
        rows, scores = index.retrieve(asked, k=k, show_progress=False)
        return scores, rows

    return search


if __name__ == "__main__":
    app()
