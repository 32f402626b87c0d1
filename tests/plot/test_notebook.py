import json
import re

import altair as alt
import pytest

from dynamics import open_run
from dynamics.errors import AnalysisError
from dynamics.plot import ALL, CHARTS, chart, draw_run
from tests.analysis.runs import random_run, random_synergy


@pytest.fixture
def path(tmp_path):
    sets, joint = random_synergy({"heroes": [0, 2], "bloats": [4]}, 6)
    random_run(tmp_path / "run.h5", n_steps=3, methods=("gradient", "gim"), sets=sets, joint=[(20, joint)])
    return tmp_path / "run.h5"


@pytest.mark.parametrize("name", [*CHARTS, ALL])
def test_the_same_chart_as_the_command_draws(path, tmp_path, name):
    made = chart(path, name)
    assert isinstance(made, alt.VConcatChart)
    drawn = draw_run(path, tmp_path / "a.json", chart=name).read_text()
    assert numbered(made.to_dict()) == numbered(json.loads(drawn))


def numbered(specification):
    """Return a specification in which views are named by their order, not by a hash."""
    specification = json.dumps(specification, sort_keys=True)
    names = dict.fromkeys(re.findall(r"view_[0-9a-f]+_\d+", specification))
    for number, name in enumerate(names):
        specification = specification.replace(name, f"view {number}")
    return specification


def test_an_open_run_stays_open_and_the_chart_needs_it_no_more(path):
    with open_run(path) as run:
        made = chart(run, "scatter")
        assert len(run["loss"]) == 3
    assert made.to_dict()["datasets"]["cells"][0]["step"] == [0] * 6 + [10] * 6 + [20] * 6


def test_options_reach_the_chart(path):
    made = chart(str(path), "scatter", score="loss", baseline="zero", threshold=1.0, step=10).to_dict()
    parameters = {one["name"]: one["value"] for one in made["params"] if "value" in one}
    assert parameters == {"roles_by": "loss", "at_snapshot": 1}
    assert set(made["datasets"]["snapshots"][0]["threshold"]) == {1.0}
    mean = chart(path, "scatter").to_dict()
    causal = [one["datasets"]["cells"][0]["causal_loss"] for one in (made, mean)]
    assert causal[0] != causal[1]
    assert '"symlog"' in json.dumps(chart(path, "bump", x="log").to_dict())


def test_a_notebook_can_show_it(path):
    [html] = chart(path, "scatter")._repr_mimebundle_().values()
    assert "at_snapshot" in html


def test_unknown_chart(path):
    with pytest.raises(AnalysisError) as error:
        chart(path, "violin")
    assert str(error.value) == f"the chart must be one of {', '.join(CHARTS)}, all; got 'violin'."
