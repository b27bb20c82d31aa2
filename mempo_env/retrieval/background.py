"""One event loop in one daemon thread, for synchronous callers of asynchronous clients.

Only an event loop can give up on *anything* at a deadline: a header that drips, a stuck name look-up, a half-closed
peer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from mempo_env.errors import RetrievalError

T = TypeVar("T")


class BackgroundLoop:
    """Started at first use; started anew in a forked child, where the parent's thread does not exist."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()

    @property
    def running(self) -> bool:
        return self._loop is not None and not self.forked

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one in which the loop runs: connections must not be shared with it."""
        return self._pid != os.getpid()

    def run(self, work: Coroutine[Any, Any, T], timeout_seconds: float) -> T:
        """Run `work` to its end and return its result. RetrievalError after `timeout_seconds`; `work` is cancelled."""
        future = asyncio.run_coroutine_threadsafe(work, self._started())
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

    def _started(self) -> asyncio.AbstractEventLoop:
        if self.forked:
            self._lock = threading.Lock()
            self._loop, self._pid = None, os.getpid()
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="retrieval-client", daemon=True).start()
            return self._loop

    def close(self) -> None:
        if self.running and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop = None
