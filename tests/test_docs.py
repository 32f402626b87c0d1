"""What the documents show runs as written, and what they state follows from the tables beside them."""

from __future__ import annotations

import csv
import os
import re
import runpy
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from dynamics import Probe, find_components, open_run, take_snapshot, train
from dynamics.model import Transformer
from dynamics.tasks import SequenceDataModule
from tests.cases import REDUNDANT
from tests.components.agreement import agree, same
from tests.measurements.gim_models import randomised
from tests.oracles.families import FamilyOracle, layer_norm

ROOT = Path(__file__).parents[1]


def code(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_the_readmes_example_and_its_reading_run_as_written(tmp_path):
    # One process, as a reader would go on in one notebook.
    (tmp_path / "example.py").write_text("".join(code("README.md")))
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    with open_run(tmp_path / "my_run.h5") as run:
        assert run.steps.tolist() == [0, 100, 200, 300]
        assert len(run.components) == 10
        assert run["loss"][-1].mean() < run["loss"][0].mean()


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        query, key, value = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.c_attn(x).split(8, dim=-1))
        z = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(z.transpose(1, 2).flatten(-2))


class _MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.c_proj, self.gelu = nn.Linear(8, 16), nn.Linear(16, 8), nn.GELU()

    def forward(self, x):
        return self.c_proj(self.gelu(self.c_fc(x)))


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(8), _Attention(), nn.LayerNorm(8), _MLP()

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(11, 8),
                "wpe": nn.Embedding(6, 8),
                "h": nn.ModuleList([_Block(), _Block()]),
                "ln_f": nn.LayerNorm(8),
            }
        )
        self.lm_head = nn.Linear(8, 11, bias=False)

    def forward(self, idx):
        x = self.transformer["wte"](idx) + self.transformer["wpe"](torch.arange(idx.shape[1]))
        for block in self.transformer["h"]:
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x))


def _norm(norm: nn.LayerNorm):
    return layer_norm(norm.weight.detach(), norm.bias.detach(), norm.eps)


def _head(attention: _Attention, a: int, b: int) -> dict[str, torch.Tensor]:
    fused, bias = attention.c_attn.weight.detach(), attention.c_attn.bias.detach()
    return {
        "query": fused[a:b].clone(),
        "query_bias": bias[a:b],
        "key": fused[8 + a : 8 + b].clone(),
        "key_bias": bias[8 + a : 8 + b],
        "value": fused[16 + a : 16 + b].clone(),
        "value_bias": bias[16 + a : 16 + b],
        "output": attention.c_proj.weight.detach()[:, a:b].clone(),
    }


def _explicit(model: NanoGPT, rules):
    """Return the model as an explicit forward pass, its heads cut by hand."""
    layers = [
        {
            "heads": [_head(block.attn, 0, 4), _head(block.attn, 4, 8)],
            "output_bias": block.attn.c_proj.bias.detach(),
            "attention_norm": _norm(block.ln_1),
            "mlp_norm": _norm(block.ln_2),
            "mlp": {
                "input": block.mlp.c_fc.weight.detach().clone(),
                "input_bias": block.mlp.c_fc.bias.detach(),
                "output": block.mlp.c_proj.weight.detach().clone(),
                "output_bias": block.mlp.c_proj.bias.detach(),
            },
        }
        for block in model.transformer["h"]
    ]
    embedding, positions, unembedding = (
        module.weight.detach() for module in (model.transformer["wte"], model.transformer["wpe"], model.lm_head)
    )
    final = _norm(model.transformer["ln_f"])
    return FamilyOracle(layers, embedding, unembedding, final, positions=positions, rules=rules)


def test_the_how_to_on_component_maps_measures_a_nanogpt_style_model_rightly():
    build, objective = code("docs/how-to/component-map.md")
    names = {"n_layer": 2, "n_head": 2, "n_embd": 8}
    exec(build, names)
    model, components = randomised(NanoGPT()), names["components"]
    assert components.labels == ("L0H0", "L0H1", "L0MLP", "L1H0", "L1H1", "L1MLP")
    ids, labels = torch.randint(11, (2, 3, 5), generator=torch.Generator().manual_seed(0))
    probe = Probe([{"input_ids": ids[:2], "labels": labels[:2]}, {"input_ids": ids[2:, :4], "labels": labels[2:, :4]}])
    agree(model, probe, lambda rules: _explicit(model, rules), components)
    # Inside a LightningModule, as the page says: paths start there, and the root names the transformer.
    exec(
        build.replace('f"transformer.', 'f"model.transformer.').replace("p(components)", 'p(components, root="model")'),
        names,
    )
    inside = nn.ModuleDict({"model": model})
    assert names["components"].network(inside) is model
    same(take_snapshot(inside, probe, names["components"]), take_snapshot(model, probe, components))
    ours = probe.batches
    batches = [{"x": b["input_ids"], "y": b["labels"].clone().index_fill(1, torch.tensor([0]), -1)} for b in ours]
    names |= {"torch": torch, "Probe": Probe, "batches": batches}
    exec(objective, names)
    model.register_forward_hook(lambda module, args, output: (output, None))
    model.forward = lambda x, y, forward=model.forward: forward(x)
    masked = Probe([{**b, "labels": b["labels"].clone().index_fill(1, torch.tensor([0]), -100)} for b in ours])
    for theirs, batch in zip(batches, masked.batches, strict=True):
        found = names["probe"].objective(inside, theirs)
        expected = masked.objective(lambda ids: model(ids, None)[0], batch)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_the_how_to_on_tasks_runs_as_written():
    names = {"SequenceDataModule": SequenceDataModule}
    exec(code("docs/how-to/task.md")[0], names)
    batch = names["data"].train_dataloader().dataset[0]
    assert batch["input_ids"].shape[0] == 64


def test_the_how_to_on_feature_attribution_runs_as_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = Transformer(n_layers=1, d_model=16, d_ff=16)
    names = {"model": model, "data": SequenceDataModule("sort", ood_lengths=(8,), probe_batches=1, probe_batch_size=2)}
    exec("".join(code("docs/how-to/feature-attribution.md")), names)
    assert "GIM" in (tmp_path / "tokens.html").read_text()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["gradient", "ig", "gim", "random"]
    assert names["attribution"].target == "logit of token 5"


def test_the_matrix_of_pairs_is_drawn_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"model": REDUNDANT.model(), "probe": REDUNDANT.probe()}
    exec("".join(code("docs/methods.md")), names)
    cells = {(cell["first"], cell["second"]): cell for cell in names["chart"].to_dict()["datasets"]["pairs"]}
    first, second = names["pairs"].components.labels[:2]
    for pair in ((first, second), (second, first)):
        # Either of the two suffices.
        assert [cells[pair][name] for name in ("first_c", "second_c", "joint_c", "interaction")] == [0, 0, 1, 1]
    assert first in (tmp_path / "pairs.html").read_text()


def test_the_findings_are_those_of_the_tables(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs/results"))
    make = runpy.run_path(str(ROOT / "docs/results/make.py"))
    for page, findings in (("README.md", make["text"]()), ("docs/findings.md", make["details"]())):
        assert make["BEGIN"] + findings + make["END"] in (ROOT / page).read_text()


def test_the_excerpt_of_a_report_is_that_of_the_report(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs/results"))
    make = runpy.run_path(str(ROOT / "docs/results/make.py"))
    excerpt = make["excerpt"]()
    assert excerpt.count("\n>\n") == 2
    assert make["REPORT"] + excerpt + make["REPORT_END"] in (ROOT / "README.md").read_text()


def test_what_is_beyond_chance_is_counted_right():
    """Snapshot by snapshot from the tables, for the task of which the README says most."""
    results = ROOT / "docs/results"

    def rows(name):
        with (results / name).open() as file:
            return [row for row in csv.DictReader(file) if row.get("score", "exact_match") == "exact_match"]

    inside = {row["step"] for row in rows("sort_steps.csv") if 0.2 <= float(row["ood_exact_match"]) <= 0.75}
    counts = [row for row in rows("sort_chance.csv") if row["step"] in inside]
    agree = [
        sum(
            row["step"] in inside
            and row["measure"] == measure
            and float(row["p_value"]) < 0.05
            and float(row["rho"]) > 0
            for row in rows("sort_depth.csv")
        )
        for measure in ("all", "within layers")
    ]
    more = [
        sum(float(row[f"{role}_count"]) > float(row[f"{role}_high"]) for row in counts) for role in ("hero", "bloat")
    ]
    less = [
        sum(float(row[f"{role}_count"]) < float(row[f"{role}_low"]) for row in counts) for role in ("hero", "bloat")
    ]
    share = statistics.median(float(row["depth_share"]) for row in counts)
    text = " ".join((ROOT / "README.md").read_text().split())
    assert (
        f"Sorting: G agrees with C beyond chance at {agree[0]} of {len(inside)} snapshots, and inside layers at "
        f"{agree[1]}. There are more heroes than luck gives at {more[0]} snapshots and fewer at {less[0]}; more bloats "
        f"at {more[1]}, fewer at {less[1]}. Layer and kind alone make {share:.0%} of the gaps"
    ) in text


@pytest.mark.parametrize(("benchmark", "name"), [("gim_rules", "tables"), ("gim_cost", "cost")])
def test_the_page_on_gim_holds_what_was_measured(monkeypatch, benchmark, name):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    measured = runpy.run_path(str(ROOT / f"benchmarks/{benchmark}.py"))
    page = runpy.run_path(str(ROOT / "benchmarks/page.py"))
    assert page["between_markers"](name, measured["text"]()) in (ROOT / "docs/gim.md").read_text()


def test_links_lead_to_files():
    for document in ["README.md", "CONTRIBUTING.md", *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]:
        for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / document).read_text()):
            assert (ROOT / document).parent.joinpath(link).exists(), f"{document}: {link}"


# LightningCLI calls methods of jsonargparse that are about to be renamed.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("config", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_configurations_are_accepted(config, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train", "fit", "--config", str(config), "--print_config"])
    with pytest.raises(SystemExit) as done:
        train.main()
    assert done.value.code == 0
    assert f"name: {config.stem}" in capsys.readouterr().out


def test_the_map_of_another_model_is_refused_by_name():
    with pytest.raises(Exception, match=r"docs/how-to/component-map\.md"):
        find_components(NanoGPT())
    assert (ROOT / "docs/how-to/component-map.md").exists()
