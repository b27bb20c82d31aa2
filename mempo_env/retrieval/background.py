"""One event loop in one daemon thread of the process, for synchronous callers of asynchronous clients.

Only an event loop can give up on anything at a deadline: a header that drips, a stuck name look-up, a half-closed peer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from mempo_env.errors import RetrievalError

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_pid = 0


def run(work: Coroutine[Any, Any, T], timeout_seconds: float) -> T:
    """Run `work` to its end and return its result. RetrievalError after `timeout_seconds`; `work` is then cancelled."""
    future = asyncio.run_coroutine_threadsafe(work, _started())
    try:
        return future.result(timeout_seconds)
    except concurrent.futures.TimeoutError:
        if future.done():
            raise
        future.cancel()
        raise RetrievalError(f"No answer in {timeout_seconds} seconds.") from None
    except BaseException:
        future.cancel()  # an interrupted caller leaves no request behind
        raise


def close_with(owner: object, close: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run `close` on the loop when `owner` is collected, or when the returned function is called, whichever is first.

    In a forked child nothing is done: its connections are the parent's.
    """
    finalizer = weakref.finalize(owner, _close_later, close, os.getpid())
    finalizer.atexit = False
    return finalizer


def _close_later(close: Callable[[], Awaitable[None]], pid: int) -> None:
    async def work() -> None:
        await close()

    if pid == os.getpid() and _loop is not None and not _loop.is_closed():
        asyncio.run_coroutine_threadsafe(work(), _loop)


def _started() -> asyncio.AbstractEventLoop:
    """The loop; started at first use, and anew in a forked child, where the parent's thread does not exist."""
    global _loop, _pid
    with _lock:
        if _loop is None or _pid != os.getpid():
            _loop, _pid = asyncio.new_event_loop(), os.getpid()
            threading.Thread(target=_loop.run_forever, name="retrieval-client", daemon=True).start()
        return _loop


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it at the fork


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
