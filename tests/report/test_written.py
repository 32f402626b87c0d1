"""A report as it is written: in the terminal, as Markdown, as JSON."""

import io
import json
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from dynamics import open_run
from dynamics.analysis import Resampling
from dynamics.report import Report, Section, Table, markdown, run_report, show, to_json
from dynamics.report.markdown import escaped
from dynamics.report.words import number, p_is, plus_minus, printable, probability, span
from dynamics.store import ComponentInfo
from tests.analysis.runs import Components, random_arrays, random_run, write_run

LABELS = ["[red]x[/red]", "a|b`c`<b>&*_x_", "\x1b[31mevil\nline", ":smile:"]


@pytest.fixture
def hostile(tmp_path):
    rng = np.random.default_rng(0)
    listed = Components(ComponentInfo(label, 0, "head", place) for place, label in enumerate(LABELS))
    path = write_run(tmp_path / "run [bold].h5", [0, 1, 2], [random_arrays(rng, 4) for _ in range(3)], listed)
    with open_run(path) as run:
        yield run_report(run, "loss", window="all", threshold=1, resampling=Resampling(resamples=50))


def terminal(report, everything=False):
    file = io.StringIO()
    show(report, file, everything)
    return file.getvalue()


def test_labels_are_printed_as_they_are(hostile):
    text = terminal(hostile)
    assert "[red]x[/red]" in text
    assert "a|b`c`<b>&*_x_" in text
    assert ":smile:" in text
    assert "run [bold].h5" in "".join(text.split("\n"))
    assert r"\x1b[31mevil\nline" in text
    assert "\x1b" not in text


def test_labels_break_no_markdown(hostile):
    text = markdown(hostile)
    assert r"| \[red\]x\[/red\] |" in text
    assert r"| a\|b\`c\`&lt;b&gt;&amp;\*\_x\_ |" in text
    assert "\x1b" not in text
    assert "<b>" not in text
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        # As many edges in each line of a table: none comes from a label.
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
    assert re.findall(r"^#+ .*$", text, re.MULTILINE)[1:] == [f"## {s.heading}" for s in hostile.sections]


def test_eighty_columns_hold_every_line_and_no_number_is_cut(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=6, methods=("gradient", "gim", "ig"))
    with open_run(tmp_path / "run.h5") as run:
        report = run_report(run, window="all", resampling=Resampling(resamples=50))
    text = terminal(report)
    assert max(map(len, text.splitlines())) <= 80
    words = set(text.split())
    for section in report.sections[1:]:
        for table in section.tables:
            for row in table.rows():
                assert {word for cell in row for word in cell.split()} <= words


def test_a_narrow_terminal_wraps_and_cuts_nothing(monkeypatch):
    monkeypatch.setenv("COLUMNS", "24")
    frame = pd.DataFrame({"a": [123456.25], "b": ["one two three four five six"]})
    columns = {"a": lambda row: number(row["a"]), "b": lambda row: row["b"], "c": lambda row: "-0.43 to -0.58"}
    text = terminal(Report("x", {}, (Section("s", "S", (), (Table("t", "", frame, columns, ("b",)),)),)))
    assert {"one", "two", "three", "four", "five", "six", "-0.43", "-0.58"} <= set(text.split())
    assert "123,456.25" in text.replace("\n", "").replace(" ", "") or "123,4" in text


def planted(frame):
    table = Table("numbers", "Some numbers.", frame, {"x": lambda row: number(row["x"])}, most=2)
    section = Section("one", "One?", ("Yes.",), (table,), {"behind": frame})
    return Report("planted", {"score": "loss"}, (section, Section("two", "Two?", missing="There is none.")))


def test_json_holds_the_tables_with_null_for_what_is_not_known():
    frame = pd.DataFrame({"x": [1.5, np.nan, np.inf], "n": pd.array([1, None, 3], dtype="Int64"),
                          "b": [True, False, True], "why": pd.Series([None, "so", "é|<"], dtype=object),
                          "step": np.array([1, 2, 3])})  # fmt: skip
    records = [
        {"x": 1.5, "n": 1, "b": True, "why": None, "step": 1},
        {"x": None, "n": None, "b": False, "why": "so", "step": 2},
        {"x": None, "n": 3, "b": True, "why": "é|<", "step": 3},
    ]
    assert json.loads(to_json(planted(frame))) == {
        "format": "gap-dynamics report",
        "version": "1.0",
        "title": "planted",
        "options": {"score": "loss"},
        "sections": {
            "one": {"heading": "One?", "missing": None, "sentences": ["Yes."], "tables": {"numbers": records},
                    "data": {"behind": records}},
            "two": {"heading": "Two?", "missing": "There is none.", "sentences": [], "tables": {}, "data": {}},
        },
    }  # fmt: skip


def test_json_of_a_run_equals_its_tables(hostile):
    read = json.loads(to_json(hostile), parse_constant=lambda name: pytest.fail(name))
    assert list(read["sections"]) == [section.name for section in hostile.sections]
    for section in hostile.sections:
        found = read["sections"][section.name]
        tables = [("tables", table.name, table.frame) for table in section.tables]
        for part, name, frame in [*tables, *(("data", name, frame) for name, frame in section.data.items())]:
            again = pd.DataFrame(found[part][name], columns=list(frame))
            assert len(again) == len(frame)
            for column in frame:
                for a, b in zip(frame[column], again[column], strict=True):
                    assert (pd.isna(a) and pd.isna(b)) or a == b or (np.isinf(a) and pd.isna(b)), (name, column)


def test_markdown_is_headings_sentences_and_tables():
    assert markdown(planted(pd.DataFrame({"x": [1.0, -2.5, 3]}))) == (
        "# Report on planted\n\n## One?\n\nYes.\n\nSome numbers.\n\n| x |\n| ---: |\n| 1.00 |\n| -2.50 |\n\n"
        "… and 1 more (`--all`)\n\n## Two?\n\n*There is none.*\n"
    )


def test_the_terminal_shows_the_same():
    lines = [line.rstrip() for line in terminal(planted(pd.DataFrame({"x": [1.0, -2.5, 3]}))).splitlines()]
    assert [line for line in lines if line] == [
        "Report on planted", "One?", "Yes.", "Some numbers.", "      x", "  ─────", "   1.00", "  -2.50",
        "  … and 1 more (--all)", "Two?", "There is none.",
    ]  # fmt: skip
    assert "3.00" in terminal(planted(pd.DataFrame({"x": [1.0, -2.5, 3]})), everything=True)


def test_numbers_are_words_as_readers_expect():
    assert [number(-0.001), number(1234.5, 1), number(None), number(np.nan), number(-0.5)] == [
        "0.00", "1,234.5", "–", "–", "-0.50",
    ]  # fmt: skip
    assert [probability(p) for p in (0.0004, 0.0246, 0.0999, 0.31, 1.0, np.nan)] == [
        "<0.001", "0.025", "0.100", "0.31", "1.00", "–",
    ]  # fmt: skip
    assert [p_is(0.0004), p_is(0.31)] == ["p < 0.001", "p = 0.31"]
    assert [span(-0.004, 0.5), span(np.nan, 1)] == ["0.00 to 0.50", "–"]
    assert [plus_minus(0.5, 0.1), plus_minus(0.5, np.nan), plus_minus(np.nan, np.nan)] == ["0.50 ± 0.10", "0.50", "–"]
    assert printable("a\tb\r\u202ec\x9b") == r"a\tb\r\u202ec\x9b"
    assert escaped("# ~a~ \\") == r"\# \~a\~ \\"


def test_rows_are_made_of_what_is_shown():
    table = Table("t", "", pd.DataFrame({"a": [1, 2]}), {"a": lambda row: str(row["a"])})
    assert SimpleNamespace(rows=table.rows(), cut=table.cut()) == SimpleNamespace(rows=[["1"], ["2"]], cut=0)
