"""`mempo index`: build a corpus and its indexes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer


def run(
    source: Annotated[
        str,
        typer.Argument(
            help="Files or a folder of passages (JSON lines, JSON; .gz, .zst), world[:size=N,seed=N], or a hub name."
        ),
    ],
    folder: Annotated[Path, typer.Argument(help="Where corpus and indexes go.")],
    kind: Annotated[str, typer.Option(help="bm25, dense, or hybrid for both.")] = "bm25",
    source_split: Annotated[str | None, typer.Option(help="Split of the world or the hub data set.")] = None,
    split: Annotated[
        str, typer.Option(help="Windows of long texts: none, words:SIZE:OVERLAP or tokens:SIZE:OVERLAP:MODEL.")
    ] = "none",
    encoder: Annotated[
        str, typer.Option(help="minilm, or a sentence-transformers model: hub name or folder.")
    ] = "minilm",
    query_prefix: Annotated[str | None, typer.Option(help="Text before a query; default: the model family's.")] = None,
    passage_prefix: Annotated[str | None, typer.Option(help="Text before a passage; default: the family's.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=8, help="Tokens read of a passage; default: the model's.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Weights: float32, float16 or bfloat16.")] = None,
    factory: Annotated[
        str, typer.Option(help="FAISS factory string, such as Flat, HNSW32 or IVF4096_HNSW32,SQ8.")
    ] = "Flat",
    effort: Annotated[int | None, typer.Option(min=1, help="Lists probed (IVF) or candidates kept (HNSW).")] = None,
    devices: Annotated[
        str, typer.Option(help="Where to encode, one process each: cpu, or cuda:0,cuda:1, or cpu,cpu.")
    ] = "cpu",
    rows: Annotated[str | None, typer.Option(help="Index only these rows of the corpus, FIRST:STOP (a shard).")] = None,
    keep_embeddings: Annotated[bool, typer.Option(help="Keep the vectors, from which hits are ranked again.")] = True,
    reuse: Annotated[
        Path | None, typer.Option(help="Take the vectors of this folder's dense index, to try another factory.")
    ] = None,
    sample: Annotated[int, typer.Option(min=0, help="Queries on which recall is measured; 0 for none.")] = 200,
    target_recall: Annotated[
        float,
        typer.Option(min=0, max=1, help="Recall at 3 that the effort is chosen for, where --effort is not given."),
    ] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Seed of training rows and of the recall sample.")] = 0,
    estimate: Annotated[bool, typer.Option("--estimate", help="Say what an index would need, and stop.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what stands in the folder.")] = False,
) -> None:
    """Build a corpus and its indexes. After a crash or a kill, the same command goes on where it was.

    If FOLDER has a corpus from the same source and split, it is used as it is; so a second kind can be added later.
    """
    from mempo_env.errors import UnknownNameError
    from mempo_env.retrieval.store import KINDS

    if kind not in KINDS:
        raise UnknownNameError("kind of index", kind, KINDS)
    with _bars() as progress:
        corpus = _corpus(source, source_split, split, folder, overwrite)
        span = _rows(rows)
        if estimate:
            _estimate(corpus, span, kind, encoder, max_tokens, factory, keep_embeddings)
            return
        if kind in ("bm25", "hybrid") and _wanted(folder / "bm25", overwrite):
            from mempo_env.retrieval.bm25_disk import build_bm25

            manifest = build_bm25(corpus, folder / "bm25", rows=span, overwrite=overwrite, progress=progress)
            typer.echo(f"bm25: {manifest['words']:,} words, {manifest['build_seconds']} s", err=True)
        if kind in ("dense", "hybrid") and _wanted(folder / "dense", overwrite):
            from mempo_env.retrieval.build import build_dense

            given = {
                "query_prefix": query_prefix,
                "passage_prefix": passage_prefix,
                "max_tokens": max_tokens,
                "dtype": dtype,
            }
            manifest = build_dense(
                corpus,
                folder / "dense",
                encoder=encoder,
                encoder_options={name: value for name, value in given.items() if value is not None},
                factory=factory,
                effort=effort,
                rows=span,
                devices=tuple(devices.split(",")),
                keep_embeddings=keep_embeddings,
                reuse=reuse / "dense" if reuse is not None else None,
                sample=sample,
                target_recall=target_recall,
                seed=seed,
                overwrite=overwrite,
                progress=progress,
            )
            typer.echo(
                f"dense: {manifest.get('recall', 'recall not measured')}, {manifest['build_seconds']} s", err=True
            )
            if manifest["report"]["n_truncated"]:
                typer.echo(
                    f"dense: {manifest['report']['n_truncated']:,} passages are longer than the encoder reads; "
                    "--split keeps their ends findable.",
                    err=True,
                )
    typer.echo(f"Written: {folder}. Serve it with: mempo serve {folder}", err=True)


def _wanted(folder: Path, overwrite: bool) -> bool:
    if overwrite or not folder.exists():
        return True
    typer.echo(f"{folder.name}: there already (--overwrite builds it again)", err=True)
    return False


def _corpus(source: str, source_split: str | None, split: str, folder: Path, overwrite: bool) -> Any:
    from mempo_env.errors import DataError
    from mempo_env.retrieval.corpus import Corpus, build_corpus
    from mempo_env.retrieval.sources import read_source
    from mempo_env.retrieval.splitting import parse_windows

    named = f"{source}[{source_split}]" if source_split else source
    if (folder / "corpus" / "manifest.json").exists() and not overwrite:
        corpus = Corpus(folder / "corpus")
        if (corpus.manifest["source"], corpus.manifest["split"]) != (named, split):
            raise DataError(
                f"{folder / 'corpus'}: made from {corpus.manifest['source']!r} with split "
                f"{corpus.manifest['split']!r}, and now {named!r} with {split!r} is asked for. "
                "Choose another folder, or pass --overwrite."
            )
        return corpus
    report = build_corpus(
        read_source(source, source_split),
        folder / "corpus",
        source=named,
        windows=parse_windows(split),
        overwrite=overwrite,
    )
    typer.echo(
        f"corpus: {report.n_in:,} rows in, {report.n_out:,} passages out; {report.n_duplicates:,} duplicates and "
        f"{report.n_empty:,} empty rows left out, {report.n_split:,} rows split",
        err=True,
    )
    return Corpus(folder / "corpus")


def _rows(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, _, stop = text.partition(":")
    try:
        return int(first), int(stop)
    except ValueError:
        raise typer.BadParameter(f"--rows: expected FIRST:STOP, such as 0:5000000, got {text!r}.") from None


def _estimate(
    corpus: Any, span: tuple[int, int] | None, kind: str, encoder: str, max_tokens: int | None, factory: str, keep: bool
) -> None:
    from mempo_env.retrieval import bm25_disk, build
    from mempo_env.retrieval.encoders import get_encoder
    from mempo_env.retrieval.indexes import check_rows

    start, stop = check_rows(span, len(corpus))
    gib = 2**30
    if kind in ("bm25", "hybrid"):
        typer.echo(
            f"bm25: {stop - start:,} passages, disk at most {bm25_disk.estimate_disk_bytes(stop - start) / gib:.2f} GiB"
        )
    if kind in ("dense", "hybrid"):
        dimensions = get_encoder(encoder, **({"max_tokens": max_tokens} if max_tokens else {})).dimensions
        need = build.estimate_dense(stop - start, dimensions, factory, keep_embeddings=keep)
        typer.echo(
            f"dense: {stop - start:,} x {dimensions} ({factory}), disk {need.disk_bytes / gib:.2f} GiB, "
            f"memory {need.memory_build_bytes / gib:.2f} GiB to build, "
            f"up to {need.memory_serve_bytes / gib:.2f} GiB to serve"
        )


@contextmanager
def _bars() -> Iterator[Callable[[str, int, int], None] | None]:
    """Bars on stderr with the remaining time at the speed of this run; nothing where nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from mempo_env.retrieval.encoding import Clock

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        known: dict[str, tuple[Any, Clock]] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in known:
                known[stage] = (bars.add_task(stage, total=total, completed=done, left=""), Clock())
            task, clock = known[stage]
            left = clock.remaining_seconds(done, total)
            words = (
                "" if left is None else f"{int(left // 3600)}:{int(left % 3600 // 60):02d}:{int(left % 60):02d} left"
            )
            bars.update(task, completed=done, total=total, left=words)

        yield show
