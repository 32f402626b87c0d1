"""Hugging Face's Llama, in a LightningModule of one's own, learns to sort; only the callback was added.

    python examples/hugging_face_llama.py

Writes llama.h5. Nothing is downloaded: the model is built from a small configuration. Needs transformers.
"""

import lightning as L
import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM

from dynamics import GapTrackerCallback, Probe, Schedule, open_run
from dynamics.analysis import rho_table

SEPARATOR = 16


def sequences(n, length, generator):
    """Return n lines `c a b | a b c`; what comes after the bar is to be predicted."""
    first = torch.randint(SEPARATOR, (n, length), generator=generator)
    ids = torch.cat([first, torch.full((n, 1), SEPARATOR), first.sort(dim=1).values], dim=1)
    labels = ids.clone()
    labels[:, : length + 1] = -100
    # Labels in Hugging Face's convention: aligned with the tokens, shifted by whoever computes the loss.
    return {"input_ids": ids, "labels": labels}


class Stream(IterableDataset):
    """Batches without end, of 3 to 6 numbers."""

    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        while True:
            length = int(torch.randint(3, 7, (), generator=generator))
            yield sequences(64, length, generator)


class Sort(L.LightningModule):
    """The module that one has anyway."""

    def __init__(self):
        super().__init__()
        size = {"vocab_size": 17, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
        # Two query heads to each key and value head.
        self.llama = LlamaForCausalLM(LlamaConfig(**size, num_attention_heads=4, num_key_value_heads=2))

    def training_step(self, batch, batch_idx):
        return self.llama(**batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main():
    """Train, track, and read the run file."""
    torch.set_num_threads(1)
    L.seed_everything(0, verbose=False)
    fresh = torch.Generator().manual_seed(1)
    # One number more than in training.
    probe = Probe([sequences(32, 7, fresh) for _ in range(2)], shift_labels=True)
    tracker = GapTrackerCallback("llama.h5", probe=probe, schedule=Schedule.every(50), overwrite=True)
    trainer = L.Trainer(max_steps=400, callbacks=[tracker], accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(Sort(), DataLoader(Stream(), batch_size=None))

    with open_run("llama.h5") as run:
        table = rho_table(run, score="loss")[["step", "rho", "heroes", "bloats", "chance"]]
        print(table.assign(exact_match=run["exact_match"].mean(1)).to_string(index=False))
    print("draw it: python -m dynamics.plot llama.h5 --score loss")


if __name__ == "__main__":
    main()
