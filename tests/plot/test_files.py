import threading

import pytest

from dynamics.errors import PlotError
from dynamics.plot import draw_run
from dynamics.plot.files import write_whole
from tests.analysis.runs import random_run


def test_a_reader_never_sees_a_part(tmp_path):
    path = tmp_path / "a.html"
    contents = {b"a" * 2_000_000, b"b" * 1_000_000}
    write_whole(path, min(contents))
    seen, ended = set(), threading.Event()

    def read():
        while not ended.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(25):
        for content in contents:
            write_whole(path, content)
    ended.set()
    reader.join()
    assert seen <= contents
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["a.html", "a.png", "a.svg", "a.json"])
def test_a_picture_that_cannot_be_completed_leaves_the_old_one(tmp_path, monkeypatch, name):
    random_run(tmp_path / "run.h5", n_steps=2)
    output = tmp_path / name
    output.write_text("the old one")
    write = type(output).write_bytes

    def fill_up(self, content):
        write(self, content[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", fill_up)
    with pytest.raises(PlotError) as error:
        draw_run(tmp_path / "run.h5", output)
    assert str(error.value) == f"the picture {output} cannot be written: No space left on device."
    assert output.read_text() == "the old one"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "run.h5"])


def test_permissions_stay_and_links_are_followed(tmp_path):
    (tmp_path / "a.svg").write_text("old")
    (tmp_path / "a.svg").chmod(0o640)
    (tmp_path / "link.svg").symlink_to("a.svg")
    write_whole(tmp_path / "link.svg", "ρ")
    assert (tmp_path / "link.svg").is_symlink()
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == "ρ"
    assert (tmp_path / "a.svg").stat().st_mode & 0o777 == 0o640
