import re
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np
import pytest

from dynamics.errors import PlotError
from dynamics.plot import draw_tokens
from dynamics.plot.palette import INK
from dynamics.plot.token_text import OPPOSES, SUPPORTS, breaks_line, cells, number, pieces, shade, visible
from tests.plot.pages import Page

HOSTILE = "</span><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\"'"
SVG = "{http://www.w3.org/2000/svg}"


@dataclass
class Scores:
    """What a picture needs of an attribution."""

    method: str = "gim"
    scores: np.ndarray = None
    mask: np.ndarray = None
    target: str = "log p of token 7"
    baseline: str = "zero"

    def __post_init__(self):
        self.scores = np.array([[9.0, 9.0, 9.0], [0.5, -0.25, 0.0]]) if self.scores is None else self.scores
        self.mask = np.ones(self.scores.shape, bool) if self.mask is None else self.mask


def message(*args, **options):
    with pytest.raises(PlotError) as caught:
        draw_tokens(*args, **options)
    return str(caught.value)


def page(attributions, tokens, folder, **options):
    return Page(draw_tokens(attributions, tokens, folder / "tokens.html", **options).read_text(encoding="utf-8"))


def shades(page):
    return [re.match("background:(#[0-9a-f]{6})", a["style"]).group(1) for tag, a in page.elements if "style" in a]


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("score", [-1, -0.9, -0.5, 0, 0.3, 0.7, 1])
def test_text_can_be_read_on_every_shade(score):
    contrast = (luminance(shade(score, 1.0)) + 0.05) / (luminance(INK) + 0.05)
    assert contrast >= 4.5


def test_shades_are_linear_in_the_score():
    assert [shade(score, 2.0) for score in (2.0, -2.0, 0.0, 5.0)] == [SUPPORTS, OPPOSES, "#ffffff", SUPPORTS]
    half = [(255 + int(SUPPORTS[i : i + 2], 16)) / 2 for i in (1, 3, 5)]
    assert [int(shade(1.0, 2.0)[i : i + 2], 16) for i in (1, 3, 5)] == pytest.approx(half, abs=1)
    assert shade(0.0, 0.0) == "#ffffff"


def test_invisible_characters_are_visible():
    assert visible(" the\n\t") == "␣the⏎⇥"
    assert visible("") == "∅"
    assert visible("a\u202eb\u200b\x00\ud800\u2028\xa0") == "a\\u202eb\\u200b\\u0000\\ud800\\u2028\\u00a0"
    assert visible("日é") == "日é"
    assert cells("日e\u0301") == 3
    assert pieces("␣␣a⏎") == [("␣␣", True), ("a", False), ("⏎", True)]
    assert breaks_line("x\n")
    assert not breaks_line("x")
    assert number(-0.012345) == "−0.0123"


def test_the_page_shows_each_row_with_its_scale(tmp_path):
    rows = [Scores("gradient"), Scores("ig"), Scores("gim", np.array([[0, 0, 0], [1e-3, 2e-3, -1e-3]]))]
    drawn = page(rows, ["41", " 7", "\n"], tmp_path, example=1)
    texts = "".join(drawn.texts)
    for text in ("to: log p of token 7", "gradient × input", "integrated gradients", "GIM", "supports", "opposes",
                 "full colour = ±0.5, sum = 0.25", "full colour = ±0.002, sum = 0.002"):  # fmt: skip
        assert text in texts
    scores = np.array([[0.5, -0.25, 0]] * 2 + [[1e-3, 2e-3, -1e-3]])
    assert shades(drawn) == [shade(s, abs(row).max()) for row in scores for s in row]
    assert [a["title"] for tag, a in drawn.elements if "title" in a][:3] == ["0.5", "−0.25", "0"]
    assert drawn.texts.count("␣") == drawn.texts.count("⏎") == 3
    shared = page(rows, ["41", " 7", "\n"], tmp_path, example=1, shared_scale=True)
    assert shades(shared) == [shade(s, 0.5) for row in scores for s in row]


def test_hostile_tokens_stay_text_and_the_page_loads_nothing(tmp_path):
    drawn = page({HOSTILE: [1.0, -1.0]}, [HOSTILE, "x"], tmp_path, title=HOSTILE, target=HOSTILE)
    tags = {tag for tag, _ in drawn.elements}
    assert tags & {"script", "img", "link", "iframe", "object", "embed", "base", "form"} == set()
    for _, attributes in drawn.elements:
        assert not {"src", "href"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert drawn.policy == "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    text = (tmp_path / "tokens.html").read_text()
    assert "url(" not in text
    assert drawn.texts.count(HOSTILE) == 3
    svg = draw_tokens({HOSTILE: [1.0]}, [HOSTILE], tmp_path / "tokens.svg", title=HOSTILE, target=HOSTILE)
    root = ElementTree.fromstring(svg.read_text(encoding="utf-8"))
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {
        "svg", "defs", "linearGradient", "stop", "rect", "line", "text",
    }  # fmt: skip


def test_the_svg_has_a_box_for_each_token_and_wraps(tmp_path):
    tokens = [f" token{i}" for i in range(40)] + ["x\n", "y", "z" * 300]
    scores = np.linspace(-1, 1, len(tokens))
    svg = draw_tokens({"GIM": scores}, tokens, tmp_path / "tokens.svg")
    root = ElementTree.fromstring(svg.read_text(encoding="utf-8"))
    boxes = [rect for rect in root.iter(f"{SVG}rect") if rect.get("height") == "24"]
    # The last token is longer than a line and goes over several.
    assert [box.get("fill") for box in boxes][:42] == [shade(score, 1.0) for score in scores[:42]]
    assert {box.get("fill") for box in boxes[42:]} == {shade(1.0, 1.0)}
    width, height = float(root.get("width")), float(root.get("height"))
    for box in boxes:
        assert float(box.get("x")) + float(box.get("width")) <= width
        assert float(box.get("y")) + 24 < height
    y = [float(box.get("y")) for box in boxes]
    assert y == sorted(y)
    assert y[41] > y[40]
    assert "".join(text.text for text in root.iter(f"{SVG}text") if text.text.startswith("z")) == "z" * 300


def test_a_png_is_a_picture(tmp_path):
    path = draw_tokens(Scores(), ["a", "b", "c"], tmp_path / "tokens.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_padding_is_left_out(tmp_path):
    mask = np.array([[True, True, False]])
    attribution = Scores(scores=np.array([[1.0, -1.0, 0.0]]), mask=mask)
    for tokens in (["a", "b", "<pad>"], ["a", "b"]):
        drawn = page(attribution, tokens, tmp_path)
        assert shades(drawn) == [SUPPORTS, OPPOSES]
        assert "<pad>" not in drawn.texts
    # Also in every row of several.
    assert len(shades(page([attribution, Scores("ig", attribution.scores, mask)], ["a", "b", "<pad>"], tmp_path))) == 4


def test_errors_say_what_came_and_what_to_do(tmp_path):
    out = tmp_path / "tokens.html"
    assert message(Scores(), ["a"], tmp_path / "tokens.pdf") == (
        "the output must end in one of .html, .png, .svg; got 'tokens.pdf'."
    )
    assert message(Scores(), "abc", out) == (
        "tokens must be a sequence of texts, one for each token; got a single text."
    )
    assert message(Scores(), [1, 2, 3], out) == (
        "tokens must be texts, one for each token; decode the ids first, one by one."
    )
    assert message(Scores(), ["a"], out) == "GIM: there are 1 tokens, but the scores are (3,)."
    assert message({}, ["a"], out) == "a picture of tokens needs at least one row of scores; got none."
    assert message({"a": []}, [], out) == "a picture of tokens needs at least one token; got none."
    assert message({"a": [np.nan]}, ["a"], out) == "a: the scores hold NaN or infinity, so they have no colour."
    assert message(Scores(), ["a"] * 3, out, example=2) == ("the attribution has 2 examples, so there is no example 2.")
    assert message([Scores(), Scores(target="p")], ["a"] * 3, out) == (
        "the rows of one picture must explain one target; got log p of token 7, p."
    )
    missing = tmp_path / "missing" / "tokens.html"
    assert message(Scores(), ["a"] * 3, missing) == (
        f"the picture {missing} cannot be written: No such file or directory."
    )
