"""Files in memory: mapped for reading here and there, read ahead, and the check that there is room."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mempo_env.errors import DataError

_READ_AT_ONCE = 1 << 23
_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def read_at_random(mapped: mmap.mmap) -> mmap.mmap:
    """Say that the mapped file is read in no order: a read then brings its own pages into memory and no others.

    Otherwise the system reads on behind each of them, 128 KiB for a passage of 1, and puts out for it what is needed as
    soon as memory is short. Returns the same object.
    """
    if hasattr(mmap, "MADV_RANDOM"):  # not on Windows
        with suppress(OSError):  # it is advice
            mapped.madvise(mmap.MADV_RANDOM)
    return mapped


def available_memory(proc: Path = _PROC, groups: Path = _GROUPS) -> int | None:
    """Bytes of memory that can still be taken: of the machine's, and of what this container may use (control groups).

    None where the system does not say (anything but Linux).
    """
    free: int | None = None
    with suppress(OSError), open(proc / "meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    return None if free is None else max(0, min([free, *_room_in_groups(proc, groups)]))


def _room_in_groups(proc: Path, groups: Path) -> Iterator[int]:
    """What each control group over this process leaves it, in bytes; the cache of files counts as free."""
    try:
        lines = os.fsdecode((proc / "self/cgroup").read_bytes()).split("\n")
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if line.startswith("0::"):  # version 2
            top, limit, usage, total = groups, "memory.max", "memory.current", ""
        elif "memory" in controllers.split(","):
            top, limit, usage, total = groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
        else:
            continue
        group = top / path.lstrip("/")  # inside a container often not there; its own group is then the top one
        for folder in (group, *group.parents):
            if not folder.is_relative_to(top):
                break
            most = _number(folder / limit)
            if most is not None:
                yield most - (_number(folder / usage) or 0) + _file_cache(folder / "memory.stat", total)


def _number(path: Path) -> int | None:
    """None for "max", which is no limit, and for a file that is not there."""
    with suppress(OSError, ValueError):
        return int(path.read_text(encoding="ascii"))
    return None


def _file_cache(stat: Path, total: str) -> int:
    """Bytes that the system takes back when it needs them. Files in memory (tmpfs) are not among them."""
    names = {f"{total}active_file", f"{total}inactive_file", "slab_reclaimable"}
    found = 0
    with suppress(OSError, UnicodeDecodeError), open(stat, encoding="ascii") as file:
        for line in file:
            name, _, value = line.strip().partition(" ")
            found += int(value) if name in names and value.isdigit() else 0
    return found


def require_memory(need_bytes: int, what: str, advice: str) -> None:
    """Raise DataError when `need_bytes` of memory are not available. Where the system does not say, let it pass."""
    free = available_memory()
    if free is not None and free < need_bytes:
        raise DataError(
            f"{what} needs about {need_bytes / 2**30:.2f} GiB of memory, and {free / 2**30:.2f} GiB are available. "
            + advice
        )


def read_ahead(*folders: str | Path) -> int:
    """Read the files under `folders` once, in order, so that the system holds them; returns the bytes read.

    A mapped index that the system does not hold is read from disk a page at a time, in random order: seconds a query.
    Nothing is read where the files would take more than half of the available memory. What is read this way is the
    system's cache, not this process's memory. A file that is taken away meanwhile, by a new index, is passed over.
    """
    files = [
        Path(top, name)
        for folder in folders
        for top, _, names in os.walk(folder, followlinks=True)
        for name in sorted(names)
    ]
    free = available_memory()
    if free is not None and sum(map(_size, files)) > free // 2:
        return 0
    done, buffer = 0, bytearray(_READ_AT_ONCE)
    for path in files:
        with suppress(OSError), path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                done += count
    return done


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
