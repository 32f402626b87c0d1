from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar

from dynamics.callbacks import progress


class Printer(ProgressBar):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def print(self, *arguments, **options):
        self.lines += arguments


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now.seconds)
    return now


def test_lines_come_after_three_seconds_and_then_every_ten(clock):
    bar = Printer()
    with progress.snapshot_progress(SimpleNamespace(progress_bar_callback=bar), "snapshot at step 5") as show:
        for done in range(1, 21):
            clock.seconds = float(done)
            show(done, 20)
    assert bar.lines == [
        "snapshot at step 5: 15%, about 17 s left",
        "snapshot at step 5: 65%, about 7 s left",
    ]


def test_a_tqdm_bar_gets_a_second_one(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SHOWN_AFTER", 0.0)
    trainer = SimpleNamespace(progress_bar_callback=TQDMProgressBar())
    with progress.snapshot_progress(trainer, "snapshot at step 5") as show:
        # tqdm draws ten times a second at most.
        time.sleep(0.15)
        show(10, 20)
    shown = capsys.readouterr().err
    assert "snapshot at step 5:  50%" in shown
    assert "10/20" in shown


def test_without_a_progress_bar_nothing_is_shown():
    with progress.snapshot_progress(SimpleNamespace(progress_bar_callback=None), "snapshot") as show:
        assert show is None
