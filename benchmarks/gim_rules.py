"""Which of GIM's rules act where, measured, here and in the public reference package.

``make compare-gim`` installs that package into an environment of its own and runs this file, which writes
``benchmarks/results/gim_*.csv``, the versions beside them, and the tables of ``docs/gim.md``. ``python
benchmarks/gim_rules.py --text-only`` rewrites the page from the tables that are here. Without the reference package
the tables are only printed.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import pandas as pd
from page import RESULTS, ROOT, markdown, rewrite

OURS, REFERENCE = "dynamics", "gim-explain"


# --- measure ---------------------------------------------------------------------------------------------------------


def models(dtype: Any) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Return tiny random models: name, attention (fused or eager), and what builds it."""
    from tests.measurements import gim_families as families

    for family in ("GPT-2", "Llama", "Qwen2", "Gemma 2", "Gemma 3", "GPT-NeoX", "Mixtral"):
        for attention, name in (("sdpa", "fused"), ("eager", "eager")):
            yield family, name, lambda f=family, a=attention: families.hugging_face(f, a, dtype)
        if family == "Gemma 2":
            capped = "Gemma 2, capped scores"
            yield capped, "eager", lambda f=capped: families.hugging_face(f, "eager", dtype)
    for family in ("GPT-2", "Llama"):
        yield f"{family}, TransformerLens", "eager", lambda f=family: families.bridge(f).to(dtype)
    for how, name in (("fused", "fused"), ("weights", "eager")):
        yield (
            "nn.MultiheadAttention",
            name,
            lambda h=how: families.MultiheadDecoder(families.decoder(dtype), h),
        )
    yield "our decoder", "fused", lambda: families.decoder(dtype)


def change(package: Any, build: Callable[[], Any], rule: str) -> str:
    """Return the relative change of the tokens' gradient when one rule is switched on, or why there is none."""
    from gim_packages import NoSuchRule
    from gim_pitfalls import restoring_torch

    from tests.measurements.gim_families import at_tokens, distance

    model = build()
    ordinary = at_tokens(model)
    try:
        with restoring_torch():
            found = at_tokens(model, package.alone(model, rule))
    except NoSuchRule:
        return "no such rule"
    except Exception as error:
        if "found nothing to act on" in str(error):
            return "none there"
        return type(error).__name__
    return f"{distance(found, ordinary):.3g}"


def rules_table(packages: list[Any]) -> pd.DataFrame:
    """Return the changes, a row for each model, dtype and rule, a column for each package."""
    import torch
    from gim_packages import RULES

    rows = []
    for dtype in (torch.float32, torch.float64):
        for name, attention, build in models(dtype):
            for rule in RULES:
                row = {"model": name, "attention": attention, "dtype": str(dtype).split(".")[1], "rule": rule}
                rows.append(row | {package.name: change(package, build, rule) for package in packages})
    return pd.DataFrame(rows)


def agreement_table(packages: list[Any]) -> pd.DataFrame:
    """Return how far apart two ways to compute the same gradient are, all rules on: fused and eager, or by hand."""
    import torch
    from gim_pitfalls import restoring_torch

    from tests.measurements.gim_families import at_tokens, decoder, decoder_by_hand, distance
    from tests.oracles.gim import OFF, Rules

    def gradient(package: Any, build: Callable[[], Any]) -> Any:
        model = build()
        try:
            with restoring_torch():
                return at_tokens(model, None if package is None else package.everything(model))
        except Exception as error:
            return type(error).__name__

    def compared(one: Any, two: Any) -> str:
        failed = [result for result in (one, two) if isinstance(result, str)]
        return failed[0] if failed else f"{distance(one, two):.1g}"

    rows = []
    for dtype in (torch.float32, torch.float64):
        facts = {"dtype": str(dtype).split(".")[1]}
        ways: dict[str, list[Callable[[], Any]]] = {}
        for name, _, build in models(dtype):
            ways.setdefault(name, []).append(build)
        for name, builds in ways.items():
            if len(builds) == 2:
                pairs = {
                    label: compared(*(gradient(package, build) for build in builds))
                    for label, package in [("ordinary", None), *((p.name, p) for p in packages)]
                }
                rows.append({"model": name, "compared": "fused with eager", **facts, **pairs})
        found = {"ordinary": compared(at_tokens(decoder(dtype)), decoder_by_hand(decoder(), OFF))}
        for package in packages:
            found[package.name] = compared(
                gradient(package, lambda d=dtype: decoder(d)), decoder_by_hand(decoder(), Rules())
            )
        rows.append({"model": "our decoder", "compared": "with the rules written out by hand", **facts, **found})
    return pd.DataFrame(rows)


def pitfalls_table(packages: list[Any]) -> pd.DataFrame:
    """Return what was seen in each check, a column for each package."""
    from gim_pitfalls import PITFALLS, run

    return pd.DataFrame(
        [{"case": case, **{p.name: run(check, p) for p in packages}} for case, check in PITFALLS.items()]
    )


# --- the page --------------------------------------------------------------------------------------------------------


def shown(value: str) -> str:
    """Return a change as the page shows it: two digits, 0 only for exactly 0."""
    try:
        number = float(value)
    except ValueError:
        return value
    return "**0**" if number == 0 else f"{number:.2g}"


def text() -> str:
    """Return the tables of the page, from the files beside this one."""
    rules, agreement, pitfalls = (
        pd.read_csv(RESULTS / f"gim_{name}.csv", dtype=str) for name in ("rules", "agreement", "pitfalls")
    )
    facts = json.loads((RESULTS / "gim_versions.json").read_text())
    single = rules[rules["dtype"] == "float32"]
    changes = [["model", "attention", *single["rule"].unique()]]
    for (model, attention), part in single.groupby(["model", "attention"], sort=False):
        cells = [f"{shown(ours)} / {shown(theirs)}" for ours, theirs in part[[OURS, REFERENCE]].to_numpy()]
        changes.append([model, attention, *cells])
    agree = [["model", "compared", "dtype", "ordinary gradient", OURS, REFERENCE]]
    agree += agreement[["model", "compared", "dtype", "ordinary", OURS, REFERENCE]].to_numpy().tolist()
    cases = [["case", OURS, REFERENCE], *pitfalls[["case", OURS, REFERENCE]].to_numpy().tolist()]
    versions = ", ".join(f"{name} {number}" for name, number in facts.items())
    return f"""Measured with {versions}.

**One rule at a time.** Relative change of the gradient at the embedded tokens when one rule is switched on, `{OURS}` /
`{REFERENCE}`, in float32. **0**: it silently did nothing. "none there": the model has no such product, and `{OURS}`
says so with an error. A name of an exception: it was raised. (`{REFERENCE}` tempers every softmax of the process: on
Mixtral with fused attention what changes is the router.)

{markdown(changes)}
**All rules together.** Relative difference between two ways to compute the same gradient, all rules on: it should be
rounding, as that of the ordinary gradient is. (Norms and eager softmaxes of most families work in single precision
whatever the model's dtype.)

{markdown(agree)}
**Cases easily missed.**

{markdown(cases)}"""


def measure() -> None:
    """Measure everything; write it where the reference package is installed."""
    sys.path.insert(0, str(ROOT))
    warnings.simplefilter("ignore")
    import torch
    from gim_packages import Ours, Reference, reference_version

    torch.set_num_threads(1)
    reference = reference_version()
    packages = [Ours, *([Reference] if reference else [])]
    tables = {
        "rules": rules_table(packages),
        "agreement": agreement_table(packages),
        "pitfalls": pitfalls_table(packages),
    }
    for table in tables.values():
        print(table.to_string(index=False), end="\n\n")
    if reference is None:
        raise SystemExit(f"{REFERENCE} is not installed, so nothing was written; make compare-gim installs it.")
    RESULTS.mkdir(exist_ok=True)
    for name, table in tables.items():
        table.to_csv(RESULTS / f"gim_{name}.csv", index=False)
    names = {OURS: "gap-dynamics", REFERENCE: REFERENCE}
    names |= {name: name for name in ("torch", "transformers", "transformer-lens")}
    facts = {name: version(package) for name, package in names.items()}
    (RESULTS / "gim_versions.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text-only", action="store_true", help="rewrite the page from the tables that are here")
    if not parser.parse_args().text_only:
        measure()
    rewrite("tables", text())
