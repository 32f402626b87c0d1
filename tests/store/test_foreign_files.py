"""A run file is data from a stranger: damaged and forged ones are read right or refused, and nothing worse."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.store import mutations

ROOT = Path(__file__).parents[2]
ARCHIVE = sorted((ROOT / "tests" / "data").glob("run-*.h5"))


def answers(paths: list[Path]) -> dict[str, str]:
    """Read files in a process of their own; one that it dies of is told by how it died."""
    found: dict[str, str] = {}
    left = [str(path) for path in paths]
    while left:
        child = subprocess.run(
            [sys.executable, "-m", "tests.store.mutations", *left], cwd=ROOT, capture_output=True, text=True
        )
        for line in child.stdout.splitlines():
            name, _, answer = line.partition(" ")
            found[name] = answer or f"died {child.returncode}"
        assert child.returncode <= 0, child.stderr
        left = [name for name in left if name not in found]
        assert child.returncode or not left
    return found


def fuzz(folder: Path, numbers: range) -> Counter:
    whole = answers(ARCHIVE)
    plain = {path: mutations.unprotected(path) for path in ARCHIVE}
    made = {}
    for number in numbers:
        base = ARCHIVE[number // len(mutations.ALL) % len(ARCHIVE)]
        kind, data = mutations.mutate(base.read_bytes(), number)
        path = folder / f"{number}-{kind}.h5"
        path.write_bytes(data)
        made[str(path)] = (base, kind, data)
    counts: Counter = Counter()
    for name, answer in answers([Path(name) for name in made]).items():
        base, kind, data = made[name]
        what = answer.split()[0]
        counts[what] += 1
        assert what in ("read", "refused"), (name, answer)
        # Refused before the memory was asked for, not by running out of it.
        assert "fits into memory" not in answer, (name, answer)
        if what == "read" and kind in {mutation.__name__ for mutation in mutations.HONEST}:
            original = base.read_bytes()
            changed = [at for at, (a, b) in enumerate(zip(original, data, strict=False)) if a != b]
            if not any(start <= at < end for at in changed for start, end in plain[base]):
                assert answer == whole[str(base)], name
    return counts


def test_damaged_files_are_read_right_or_refused(tmp_path):
    counts = fuzz(tmp_path, range(63))
    assert counts["refused"] > 20
    assert counts["read"] > 5


@pytest.mark.soak
def test_a_thousand_damaged_files(tmp_path):
    counts = fuzz(tmp_path, range(1000, 2000))
    print(f"\n{counts['read']} read, {counts['refused']} refused")
    assert counts.total() == 1000
