"""A process that may use so much memory and no more, its files' cache included: a control group of Linux."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


class NoLimitError(RuntimeError):
    """The system lets this user make no control groups."""


@contextmanager
def limited(mib: float) -> Iterator[Callable[[], None]]:
    """A group with a limit of `mib` MiB; calling what it yields puts the calling process into it, for `preexec_fn`.

    Raises NoLimitError where groups cannot be made: it takes Linux, and most often root.
    """
    second = (_GROUPS / "cgroup.controllers").exists()
    group = (_GROUPS if second else _GROUPS / "memory") / f"mempo-{uuid.uuid4().hex[:8]}"
    limit = group / ("memory.max" if second else "memory.limit_in_bytes")
    try:
        group.mkdir()
        limit.write_text(str(int(mib * 2**20)))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        raise NoLimitError(
            f"A limit of memory wants a control group, and none can be made here ({error}). Run it on Linux, as root."
        ) from error

    def join() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    try:
        yield join
    finally:
        group.rmdir()


def put_out(folder: Path) -> None:
    """Ask the system to forget the files under `folder`: what is read again counts for whoever reads it."""
    for top, _, names in os.walk(folder, followlinks=True):
        for name in names:
            with open(Path(top, name), "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
