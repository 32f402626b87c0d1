"""What a backward pass under GIM costs beside the ordinary one of the same model; fused attention in the forward.

``python benchmarks/gim_cost.py`` prints a table and writes ``benchmarks/results/gim_cost.json``. CPU time of one
thread; in every round each model runs once without and once with the rules, in turn; ratios of medians. The forward
pass under GIM includes opening and closing the context. Ratios, not times: times are those of one machine.
``--text-only`` rewrites the page from the results that are here.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from page import RESULTS, markdown, rewrite
from torch import Tensor, nn

from dynamics import gim_backward
from dynamics.model import Transformer

FILE = RESULTS / "gim_cost.json"
BAR = 1.5
"""What a backward pass may cost at most, times the ordinary one."""

HUGGING_FACE = {
    "tiny": {"width": 64, "layers": 2, "heads": 4, "hidden": 128, "vocabulary": 128, "examples": 8, "length": 16},
    "medium": {"width": 256, "layers": 4, "heads": 8, "hidden": 1024, "vocabulary": 512, "examples": 8, "length": 128},
}

Case = tuple[str, dict[str, Any], nn.Module, Callable[[nn.Module], Tensor]]


def decoder_case(name: str, width: int, layers: int, length: int, examples: int) -> Case:
    """Return our decoder and its loss on a batch like one of the probe's."""
    sizes = {"n_layers": layers, "n_heads": 4, "d_model": width, "d_ff": 4 * width, "vocab_size": 103}
    # A sorting example is the numbers, a separator, and the numbers in order.
    positions = 2 * length + 1
    ids = torch.randint(103, (examples, positions))

    def loss(model: nn.Module) -> Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    facts = {**sizes, "examples": examples, "positions": positions}
    return f"our decoder, {name}, {length} numbers", facts, Transformer(**sizes).eval(), loss


def hugging_face_cases(name: str, sizes: dict[str, int]) -> Iterator[Case]:
    """Return random GPT-2, Llama and Gemma 2 of a size, and their losses on random tokens."""
    import transformers as hf

    width, layers, heads, hidden = (sizes[key] for key in ("width", "layers", "heads", "hidden"))
    common = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "intermediate_size": hidden,
        "head_dim": width // heads,
        "pad_token_id": 0,
    }
    gpt2 = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_inner": hidden, "n_positions": 256}
    tokens = {"vocab_size": sizes["vocabulary"], "bos_token_id": 1, "eos_token_id": 2}
    kinds = {
        "GPT-2": (hf.GPT2LMHeadModel, hf.GPT2Config(**gpt2, **tokens)),
        "Llama": (hf.LlamaForCausalLM, hf.LlamaConfig(**common, **tokens)),
        # Fused attention cannot cap the scores, so transformers takes it only where the cap is off.
        "Gemma 2": (hf.Gemma2ForCausalLM, hf.Gemma2Config(**common, **tokens, attn_logit_softcapping=None)),
    }
    ids = torch.randint(1, sizes["vocabulary"], (sizes["examples"], sizes["length"]))

    def loss(model: nn.Module) -> Tensor:
        logits = model(input_ids=ids, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten())

    for kind, (build, config) in kinds.items():
        model = build(config).eval()
        model.config._attn_implementation = "sdpa"
        yield f"{kind}, {name}", dict(sizes), model, loss


def cases() -> Iterator[Case]:
    """Return all models; those of Hugging Face only where transformers is installed."""
    yield decoder_case("configs/demo.yaml", 64, 4, 8, 16)
    for length in (8, 11):
        yield decoder_case("configs/sort.yaml", 128, 4, length, 32)
    if not find_spec("transformers"):
        return
    for name, sizes in HUGGING_FACE.items():
        yield from hugging_face_cases(name, sizes)


def measure(model: nn.Module, loss: Callable[[nn.Module], Tensor], rounds: int) -> dict[str, float]:
    """Return the medians of CPU seconds, and the ratios of GIM to ordinary."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    embedding = next(m for m in model.modules() if isinstance(m, nn.Embedding))
    tokens: list[Tensor] = []
    handle = embedding.register_forward_hook(lambda module, args, output: tokens.append(output))
    times: dict[str, list[float]] = {}

    def once(method: str, keep: bool) -> None:
        # At the tokens' embeddings alone no weight has a gradient, as in attribution; then at all parameters.
        marks = []
        tokens.clear()
        marks.append(time.process_time())
        with gim_backward(model) if method == "gim" else nullcontext():
            value = loss(model)
        marks.append(time.process_time())
        torch.autograd.grad(value, tokens[:1], retain_graph=True)
        marks.append(time.process_time())
        torch.autograd.grad(value, parameters)
        marks.append(time.process_time())
        if keep:
            for part, start, stop in zip(("forward", "at_tokens", "backward"), marks, marks[1:], strict=False):
                times.setdefault(f"{method}_{part}", []).append(stop - start)

    for index in range(-2, rounds):
        order = ("ordinary", "gim") if index % 2 else ("gim", "ordinary")
        for method in order:
            once(method, keep=index >= 0)
    handle.remove()
    for method in ("ordinary", "gim"):
        pairs = zip(times[f"{method}_forward"], times[f"{method}_backward"], strict=True)
        times[f"{method}_whole"] = [forward + backward for forward, backward in pairs]
    medians = {key: statistics.median(values) for key, values in times.items()}
    parts = ("backward", "at_tokens", "forward", "whole")
    return {f"{part}_ratio": medians[f"gim_{part}"] / medians[f"ordinary_{part}"] for part in parts} | {
        f"{key}_seconds": value for key, value in medians.items()
    }


def cpu_model() -> str:
    """Return the processor's name."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def measure_all(rounds: int) -> None:
    """Measure all models, print a line for each, write the file."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    print(f"{'GIM / ordinary':44} {'backward':>9} {'at tokens':>10} {'forward':>8} {'whole':>6}   ordinary backward")
    for name, sizes, model, loss in cases():
        found = measure(model, loss, rounds)
        rows.append({"model": name, "sizes": sizes, **{key: round(value, 6) for key, value in found.items()}})
        print(
            f"{name:44} {found['backward_ratio']:9.2f} {found['at_tokens_ratio']:10.2f} {found['forward_ratio']:8.2f} "
            f"{found['whole_ratio']:6.2f}   {1e3 * found['ordinary_backward_seconds']:.1f} ms",
            flush=True,
        )
    facts = {
        "what": "medians of CPU seconds and their ratios, GIM to ordinary; backward: gradients at all parameters; "
        "at_tokens: at the tokens' embeddings alone; whole: forward and backward",
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "processor": cpu_model(),
        "bar": BAR,
    }
    if not find_spec("transformers"):
        raise SystemExit("transformers is not installed, so nothing was written; make bench installs it.")
    RESULTS.mkdir(exist_ok=True)
    FILE.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    above = [f"{row['model']} ({row['backward_ratio']:.2f})" for row in rows if row["backward_ratio"] > BAR]
    print(f"backward above {BAR} x: {', '.join(above) or 'none'}")
    print(f"wrote {FILE}")


def text() -> str:
    """Return the table of the page."""
    facts = json.loads(FILE.read_text())
    rows = [["model", "backward", "backward to the tokens alone", "forward", "both", "ordinary backward"]]
    for row in facts["rows"]:
        ratios = [f"{row[f'{part}_ratio']:.2f}" for part in ("backward", "at_tokens", "forward", "whole")]
        rows.append([row["model"], *ratios, f"{1e3 * row['ordinary_backward_seconds']:.1f} ms"])
    above = [row["model"] for row in facts["rows"] if row["backward_ratio"] > facts["bar"]]
    return f"""CPU time, GIM to ordinary, fused attention in the forward pass; medians of {facts["rounds"]} rounds,
one thread, torch {facts["torch"]}, {facts["processor"]}.

{markdown(rows)}
Backward above {facts["bar"]}: {", ".join(above) or "none"}.
"""


def main() -> None:
    """Measure and write, or write alone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="rounds whose medians are taken (default: 15)")
    parser.add_argument("--text-only", action="store_true", help="rewrite the page from the results that are here")
    options = parser.parse_args()
    if not options.text_only:
        measure_all(options.rounds)
    rewrite("cost", text())


if __name__ == "__main__":
    main()
