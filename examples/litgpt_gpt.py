"""litgpt's GPT, in a LightningModule of one's own, learns to sort; only the callback was added.

    python examples/litgpt_gpt.py

Writes litgpt.h5. Nothing is downloaded: the model is built from a small configuration. Needs litgpt, which cannot share
an environment with transformers.
"""

import lightning as L
import torch
import torch.nn.functional as F
from litgpt import GPT, Config
from torch.utils.data import DataLoader, IterableDataset

from dynamics import GapTrackerCallback, Probe, Schedule, open_run
from dynamics.analysis import rho_table

SEPARATOR = 16


def sequences(n, length, generator):
    """Return n lines `5 9 2 | 2 5 9`: after the bar, the next token is to be predicted at each position."""
    numbers = torch.randint(SEPARATOR, (n, length), generator=generator)
    line = torch.cat([numbers, torch.full((n, 1), SEPARATOR), numbers.sort(dim=1).values], dim=1)
    labels = line[:, 1:].clone()
    labels[:, :length] = -100
    return {"input_ids": line[:, :-1], "labels": labels}


class Stream(IterableDataset):
    """Batches without end, of three to six numbers."""

    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        while True:
            length = int(torch.randint(3, 7, (), generator=generator))
            yield sequences(64, length, generator)


class Sort(L.LightningModule):
    """The module that one has anyway."""

    def __init__(self):
        super().__init__()
        size = {"n_layer": 2, "n_head": 4, "n_query_groups": 2, "n_embd": 64, "intermediate_size": 128}
        llama = {"norm_class_name": "RMSNorm", "mlp_class_name": "LLaMAMLP", "rotary_percentage": 1.0, "bias": False}
        vocabulary = {"block_size": 16, "vocab_size": 17, "padded_vocab_size": 17}
        self.gpt = GPT(Config(**size, **llama, **vocabulary, parallel_residual=False))

    def training_step(self, batch, batch_idx):
        logits = self.gpt(batch["input_ids"])
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def main():
    """Train, track, and read the run file."""
    torch.set_num_threads(1)
    L.seed_everything(0, verbose=False)
    fresh = torch.Generator().manual_seed(1)
    # Longer than any line in training.
    probe = Probe([sequences(32, 7, fresh) for _ in range(2)])
    tracker = GapTrackerCallback("litgpt.h5", probe=probe, schedule=Schedule.every(50), overwrite=True)
    trainer = L.Trainer(max_steps=200, callbacks=[tracker], accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(Sort(), DataLoader(Stream(), batch_size=None))

    with open_run("litgpt.h5") as run:
        table = rho_table(run, score="loss")[["step", "rho", "heroes", "bloats", "chance"]]
        print(table.assign(exact_match=run["exact_match"].mean(1)).to_string(index=False))
    print("draw it: python -m dynamics.plot litgpt.h5 --score loss")


if __name__ == "__main__":
    main()
