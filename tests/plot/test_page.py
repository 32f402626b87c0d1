import json
import re

import pytest

from dynamics import open_run
from dynamics.analysis import gap_table
from dynamics.plot import draw_run
from dynamics.plot.page import embedded_json
from tests.analysis.runs import random_run
from tests.plot.pages import Page, sha256

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\"'"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A run in which every text that a user chooses is hostile, and its page."""
    folder = tmp_path_factory.mktemp("runs") / "<b>grokking&"
    folder.mkdir()
    metadata = {"started": HOSTILE, "git": {"commit": "<i>0123456789", "uncommitted_changes": True}}
    random_run(
        folder / "run.h5",
        n_steps=3,
        prefix=HOSTILE,
        metadata=metadata,
        metrics=[(5, {f"{HOSTILE[:60]}/exact_match": 0.5})],
    )
    return folder / "run.h5", draw_run(folder / "run.h5").read_text()


def test_nothing_is_loaded(drawn):
    page = Page(drawn[1])
    assert {tag for tag, _ in page.elements} & {"link", "img", "iframe", "object", "embed", "base", "form"} == set()
    for tag, attributes in page.elements:
        assert not {"src", "href", "srcset", "data", "action", "background"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag
    style = re.search("<style>(.*?)</style>", drawn[1], re.DOTALL).group(1)
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in page.policy
    assert "http" not in page.policy


def test_only_the_pages_own_scripts_may_run(drawn):
    page = Page(drawn[1])
    assert len(page.scripts) == 4
    sources = re.search("script-src ([^;]*);", page.policy).group(1)
    assert sources.split() == [*map(sha256, page.code), "'unsafe-eval'"]


def test_hostile_texts_stay_texts(drawn):
    path, text = drawn
    page = Page(text)
    assert "alert(1)" not in "".join(page.code)
    assert page.specification["datasets"]["cells"][0]["component"][0] == f"{HOSTILE}L0H0"
    # Seen by the reader as it was written, and never as an element.
    assert HOSTILE in page.texts
    assert "<i>0123456 + uncommitted changes" in page.texts
    assert path.parent.name in page.texts
    assert f"{path}" in page.texts
    assert {"b", "i", "img"} & {tag for tag, _ in page.elements} == set()


def test_the_data_is_all_there(drawn):
    path, text = drawn
    specification = Page(text).specification
    [cells] = specification["datasets"]["cells"]
    with open_run(path) as run:
        by_match, by_loss = gap_table(run), gap_table(run, score="loss")
    assert {len(values) for values in cells.values()} == {3 * 6}
    assert cells["role_exact_match"] == by_match["role"].tolist()
    assert cells["role_loss"] == by_loss["role"].tolist()
    assert cells["causal_loss"] == pytest.approx(by_loss["causal"].tolist(), rel=1e-4)
    assert cells["delta_exact_match"] == by_match["delta"].tolist()
    assert cells["end"] == [10] * 6 + [20] * 6 + [22] * 6
    assert {len(values) for values in specification["datasets"]["layers"][0].values()} == {3 * 2}
    assert len(specification["datasets"]["rho"]) == 2 * 3
    assert len(specification["datasets"]["accuracy"]) == 3 + 1


def test_facts_are_shown(drawn):
    texts = Page(drawn[1]).texts
    for fact in ("3, from step 0 to 20", "6 in 2 layers", "8 examples in 3 batches", "τ = 2 ranks",
                 "1.67 heroes, 1.67 bloats (28% each)",
                 "finished", "to mean"):  # fmt: skip
        assert fact in texts


def test_an_unfinished_run_says_so(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=2, finished=False)
    texts = Page(draw_run(tmp_path / "run.h5").read_text()).texts
    assert "not finished: still training, or stopped early" in texts
    assert "Git commit" not in texts


def test_embedded_json_means_the_same():
    value = {"a": ["<!--", "]]>", "&lt;", "\u2028", "ρ"]}
    text = embedded_json(value)
    assert not set("<>&") & set(text)
    assert json.loads(text) == value
