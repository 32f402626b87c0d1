"""Rows on their way to the run file; what cannot be written now is kept and written later."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable

from dynamics.errors import RunFileError


class Outbox:
    """Write rows in order. A row that fails stays, with all behind it, until a later attempt succeeds."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._failing = False

    def __len__(self) -> int:
        """Return the number of rows that are not written yet."""
        return len(self._waiting)

    def put(self, write: Callable[[], None]) -> None:
        """Take a row and write all that is waiting; the first failure in a row of failures becomes a warning."""
        self._waiting.append(write)
        self.flush()

    def flush(self) -> None:
        """Try again to write all that is waiting."""
        while self._waiting:
            try:
                self._waiting[0]()
            except RunFileError as error:
                if not self._failing:
                    message = f"{error} Training goes on; what cannot be written is kept in memory and tried again."
                    warnings.warn(message, RuntimeWarning, stacklevel=2)
                self._failing = True
                return
            self._waiting.popleft()
        self._failing = False
