"""Schedules: at which optimizer steps something is measured.

A schedule is a plain function ``step -> bool`` that knows nothing of measurements or of training. Step ``s`` means
"after ``s`` optimizer steps", so step 0 is the untrained model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

from dynamics.errors import ScheduleError


@dataclass(frozen=True)
class _Every:
    n: int

    def __call__(self, step: int) -> bool:
        return step % self.n == 0

    def to_config(self) -> dict[str, Any]:
        return {"every": self.n}

    def __repr__(self) -> str:
        return f"Schedule.every({self.n})"


@dataclass(frozen=True)
class _Log:
    per_decade: int

    def __call__(self, step: int) -> bool:
        if step < 1:
            return False
        nearest = round(self.per_decade * math.log10(step))
        # A neighbouring exponent can round to the same step, hence three candidates.
        return any(step == round(10 ** (k / self.per_decade)) for k in (nearest - 1, nearest, nearest + 1))

    def to_config(self) -> dict[str, Any]:
        return {"log": self.per_decade}

    def __repr__(self) -> str:
        return f"Schedule.log({self.per_decade})"


@dataclass(frozen=True)
class _At:
    steps: frozenset[int]

    def __call__(self, step: int) -> bool:
        return step in self.steps

    def to_config(self) -> dict[str, Any]:
        return {"at": sorted(self.steps)}

    def __repr__(self) -> str:
        return f"Schedule.at({sorted(self.steps)})"


@dataclass(frozen=True)
class _Piecewise:
    pieces: tuple[tuple[int, int], ...]

    def __call__(self, step: int) -> bool:
        current = None
        for start, interval in self.pieces:
            if step >= start:
                current = (start, interval)
        return current is not None and (step - current[0]) % current[1] == 0

    def to_config(self) -> dict[str, Any]:
        return {"piecewise": dict(self.pieces)}

    def __repr__(self) -> str:
        return f"Schedule.piecewise({dict(self.pieces)})"


_Rule: TypeAlias = "_Every | _Log | _At | _Piecewise"


def _whole(value: object, what: str, least: int) -> int:
    # Integral, not int: steps often come out of a numpy array.
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ScheduleError(f"{what} must be a whole number of at least {least}; got {value!r}.")
    return int(value)


@dataclass(frozen=True)
class Schedule:
    """A set of optimizer steps; ``schedule(step)`` says whether ``step`` belongs to it.

    Build one with `every`, `log`, `at` or `piecewise`; ``a | b`` is the union of two.

    Attributes:
        rules: The elementary rules; a step belongs to the schedule if any rule holds.
    """

    rules: tuple[_Rule, ...] = ()

    def __call__(self, step: int) -> bool:
        """Say whether ``step`` is scheduled; negative steps never are."""
        return step >= 0 and any(rule(step) for rule in self.rules)

    def __or__(self, other: Schedule) -> Schedule:
        """Return the union of two schedules."""
        if not isinstance(other, Schedule):
            return NotImplemented
        return Schedule(self.rules + other.rules)

    def __repr__(self) -> str:
        """Return an expression that builds the same schedule."""
        return " | ".join(map(repr, self.rules)) or "Schedule()"

    def within(self, after: int, until: int) -> bool:
        """Say whether any step of ``after < step <= until`` is scheduled.

        A training loop with several optimizers advances the step by more than one per batch; a step that was
        jumped over is then due at the next one that exists.
        """
        return any(self(step) for step in range(after + 1, until + 1))

    def to_config(self) -> Any:
        """Return what `from_config` reads as the same schedule, of plain types: a number, a mapping, or a list.

        Raises:
            ScheduleError: If the schedule has no rule.
        """
        if not self.rules:
            raise ScheduleError("a schedule without a rule cannot be written down; build it with every, log, at, ….")
        configs = [rule.to_config() for rule in self.rules]
        if len(configs) > 1:
            return configs
        # A number can be replaced on a command line; to a mapping another rule would be added.
        return configs[0].get("every", configs[0])

    @classmethod
    def every(cls, n: int) -> Schedule:
        """Every n steps: 0, n, 2n and so on."""
        return cls((_Every(_whole(n, "Schedule.every: the interval", 1)),))

    @classmethod
    def log(cls, per_decade: int = 10) -> Schedule:
        """Steps ``round(10 ** (k / per_decade))`` for k = 0, 1, 2, …: evenly spaced on a logarithmic axis."""
        return cls((_Log(_whole(per_decade, "Schedule.log: the number of steps per decade", 1)),))

    @classmethod
    def at(cls, steps: Iterable[int]) -> Schedule:
        """Exactly these steps."""
        if isinstance(steps, (str, bytes)) or not isinstance(steps, Iterable):
            raise ScheduleError(f"Schedule.at takes a list of steps, such as [10, 100]; got {steps!r}.")
        return cls((_At(frozenset(_whole(step, "Schedule.at: each step", 0) for step in steps)),))

    @classmethod
    def piecewise(cls, intervals: Mapping[int, int]) -> Schedule:
        """Dense early, sparse later: ``{0: 10, 200: 100}`` is every 10 steps from 0, every 100 steps from 200."""
        if not isinstance(intervals, Mapping) or not intervals:
            raise ScheduleError(
                f"Schedule.piecewise takes a mapping from first step to interval, such as {{0: 10, 200: 100}}; "
                f"got {intervals!r}."
            )
        pieces = []
        for start, interval in intervals.items():
            # YAML and the command line may hand over the key as text.
            first = int(start) if isinstance(start, str) and start.isdigit() else start
            pieces.append(
                (
                    _whole(first, "Schedule.piecewise: each first step", 0),
                    _whole(interval, "Schedule.piecewise: each interval", 1),
                )
            )
        if len({first for first, _ in pieces}) < len(pieces):
            raise ScheduleError(f"Schedule.piecewise: each first step may come once; got {dict(intervals)!r}.")
        return cls((_Piecewise(tuple(sorted(pieces))),))

    @classmethod
    def from_config(cls, value: Any) -> Schedule:
        """Read a schedule as configuration files write it.

        Args:
            value: A `Schedule`; a number ``n`` (every n steps); one of ``{every: n}``, ``{log: per_decade}``,
                ``{at: [steps]}``, ``{piecewise: {first: interval}}``; or a list of these (their union).

        Raises:
            ScheduleError: If the value is none of these.
        """
        builders: dict[str, Callable[[Any], Schedule]] = {
            "every": cls.every,
            "log": cls.log,
            "at": cls.at,
            "piecewise": cls.piecewise,
        }
        if isinstance(value, Schedule):
            return value
        if isinstance(value, Integral) and not isinstance(value, bool):
            return cls.every(int(value))
        if isinstance(value, (list, tuple)) and len(value) > 1 and all(isinstance(part, Integral) for part in value):
            raise ScheduleError(
                f"a list is the union of schedules, in which a number n means every n steps; got {list(value)!r}. For "
                f"exactly these steps write {{at: {list(value)!r}}}, or Schedule.at({list(value)!r})."
            )
        if isinstance(value, (list, tuple)) and value:
            return cls(tuple(rule for part in value for rule in cls.from_config(part).rules))
        if isinstance(value, Mapping) and len(value) > 1 and set(value) <= set(builders):
            # On a command line, --schedule.every 2 adds to what the configuration file says.
            raise ScheduleError(
                f"a schedule names one rule, but {' and '.join(value)} came together: {dict(value)!r}. To replace a "
                "schedule on the command line give the whole of it, as '{every: 2}'; for a union write a list."
            )
        if isinstance(value, Mapping) and value and set(value) <= set(builders):
            [(kind, argument)] = value.items()
            return builders[kind](argument)
        raise ScheduleError(
            "a schedule is a number n (every n steps), {every: n}, {log: per_decade}, {at: [steps]}, "
            f"{{piecewise: {{first_step: interval}}}}, or a list of these; got {value!r}."
        )
