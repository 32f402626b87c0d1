import pickle
from collections import Counter
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from dynamics.errors import TaskError
from dynamics.tasks import TASKS, encode
from dynamics.tasks.batches import SPLITS, ContinuingLoader, FiniteBatches, FreshBatches

SORT = TASKS["sort"]


def fresh(lengths=(3, 4, 5), batch_size=4, n_batches=5, seed=0, split="train", **options):
    return FreshBatches(SORT, lengths, batch_size, n_batches, seed, split, **options)


def sequences(batch):
    """Return the sequences x of a batch."""
    length = batch["input_ids"].shape[1] // 2 - 1
    return [tuple(row[1 : 1 + length].tolist()) for row in batch["input_ids"]]


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in ("input_ids", "labels"))


def take(loader, count=None):
    return [sequences(batch) for batch in islice(loader, count)]


@given(st.integers(0, 2**40), st.sampled_from(sorted(SPLITS)), st.integers(0, 10**6), st.booleans())
def test_a_batch_is_a_function_of_seed_split_and_index_alone(seed, split, index, cycle):
    dataset = fresh(seed=seed, split=split, cycle=cycle)
    batch = dataset[index]
    # Neither what was drawn before, nor the global generators, nor the number of batches play a part.
    dataset[index + 1]
    torch.manual_seed(seed % 1000)
    torch.rand(1)
    assert same(dataset[index], batch)
    assert same(fresh(seed=seed, split=split, cycle=cycle, n_batches=1)[index], batch)
    x = torch.tensor(sequences(batch))
    assert x.shape[0] == 4
    assert x.shape[1] in (3, 4, 5)
    assert x.min() >= 1
    assert x.max() <= 99
    assert same(encode(SORT, x), batch)


def test_seeds_splits_and_indices_all_give_other_batches():
    drawn = {
        tuple(sequences(fresh(seed=seed, split=split)[index]))
        for seed in range(3)
        for split in SPLITS
        for index in range(20)
    }
    assert len(drawn) == 3 * len(SPLITS) * 20


def test_every_integer_and_every_length_is_drawn():
    x = [row for index in range(300) for row in sequences(fresh()[index])]
    assert {value for row in x for value in row} == set(range(1, 100))
    counts = Counter(len(row) for row in x)
    assert set(counts) == {3, 4, 5}
    assert min(counts.values()) > 0.25 * len(x)


def test_lengths_can_come_in_turn():
    dataset = fresh(cycle=True, n_batches=7)
    assert len(dataset) == 7
    assert [len(sequences(dataset[index])[0]) for index in range(7)] == [3, 4, 5, 3, 4, 5, 3]


def test_what_is_excluded_is_never_drawn():
    excluded = frozenset((i,) for i in range(1, 99))
    dataset = fresh(lengths=(1, 2), exclude=excluded, cycle=True)
    assert sequences(dataset[0]) == [(99,)] * 4
    # Sequences that are allowed stay what they were.
    assert same(dataset[1], fresh(lengths=(1, 2), cycle=True)[1])


def test_excluding_everything_is_an_error():
    with pytest.raises(TaskError) as caught:
        fresh(lengths=(2, 1), exclude=frozenset((i,) for i in range(1, 100)))
    assert str(caught.value) == (
        "the training set holds every sequence of length 1, so nothing is held out; set a smaller train_examples."
    )


def finite(lengths=(1, 2, 3), batch_size=4, n_examples=31, seed=0, n_batches=None):
    return FiniteBatches(SORT, lengths, batch_size, n_examples, seed, n_batches)


@given(st.integers(1, 9), st.integers(3, 60), st.integers(0, 1000))
def test_a_finite_set_has_distinct_examples_and_every_pass_has_each_once(batch_size, n_examples, seed):
    dataset = finite(batch_size=batch_size, n_examples=n_examples, seed=seed)
    assert len(dataset.sequences) == n_examples
    assert all(1 <= value <= 99 for row in dataset.sequences for value in row)
    counts = Counter(map(len, dataset.sequences))
    assert set(counts) == {1, 2, 3}
    assert max(counts.values()) - min(counts.values()) <= 1
    for number in range(2):
        batches = [dataset[number * len(dataset) + index] for index in range(len(dataset))]
        drawn = [row for batch in batches for row in sequences(batch)]
        assert len(drawn) == n_examples
        assert set(drawn) == dataset.sequences
        assert all(len({len(row) for row in sequences(batch)}) == 1 for batch in batches)
        assert all(len(batch["input_ids"]) <= batch_size for batch in batches)


def test_a_finite_set_is_a_function_of_its_seed_and_the_order_changes_at_each_pass():
    dataset = finite()
    one_pass = [[sequences(dataset[i]) for i in range(n * len(dataset), (n + 1) * len(dataset))] for n in range(3)]
    assert one_pass[0] != one_pass[1] != one_pass[2] != one_pass[0]
    # Not only the order of the batches: which examples share one.
    grouped = [{frozenset(batch) for batch in batches} for batches in one_pass]
    assert grouped[0] != grouped[1] != grouped[2]
    # Jumping about changes nothing.
    assert sequences(dataset[2 * len(dataset) + 1]) == one_pass[2][1]
    assert sequences(dataset[0]) == one_pass[0][0]
    assert sequences(finite()[0]) == one_pass[0][0]
    assert finite(seed=1).sequences != dataset.sequences


def test_a_finite_set_travels_to_another_process():
    dataset = finite()
    dataset[3]
    copy = pickle.loads(pickle.dumps(dataset))
    assert all(same(copy[index], dataset[index]) for index in (0, 3, 40))


def test_an_epoch_of_a_finite_set_can_have_any_number_of_batches():
    assert len(finite(n_batches=2)) == 2
    assert len(finite(lengths=(2, 3), n_examples=10, batch_size=4)) == 4
    assert len(finite(lengths=(2, 3), n_examples=10, batch_size=5)) == 2


def test_more_examples_than_exist_are_an_error():
    assert len(finite(lengths=(1,), n_examples=99).sequences) == 99
    with pytest.raises(TaskError) as caught:
        finite(lengths=(2, 1), n_examples=200)
    assert str(caught.value) == (
        "train_examples=200 asks for 100 distinct sequences of length 1, but only 99 exist; "
        "set a smaller train_examples or longer lengths."
    )


@pytest.mark.parametrize("make", [fresh, finite])
def test_a_loader_goes_on_over_epochs(make):
    expected = [sequences(make()[index]) for index in range(3 * len(make()))]
    loader = ContinuingLoader(make(), batch_size=None)
    assert take(loader) + take(loader) + take(loader) == expected
    assert loader.state_dict() == {"consumed": len(expected)}


@pytest.mark.parametrize("make", [fresh, finite])
@pytest.mark.parametrize("epochs", [0, 1, 2])
@pytest.mark.parametrize("more", [0, 1, 3])
def test_a_loader_goes_on_where_another_stopped(make, epochs, more):
    first, second = (ContinuingLoader(make(), batch_size=None) for _ in range(2))
    taken = [batch for _ in range(epochs) for batch in take(first)] + take(first, more)
    second.load_state_dict(first.state_dict())
    taken += take(second)
    assert len(taken) == (epochs + 1) * len(make()) + more
    assert taken == [sequences(make()[index]) for index in range(len(taken))]


def test_a_loader_with_workers_gives_the_same():
    loader = ContinuingLoader(fresh(), batch_size=None, num_workers=1)
    expected = [sequences(fresh()[index]) for index in range(10)]
    assert take(loader) + take(loader) == expected


@pytest.mark.parametrize("make", [fresh, finite])
@pytest.mark.parametrize("n_batches", [4, 5])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_never_share_a_batch_and_together_leave_none_out(make, n_batches, ranks):
    loaders = []
    for rank in range(ranks):
        dataset = make(n_batches=n_batches)
        sampler = DistributedSampler(dataset, num_replicas=ranks, rank=rank, shuffle=False)
        loaders.append(ContinuingLoader(dataset, batch_size=None, sampler=sampler))
    drawn = []
    for _ in range(2):
        epoch = [take(loader) for loader in loaders]
        assert {len(part) for part in epoch} == {-(-n_batches // ranks)}
        drawn += [batch for turn in zip(*epoch, strict=True) for batch in turn]
    assert drawn == [sequences(make()[index]) for index in range(len(drawn))]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (lambda x: x[:, :-1], "got (2, 2) from 1 to 1."),
        (lambda x: x + 99, "got (2, 3) from 100 to 100."),
        (lambda x: x - 1, "got (2, 3) from 0 to 0."),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(target, message):
    task = SimpleNamespace(name="odd", target=target)
    with pytest.raises(TaskError) as error:
        encode(task, torch.ones(2, 3, dtype=torch.long))
    assert str(error.value) == f"the target of task 'odd' must be (2, 3) integers from 1 to 99; {message}"
