"""Recall of the supporting passages of real questions: BM25, dense and hybrid on HotpotQA and MuSiQue.

    python -m benchmarks.retrieval_recall --json benchmarks/results/retrieval_recall.json

The query is the question itself; the corpus is all passages of the file's questions. Recall at k is the share of a
question's supporting passages among the first k hits, averaged over questions; "all" is the share of questions whose
supporting passages are all there. Multi-hop questions name their second passage only through the first, so one search
cannot find everything: that is what the agent is for. Data: the folder of MEMPO_DATA, else ../shared/data.
"""

from __future__ import annotations

import json as json_module
import os
import random
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from mempo_agents.provenance import git_revision, machine_class, versions
from mempo_env.retrieval.base import Retriever
from mempo_env.retrieval.bm25 import BM25Retriever
from mempo_env.retrieval.build import build_dense
from mempo_env.retrieval.corpus import Corpus, build_corpus
from mempo_env.retrieval.dense import DenseRetriever
from mempo_env.retrieval.hybrid import HybridRetriever
from mempo_env.tasks import load_dataset
from mempo_env.types import Question

FILES = {"HotpotQA": "hotpotqa/hotpot_train_100.json", "MuSiQue": "musique/musique_train_100.json"}
KS = (1, 3, 5, 10)


def run(
    json: Annotated[Path | None, typer.Option(help="Write the results here, and a table beside it (.md).")] = None,
    encoder: Annotated[str, typer.Option(help="minilm, or a sentence-transformers model.")] = "minilm",
    resamples: Annotated[int, typer.Option(min=100, help="Bootstrap resamples for the intervals.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0,
) -> None:
    """Measure, print, and write."""
    data = Path(os.environ.get("MEMPO_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
    if not data.is_dir():
        raise typer.BadParameter(
            f"{data}: no such folder. Set MEMPO_DATA to the folder that holds {FILES['HotpotQA']}."
        )
    rows: list[dict[str, Any]] = []
    for name, file in FILES.items():
        dataset = load_dataset(data / file)
        split = dataset.splits[0]
        with tempfile.TemporaryDirectory() as folder:
            report = build_corpus(dataset.passages(split) or (), Path(folder) / "corpus", source=file)
            corpus = Corpus(Path(folder) / "corpus")
            started = time.perf_counter()
            build_dense(corpus, Path(folder) / "dense", encoder=encoder, factory="Flat", sample=0)
            encoding = time.perf_counter() - started
            bm25 = BM25Retriever(list(corpus))
            dense = DenseRetriever(corpus, Path(folder) / "dense")
            for kind, retriever in (("bm25", bm25), ("dense", dense), ("hybrid", HybridRetriever([bm25, dense]))):
                row = measure(retriever, dataset.questions(split), resamples, seed)
                rows.append({"data": name, "retriever": kind, "passages": report.n_out, **row})
        print(f"{name}: {report.n_out} passages, encoded in {encoding:.0f} s", file=sys.stderr)
    text = table(rows)
    print(text)
    if json is not None:
        command = shlex.join(["python", "-m", "benchmarks.retrieval_recall", *sys.argv[1:]])
        result = {
            "schema_version": 1,
            "command": command,
            "seed": seed,
            "encoder": encoder,
            "files": FILES,
            "machine": machine_class(),
            "versions": versions(),
            "git": git_revision(),
            "rows": rows,
        }
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_text(json_module.dumps(result, indent=1) + "\n", encoding="utf-8")
        page = f"# Recall of supporting passages\n\n`{command}`, encoder {encoder}, bootstrap seed {seed}.\n\n{text}\n"
        json.with_suffix(".md").write_text(page, encoding="utf-8")


def measure(retriever: Retriever, questions: Any, resamples: int, seed: int) -> dict[str, Any]:
    """Recall and all-found rate at each k, with 95 % bootstrap intervals over questions."""
    asked: list[Question] = [question for question in questions if question.evidence]
    found = retriever.search([question.text for question in asked], max(KS))
    result: dict[str, Any] = {"questions": len(asked)}
    for k in KS:
        shares = []
        for question, hits in zip(asked, found, strict=True):
            wanted = {link.passage_id for link in question.evidence}
            shares.append(len(wanted & {hit.passage.id for hit in hits[:k]}) / len(wanted))
        result[f"recall_at_{k}"] = _with_interval(shares, resamples, seed)
        result[f"all_at_{k}"] = _with_interval([float(share == 1) for share in shares], resamples, seed)
    return result


def _with_interval(values: list[float], resamples: int, seed: int) -> dict[str, float]:
    rng = random.Random(seed)
    means = sorted(sum(rng.choices(values, k=len(values))) / len(values) for _ in range(resamples))
    low, high = means[int(0.025 * resamples)], means[int(0.975 * resamples) - 1]
    return {"mean": round(sum(values) / len(values), 4), "low": round(low, 4), "high": round(high, 4)}


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: mean recall with its interval, and the all-found rate in brackets."""
    heads = "".join(f" @{k} |" for k in KS)
    lines = [f"| data | passages | retriever |{heads}", "|---|---|---|" + "---|" * len(KS)]
    for row in rows:
        cells = ""
        for k in KS:
            share = row[f"recall_at_{k}"]
            cells += (
                f" {share['mean']:.3f} [{share['low']:.2f}, {share['high']:.2f}] ({row[f'all_at_{k}']['mean']:.2f}) |"
            )
        lines.append(f"| {row['data']} | {row['passages']:,} | {row['retriever']} |{cells}")
    lines.append("")
    lines.append("Mean recall [95 % interval] (share of questions with all their supporting passages).")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(run)
