"""A setting of the whole process that contexts of several threads may want changed at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


class ProcessWide:
    """Keeps a setting changed for as long as any context wants it.

    Each context alone would restore the setting too early, or to what another of them had set.

    Args:
        change: Makes the context that changes the setting and puts it back.
    """

    def __init__(self, change: Callable[[], AbstractContextManager[object]]) -> None:
        self._change = change
        self._lock = threading.Lock()
        self._users = 0
        self._open: AbstractContextManager[object] | None = None

    @contextmanager
    def changed(self) -> Iterator[None]:
        """Have the setting changed inside; it is put back when the last context of any thread ends."""
        with self._lock:
            if self._users == 0:
                self._open = self._change()
                self._open.__enter__()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0 and self._open is not None:
                    self._open.__exit__(None, None, None)
                    self._open = None
