"""A TransformerLens bridge, in one's own LightningModule, learns to repeat a sequence; only the callback was added.

    python examples/transformer_lens_bridge.py

Writes bridge.h5. Nothing is downloaded: the model is built from a small configuration. Needs transformer-lens.
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

from dynamics import GapTrackerCallback, Probe, Schedule, open_run
from dynamics.analysis import rho_table

SEPARATOR = 16


def sequences(n, generator):
    """Return n lines `a b c d e f | a b c d e f`: after the bar, the next token is to be predicted at each position."""
    first = torch.randint(SEPARATOR, (n, 6), generator=generator)
    line = torch.cat([first, torch.full((n, 1), SEPARATOR), first], dim=1)
    labels = line[:, 1:].clone()
    labels[:, :6] = -100
    return {"input_ids": line[:, :-1], "labels": labels}


class Stream(IterableDataset):
    """Batches without end."""

    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        while True:
            yield sequences(64, generator)


class Repeat(L.LightningModule):
    """The module that one has anyway."""

    def __init__(self):
        super().__init__()
        size = {"d_model": 64, "d_head": 16, "n_heads": 4, "n_layers": 2, "d_mlp": 256, "n_ctx": 16, "d_vocab": 17}
        config = TransformerBridgeConfig(**size, act_fn="gelu", normalization_type="LN", seed=0)
        self.bridge = TransformerBridge.boot_native(config)

    def training_step(self, batch, batch_idx):
        logits = self.bridge(batch["input_ids"])
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-4)


def main():
    """Train, track, and read the run file."""
    torch.set_num_threads(1)
    L.seed_everything(0, verbose=False)
    fresh = torch.Generator().manual_seed(1)
    probe = Probe([sequences(32, fresh) for _ in range(2)])
    tracker = GapTrackerCallback("bridge.h5", probe=probe, schedule=Schedule.every(25), overwrite=True)
    trainer = L.Trainer(max_steps=200, callbacks=[tracker], accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(Repeat(), DataLoader(Stream(), batch_size=None))

    with open_run("bridge.h5") as run:
        table = rho_table(run, score="loss")[["step", "rho", "heroes", "bloats", "chance"]]
        print(table.assign(exact_match=run["exact_match"].mean(1)).to_string(index=False))
    print("draw it: python -m dynamics.plot bridge.h5 --score loss")


if __name__ == "__main__":
    main()
