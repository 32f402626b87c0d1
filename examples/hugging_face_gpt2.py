"""Hugging Face's GPT-2, in a LightningModule of one's own, learns to repeat a sequence; only the callback was added.

    python examples/hugging_face_gpt2.py

Writes gpt2.h5. Nothing is downloaded: the model is built from a small configuration. Needs transformers.
"""

import lightning as L
import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import GPT2Config, GPT2LMHeadModel

from dynamics import GapTrackerCallback, Probe, Schedule, open_run
from dynamics.analysis import rho_table

SEPARATOR = 16


def sequences(n, generator):
    """Return n lines `a b c d e f | a b c d e f`; what comes after the bar is to be predicted."""
    first = torch.randint(SEPARATOR, (n, 6), generator=generator)
    ids = torch.cat([first, torch.full((n, 1), SEPARATOR), first], dim=1)
    labels = ids.clone()
    labels[:, :7] = -100
    # Labels in Hugging Face's convention: aligned with the tokens, shifted by whoever computes the loss.
    return {"input_ids": ids, "labels": labels}


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
        size = {"vocab_size": 17, "n_positions": 16, "n_embd": 64, "n_layer": 2, "n_head": 4}
        self.gpt = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=SEPARATOR, eos_token_id=SEPARATOR))

    def training_step(self, batch, batch_idx):
        return self.gpt(**batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    """Train, track, and read the run file."""
    torch.set_num_threads(1)
    L.seed_everything(0, verbose=False)
    fresh = torch.Generator().manual_seed(1)
    probe = Probe([sequences(32, fresh) for _ in range(2)], shift_labels=True)
    tracker = GapTrackerCallback("gpt2.h5", probe=probe, schedule=Schedule.every(25), overwrite=True)
    trainer = L.Trainer(max_steps=200, callbacks=[tracker], accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(Repeat(), DataLoader(Stream(), batch_size=None))

    with open_run("gpt2.h5") as run:
        table = rho_table(run, score="loss")[["step", "rho", "heroes", "bloats", "chance"]]
        print(table.assign(exact_match=run["exact_match"].mean(1)).to_string(index=False))
    print("draw it: python -m dynamics.plot gpt2.h5 --score loss")


if __name__ == "__main__":
    main()
