"""What tests of model families share: a small probe, and a way to keep models in double precision."""

import torch
from torch.overrides import TorchFunctionMode

from dynamics import Probe


class InDouble(TorchFunctionMode):
    """Norms and rotations of many models step down to single precision; this keeps them in double."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        function = torch.Tensor.double if function is torch.Tensor.float else function
        args = [torch.float64 if arg is torch.float32 else arg for arg in args]
        kwargs = {name: torch.float64 if arg is torch.float32 else arg for name, arg in (kwargs or {}).items()}
        return function(*args, **kwargs)


def probe(vocabulary=7, seed=0, sizes=((2, 4), (1, 3))):
    """Return batches of unequal size and length, in which position 1 is no target."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for examples, length in sizes:
        ids, labels = torch.randint(vocabulary, (2, examples, length), generator=generator)
        labels[:, 1] = -100
        batches.append({"input_ids": ids, "labels": labels})
    return Probe(batches)
