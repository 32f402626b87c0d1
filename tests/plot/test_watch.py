import json
import re
import signal
import subprocess
import sys
from functools import partial

import h5py
import pytest

from dynamics.errors import AnalysisError, NothingYetError, RunFormatError
from dynamics.plot import draw_run
from dynamics.plot.__main__ import main
from dynamics.plot.page import without_reload
from dynamics.plot.watch import INTERVAL, look, watch
from tests.analysis.runs import random_run
from tests.plot.growing import Training
from tests.plot.pages import Page


class Watched:
    """A watch that looks at the clock and sleeps only as a test lets it: at each sleep the next event happens."""

    def __init__(self, path, *events, name="run.json", cost=0.0, **options):
        self.path, self.output = path, path.with_name(name)
        self._events, self._time, self._cost = iter(events), 0.0, cost
        self._draw = partial(draw_run, path, self.output, watched=True, **options)
        self.said, self.drawn, self.rests = [], [], []

    def draw(self):
        path = self._draw()
        self._time += self._cost
        if path.suffix == ".json":
            self.drawn.append(sorted(set(json.loads(path.read_text())["datasets"]["cells"][0]["step"])))
        return path

    def sleep(self, seconds):
        self.rests.append(seconds)
        self._time += seconds
        next(self._events)()

    def watch(self, paths=None):
        watch(paths or [self.path], self.draw, self.said.append, sleep=self.sleep, clock=lambda: self._time)

    @property
    def lines(self):
        """What was said, without the time of day."""
        return [re.sub(r" at \S+( [AP]M)?$", "", line.replace(f"{self.path.parent}/", "")) for line in self.said]


def nothing():
    pass


def interrupt():
    raise KeyboardInterrupt


def test_it_draws_when_rows_were_added_and_ends_with_the_run(tmp_path):
    training = Training(tmp_path / "run.h5")
    training.append(0)
    watched = Watched(
        tmp_path / "run.h5",
        nothing,
        lambda: training.append(1000),
        nothing,
        nothing,
        lambda: training.log(1200),
        training.finish,
    )
    watched.watch()
    assert watched.drawn == [[0], [0, 1000], [0, 1000], [0, 1000]]
    assert watched.lines == [
        "run.json: 1 snapshot to step 0, drawn in 0.0 s",
        "run.json: 2 snapshots to step 1,000, drawn in 0.0 s",
        "run.json: 2 snapshots to step 1,000, drawn in 0.0 s",
        "run.json: 2 snapshots to step 1,000, finished, drawn in 0.0 s",
    ]


def test_a_finished_run_is_drawn_once(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=3)
    watched = Watched(tmp_path / "run.h5")
    watched.watch()
    assert watched.drawn == [[0, 10, 20]]
    assert watched.rests == []


def test_it_rests_as_long_as_drawing_takes(tmp_path):
    training = Training(tmp_path / "run.h5")
    training.append(0)
    watched = Watched(tmp_path / "run.h5", nothing, training.finish, cost=7.5)
    watched.watch()
    assert watched.rests == [7.5, INTERVAL]
    assert watched.lines[0].endswith("drawn in 7.5 s")


def test_a_missing_file_and_the_first_snapshot_are_waited_for(tmp_path):
    path = tmp_path / "run.h5"
    training = []
    watched = Watched(
        path,
        nothing,
        lambda: training.append(Training(path)),
        nothing,
        lambda: training[0].append(0),
        lambda: training[0].finish(),
    )
    watched.watch()
    assert watched.lines == [
        "waiting for run.h5, which the training has not written yet.",
        "waiting for the first snapshot of run.h5.",
        "run.json: 1 snapshot to step 0, drawn in 0.0 s",
        "run.json: 1 snapshot to step 0, finished, drawn in 0.0 s",
    ]


@pytest.mark.parametrize("metadata", [{"started": "later"}, {"seed": float("nan")}])
def test_another_run_in_the_place_of_the_first_is_noticed(tmp_path, metadata):
    path = tmp_path / "run.h5"
    first = Training(path, metadata={"seed": float("nan")})
    first.append(0)
    first.append(10)

    def replace():
        first.finish(finished=False)
        training.append(Training(path, metadata=metadata))
        training[0].append(5)

    training = []
    watched = Watched(path, nothing, replace, lambda: training[0].finish())
    watched.watch()
    assert watched.drawn == [[0, 10], [5], [5]]
    assert watched.said[1] == f"{path} holds another run now."
    assert len(watched.said) == 4


def test_a_file_that_cannot_be_read_is_tried_again(tmp_path):
    path = tmp_path / "run.h5"
    training = Training(path)
    training.append(0)
    whole = []

    def damage():
        training.append(10)
        training.finish()
        whole.append(path.read_bytes())
        path.unlink()
        path.write_bytes(whole[0][:100])

    watched = Watched(path, damage, nothing, lambda: path.write_bytes(whole[0]))
    watched.watch()
    assert watched.drawn == [[0], [0, 10]]
    first, trouble, last = watched.lines
    assert first == "run.json: 1 snapshot to step 0, drawn in 0.0 s"
    assert trouble.startswith("run.h5 (100 bytes) is not an HDF5 file, or is damaged: ")
    assert trouble.endswith(" Expected a run file that GapTrackerCallback wrote. Trying again.")
    assert last == "run.json: 2 snapshots to step 10, finished, drawn in 0.0 s"


def test_a_full_disk_is_tried_again_also_for_the_last_picture(tmp_path, monkeypatch):
    random_run(tmp_path / "run.h5", n_steps=2)
    output = tmp_path / "run.json"

    def full(path, content):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("dynamics.plot.output.write_whole", full)
        watched = Watched(tmp_path / "run.h5", nothing, nothing, patch.undo)
        watched.watch()
    assert watched.said[:-1] == [f"the picture {output} cannot be written: No space left on device. Trying again."]
    assert watched.drawn == [[0, 10]]


def test_damage_that_shows_while_drawing_is_tried_again(tmp_path, monkeypatch):
    random_run(tmp_path / "run.h5", n_steps=2)

    def fail(self, name):
        raise RuntimeError("Unspecified error in H5Dread")

    with monkeypatch.context() as patch:
        patch.setattr("dynamics.store.reader.RunGroup.__getitem__", fail)
        watched = Watched(tmp_path / "run.h5", nothing, patch.undo)
        watched.watch()
    assert watched.said[0] == "Unspecified error in H5Dread Trying again."
    assert watched.drawn == [[0, 10]]


def test_what_waiting_cannot_mend_ends_the_watch(tmp_path):
    h5py.File(tmp_path / "other.h5", "w").close()
    with pytest.raises(RunFormatError):
        Watched(tmp_path / "other.h5").watch()
    training = Training(tmp_path / "run.h5", without=["ablation_exact_match", "ablation_loss"])
    training.append(0)
    with pytest.raises(AnalysisError) as error:
        Watched(tmp_path / "run.h5").watch()
    assert "has no 'ablation_exact_match'" in str(error.value)
    training.finish()


def test_what_the_run_has_nothing_for_yet_is_waited_for_until_its_end(tmp_path):
    training = Training(tmp_path / "run.h5")
    training.append(0)
    watched = Watched(tmp_path / "run.h5", nothing, training.finish, panels=("faithfulness",))
    with pytest.raises(NothingYetError) as error:
        watched.watch()
    nothing_yet = (
        "the run has nothing to draw for faithfulness; choose other panels, or track again with a schedule of "
        "faithfulness, such as faithfulness=5000."
    )
    assert str(error.value) == nothing_yet
    assert watched.said == [nothing_yet]
    empty = Training(tmp_path / "empty.h5")
    empty.finish()
    with pytest.raises(NothingYetError) as error:
        Watched(tmp_path / "empty.h5").watch()
    assert str(error.value) == (
        f"{tmp_path / 'empty.h5'} has no snapshots yet; try again once the training has taken its first."
    )


def test_several_runs_are_watched_until_all_are_finished(tmp_path):
    first, second = (Training(tmp_path / name) for name in ("run.h5", "other.h5"))
    first.append(0)
    second.append(10)
    watched = Watched(tmp_path / "run.h5", first.finish, lambda: second.append(20), second.finish)
    watched.watch([tmp_path / "run.h5", tmp_path / "other.h5"])
    assert watched.lines == [
        "run.json: 2 runs to steps 0, 10 (0 finished), drawn in 0.0 s",
        "run.json: 2 runs to steps 0, 10 (1 finished), drawn in 0.0 s",
        "run.json: 2 runs to steps 0, 20 (1 finished), drawn in 0.0 s",
        "run.json: 2 runs to steps 0, 20 (2 finished), drawn in 0.0 s",
    ]


def test_the_state_of_a_run(tmp_path):
    training = Training(tmp_path / "run.h5", metadata={"seed": 1})
    assert look(tmp_path / "run.h5")[1:] == (
        '{"seed": 1}', {"snapshots": 0, "train": 0, "metrics": 0}, None, False
    )  # fmt: skip
    training.append(7)
    training.log(8)
    training.finish()
    assert look(tmp_path / "run.h5")[1:] == ('{"seed": 1}', {"snapshots": 1, "train": 0, "metrics": 1}, 7, True)


def reload_of(path):
    [(_, attributes)] = [element for element in Page(path.read_text()).elements if element[0] == "html"]
    return attributes.get("data-reload")


def test_the_page_reloads_itself_until_the_run_is_finished(tmp_path):
    training = Training(tmp_path / "run.h5", metadata={"started": '<html lang="en" data-reload="5">'})
    training.append(0)
    seen = []
    watched = Watched(
        tmp_path / "run.h5", lambda: seen.append(reload_of(watched.output)), training.finish, name="run.html"
    )
    watched.watch()
    assert seen == ["5"]
    assert reload_of(watched.output) is None
    # Of itself, and not only because the watch has ended.
    assert reload_of(draw_run(tmp_path / "run.h5", watched=True)) is None
    # Still keeps what its reader had set, once the page before reloads into it.
    assert "sessionStorage" in "".join(Page(watched.output.read_text()).code)
    assert "sessionStorage" not in "".join(Page(draw_run(tmp_path / "run.h5").read_text()).code)


def test_an_interrupted_watch_ends_cleanly_and_its_page_stays_as_it_is(tmp_path):
    training = Training(tmp_path / "run.h5", metadata={"started": '<head><html lang="en" data-reload="5">'})
    training.append(0)
    seen = []

    def look_and_interrupt():
        seen.append(watched.output.read_text())
        interrupt()

    watched = Watched(tmp_path / "run.h5", look_and_interrupt, name="run.html")
    watched.watch()
    assert watched.said[-1] == "no longer watching."
    assert seen[0].count('<html lang="en" data-reload="5">') == 1
    assert watched.output.read_text() == seen[0].replace('<html lang="en" data-reload="5">', '<html lang="en">')
    assert without_reload(watched.output.read_text()) == watched.output.read_text()
    training.finish()


def test_an_interrupted_wait_ends_cleanly(tmp_path):
    watched = Watched(tmp_path / "run.h5", interrupt)
    watched.watch()
    assert watched.said[-1] == "no longer watching."
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_do_not_wait_for_the_run(tmp_path, capsys):
    assert main([str(tmp_path / "run.h5"), "--watch", "-o", "picture.pdf"]) == 2
    assert capsys.readouterr().err == (
        "error: the output must end in one of .html, .png, .svg, .json; got 'picture.pdf'.\n"
    )


@pytest.mark.parametrize("end", ["finish", pytest.param("interrupt", marks=pytest.mark.soak)])
def test_the_command_follows_a_training_in_another_process(tmp_path, end):
    path, output = tmp_path / "run.h5", tmp_path / "a.html"
    command = [sys.executable, "-m", "dynamics.plot", str(path), "--watch", "-o", str(output), "--panels", "roles"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout.readline() == f"waiting for {path}, which the training has not written yet.\n"
        training = Training(path)
        training.append(0)
        training.append(10)
        line = process.stdout.readline()
        while "waiting" in line or " 1 snapshot" in line:
            line = process.stdout.readline()
        assert line.startswith(f"{output}: 2 snapshots to step 10, drawn in ")
        assert reload_of(output) == "5"
        training.append(20)
        assert process.stdout.readline().startswith(f"{output}: 3 snapshots to step 20, drawn in ")
        if end == "finish":
            training.finish()
            assert process.stdout.readline().startswith(f"{output}: 3 snapshots to step 20, finished, drawn in ")
        else:
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "no longer watching.\n"
            training.finish()
        assert process.wait(timeout=60) == 0
        assert process.stdout.read() == ""
        assert reload_of(output) is None
    finally:
        process.kill()
        process.communicate()
