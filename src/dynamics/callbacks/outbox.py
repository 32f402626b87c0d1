"""Rows on their way to the run file; what cannot be written now is kept and written later."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from typing import Literal, get_args

from dynamics.errors import ConfigurationError, RunFileError
from dynamics.store import RunWriter

OnWriteError = Literal["continue", "raise"]


class Outbox:
    """Write rows in order. A row that fails stays, with all behind it, until a later attempt succeeds.

    Args:
        on_write_error: ``"continue"``: the first failure in a row of failures becomes a warning. ``"raise"``: every
            failure is raised; the rows stay all the same.

    Raises:
        ConfigurationError: If ``on_write_error`` is neither.
    """

    def __init__(self, on_write_error: OnWriteError = "continue") -> None:
        if on_write_error not in get_args(OnWriteError):
            raise ConfigurationError(
                f"on_write_error is {on_write_error!r}, expected 'continue' (warn, and try again later) or 'raise'."
            )
        self._raises = on_write_error == "raise"
        self._waiting: deque[Callable[[], None]] = deque()
        self._failing = False

    def __len__(self) -> int:
        """Return the number of rows that are not written yet."""
        return len(self._waiting)

    def put(self, write: Callable[[], None]) -> None:
        """Take a row and write all that is waiting."""
        self._waiting.append(write)
        self.flush()

    def flush(self) -> None:
        """Try again to write all that is waiting.

        Raises:
            RunFileError: If that fails and failures are to be raised.
        """
        while self._waiting:
            try:
                self._waiting[0]()
            except RunFileError as error:
                if self._raises:
                    raise
                if not self._failing:
                    message = f"{error} Training goes on; what cannot be written is kept in memory and tried again."
                    warnings.warn(message, RuntimeWarning, stacklevel=2)
                self._failing = True
                return
            self._waiting.popleft()
        self._failing = False

    def close(self, writer: RunWriter, finished: bool) -> bool:
        """Write what is waiting and close the file, and return whether nothing is left to write.

        Args:
            writer: The writer of the file.
            finished: Whether the training came to its end.

        Raises:
            RunFileError: If that fails and failures are to be raised.
        """
        self.flush()
        if self._waiting:
            message = (
                f"{writer.path}: {len(self)} rows are still not written. Make room, then call "
                "close() of this callback before the program ends."
            )
            warnings.warn(message, RuntimeWarning, stacklevel=3)
            return False
        try:
            writer.close(finished)
        except RunFileError as error:
            if self._raises:
                raise
            warnings.warn(str(error), RuntimeWarning, stacklevel=3)
        return True
