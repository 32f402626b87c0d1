import torch

from dynamics.tasks import encode
from dynamics.tasks.sort import Sort


def test_a_batch_written_by_hand():
    batch = encode(Sort(), torch.tensor([[3, 1, 2], [99, 5, 5]]))
    assert batch["input_ids"].tolist() == [[100, 3, 1, 2, 101, 1, 2, 3], [100, 99, 5, 5, 101, 5, 5, 99]]
    assert batch["labels"].tolist() == [
        [-100, -100, -100, -100, 1, 2, 3, 102],
        [-100, -100, -100, -100, 5, 5, 99, 102],
    ]
