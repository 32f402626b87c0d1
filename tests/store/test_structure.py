"""Files that are forged rather than damaged: each is refused for what is wrong with it, before anything is read."""

from __future__ import annotations

import json
import os
import zlib

import h5py
import numpy as np
import pytest

from dynamics.errors import RunFileError
from dynamics.store import check_run, open_run
from dynamics.store import global_heap as heap_module
from dynamics.store.global_heap import heap_damage
from dynamics.store.left_open import checksum
from tests.store.conftest import row, write_run
from tests.store.mutations import digest, headers, heaps
from tests.store.test_foreign_files import answers

LOSS = "snapshots/loss"


@pytest.fixture
def forged(path):
    writer = write_run(path)
    for step in range(3):
        writer.append("snapshots", step, row(step))
    writer.append_metrics(1, {"a": 1.0})
    writer.close()
    return path


def replaced(file, name, make, dims=("snapshots/step", "example")) -> None:
    """Put another array into the place of one, on the same axes."""
    del file[name]
    dataset = make(name)
    for dim, scale in zip(dataset.dims, dims, strict=False):
        dim.attach_scale(file[scale])


def number_array(**options):
    return lambda file: replaced(
        file, LOSS, lambda name: file.create_dataset(name, **{"shape": (3, 2000), "dtype": "f4", **options})
    )


def linked(link, name=LOSS):
    def forge(file):
        del file[name]
        file[name] = link

    return forge


def virtual(file):
    layout = h5py.VirtualLayout((3, 2000), "f4")
    layout[:] = h5py.VirtualSource("/etc/other.h5", "x", (3, 2000))
    replaced(file, LOSS, lambda name: file.create_virtual_dataset(name, layout))


def renamed(old, new):
    return lambda file: file.move(old, new)


def labelled(name, values, dtype=None):
    def forge(file):
        long = file[name].attrs["long_name"]
        for group in ("snapshots", "train"):
            if name in file[group]:
                del file[group][name]
        del file[name]
        file.create_dataset(name, data=values, dtype=dtype).attrs["long_name"] = long

    return forge


def attribute(name, value):
    return lambda file: file.attrs.__setitem__(name, value)


FORGED = {
    "terabytes of rows": (
        lambda file: (
            [file[name].resize(10**12, axis=0) for name in ("snapshots/step", LOSS, "snapshots/flag")]
            and file["snapshots/small"].resize(10**12, axis=0)
        ),
        "'/snapshots/step' claims 8000000000000 bytes, but the file holds 8192 for it",
    ),
    "terabytes that were never written": (
        number_array(shape=(3, 2000), maxshape=(None, 2000), chunks=(1, 2000)),
        "'/snapshots/loss' claims 24000 bytes, but the file holds 0 for it",
    ),
    "a block of rows that was never written": (
        lambda file: (
            [file["snapshots"][name].resize(5, axis=0) for name in ("step", "loss", "flag", "small")]
            and file["snapshots/step"].__setitem__(slice(3, 5), 9)
        ),
        "'/snapshots/flag' lacks 2 of 5 blocks of its rows",
    ),
    "fewer rows than announced": (
        lambda file: file[LOSS].resize(2, axis=0),
        "'/snapshots/loss' has 2 rows, but 3 were announced",
    ),
    "another number of axes": (
        number_array(shape=(3, 2, 1000)),
        "'/snapshots/loss' lies along the axes ('step', 'example', ''); expected 'step' and axes of the file",
    ),
    "no axes": (
        lambda file: [file[LOSS].dims[0].detach_scale(file["snapshots/step"])],
        "'/snapshots/loss' lies along the axes ('', 'example'); expected 'step' and axes of the file",
    ),
    "another length along an axis": (
        number_array(shape=(3, 1999)),
        "'/snapshots/loss' has length 1999 along 'example', which has 2000 labels",
    ),
    "a compound type": (
        number_array(dtype=[("a", "f4"), ("b", "i4")]),
        "'/snapshots/loss' is of type [('a', '<f4'), ('b', '<i4')] and shape (3, 2000), expected an array of numbers "
        "or text",
    ),
    "a reference type": (
        number_array(dtype=h5py.ref_dtype),
        "'/snapshots/loss' is of type object and shape (3, 2000), expected an array of numbers or text",
    ),
    "lists of any length": (
        number_array(dtype=h5py.vlen_dtype(np.int32)),
        "'/snapshots/loss' is of type object and shape (3, 2000), expected an array of numbers or text",
    ),
    "opaque bytes, such as a pickle": (
        number_array(dtype="V16"),
        "'/snapshots/loss' is of type |V16 and shape (3, 2000), expected an array of numbers or text",
    ),
    "text for numbers": (
        number_array(dtype=h5py.string_dtype()),
        "'/snapshots/loss' is of type object and shape (3, 2000), expected numbers",
    ),
    "a link to another file": (
        linked(h5py.ExternalLink("/etc/other.h5", "x")),
        "'loss' in '/snapshots' is a ExternalLink, expected a hard link",
    ),
    "a link to nowhere": (
        linked(h5py.SoftLink("/nowhere")),
        "'loss' in '/snapshots' is a SoftLink, expected a hard link",
    ),
    "a group that is a link": (
        linked(h5py.ExternalLink("/etc/other.h5", "x"), "train"),
        "'train' in '/' is a ExternalLink, expected a hard link",
    ),
    "values in another file": (
        number_array(external=[("/etc/passwd", 0, 24000)]),
        "the values of '/snapshots/loss' lie in other files",
    ),
    "values put together from other files": (virtual, "the values of '/snapshots/loss' lie in other files"),
    "a filter of a plugin's": (
        number_array(chunks=(1, 2000), compression="lzf"),
        "'/snapshots/loss' is stored through filter 32000, which run files do not use",
    ),
    "a group in an array's place": (
        lambda file: [file.__delitem__("snapshots/step"), file.create_group("snapshots/step")],
        "'step' in '/snapshots' is a Group, expected an array",
    ),
    "an array in a group's place": (
        lambda file: [file.__delitem__("train"), file.create_dataset("train", data=np.zeros(3))],
        "'train' is a Dataset, expected a group",
    ),
    "no components": (renamed("component", "gone"), "'/' has no 'component'"),
    "an axis of two dimensions": (
        labelled("baseline", np.zeros((2, 2))),
        "the axis 'baseline' has shape (2, 2), expected one dimension",
    ),
    "a label without end": (
        labelled("baseline", ["mean", "x" * 5000]),
        "a label of '/baseline' has 5000 characters; at most 4096 are read",
    ),
    "a label that is no text": (labelled("baseline", [b"mean", b"\xff"], h5py.string_dtype("ascii", 4)), "utf-8"),
    "another kind of component": (
        labelled("component_kind", ["head", "head", "<script>"]),
        "its components have labels that repeat, are neither head nor mlp, or have no whole numbers",
    ),
    "halves of layers": (
        labelled("component_layer", [0.0, 0.5, 1.0]),
        "its components have labels that repeat, are neither head nor mlp, or have no whole numbers",
    ),
    "steps that fall": (
        lambda file: file["snapshots/step"].__setitem__(1, 7),
        "the steps of 'snapshots' fall, or are negative",
    ),
    "negative steps": (
        lambda file: file["snapshots/step"].__setitem__(0, -1),
        "the steps of 'snapshots' fall, or are negative",
    ),
    "metadata that are no text": (attribute("metadata", np.zeros(3)), "its metadata are no JSON object"),
    "metadata of bytes that are no text": (
        lambda file: file.attrs.create("metadata", b'{"a": "\xff"}', dtype=h5py.string_dtype()),
        "surrogates",
    ),
    "metadata that are deep": (attribute("metadata", '{"a":' + "[" * 30_000), "recursion"),
    "metadata with a number without end": (attribute("metadata", '{"a":' + "1" * 5000 + "}"), "digits"),
    "finished or not": (
        attribute("finished", np.array([1.5, 2])),
        "attribute 'finished' is of type float64 and shape (2,), expected a whole number",
    ),
}


def bomb(file):
    """A block that says it holds a row and unpacks to a thousand of them."""
    packed = zlib.compress(bytes(8_000_000))
    file[LOSS].id.write_direct_chunk((1, 0), packed.ljust(9000, b"\0"))


FORGED["a block that unpacks to more"] = (
    bomb,
    "'/snapshots/loss' has a block of 9000 bytes that should unpack to 8000",
)


def read_all(path) -> None:
    digest(path)


@pytest.mark.parametrize("forge", FORGED)
def test_a_forged_file_is_refused(forged, forge):
    make, wanted = FORGED[forge]
    with h5py.File(forged, "r+", libver="latest") as file:
        make(file)
    with pytest.raises(RunFileError) as error:
        read_all(forged)
    start = f"{forged} is a run file but incomplete or damaged: "
    message = str(error.value)
    assert message.startswith(start)
    if " " in wanted:
        assert message == f"{start}{wanted}."
    else:
        assert wanted in message
    report = check_run(forged)
    assert message in "\n".join(report.problems)


def test_axes_of_a_type_that_hdf5_crashes_on(forged):
    # One flag of the type in an object header, which HDF5 believes with the right checksum.
    data = bytearray(forged.read_bytes())
    for start, begin, end in headers(bytes(data)):
        at = data.find(b"DIMENSION_LIST\0\x19\0\0\0", begin, end)
        if at >= 0:
            data[at + 16] = 5
            data[end : end + 4] = checksum(bytes(data[start:end])).to_bytes(4, "little")
    forged.write_bytes(data)
    # In a process of its own: without the check it dies.
    assert answers([forged])[str(forged)].endswith('expected lists of references."')


def test_a_unit_without_end_is_refused(forged):
    with h5py.File(forged, "r+") as file:
        file[LOSS].attrs["units"] = "x" * 5000
    with open_run(forged) as run, pytest.raises(RunFileError, match="attribute 'units' has 5000 characters; at most"):
        run.snapshots.attributes("loss")


def test_what_another_version_may_add_is_passed_over(forged):
    before = digest(forged)
    with h5py.File(forged, "r+", libver="latest") as file:
        file.create_group("later")["x"] = np.zeros(3)
        file.create_group("snapshots/later")
        file["scalar"] = np.zeros(3)
        file.attrs["later"] = "x"
    assert digest(forged) == before


def test_it_reads_nothing_but_json(forged, monkeypatch):
    import pickle

    monkeypatch.setattr(pickle, "loads", lambda *_: pytest.fail("unpickled"))
    monkeypatch.setattr(pickle, "load", lambda *_: pytest.fail("unpickled"))
    markup = "<script>alert(1)</script>"
    with h5py.File(forged, "r+") as file:
        file.attrs["metadata"] = json.dumps({"pickle": "gASVCgAAAAAAAACMBm9zLmFiY5Qu", "text": markup})
    with open_run(forged) as run:
        assert run.metadata["text"] == markup


def test_arrays_larger_than_memory_are_not_taken_for_damage(forged, monkeypatch):
    def full(self, *_):
        raise MemoryError("Unable to allocate 1. TiB")

    with open_run(forged) as run:
        monkeypatch.setattr(h5py.Dataset, "__getitem__", full)
        with pytest.raises(RunFileError) as error:
            run["loss"]
    assert str(error.value) == (
        f"{forged} holds more than fits into memory (Unable to allocate 1. TiB); read it row by row."
    )


def test_arrays_that_this_machine_cannot_hold_are_not_begun(forged, monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 2, "SC_PAGE_SIZE": 4096}.get)
    with open_run(forged) as run:
        with pytest.raises(RunFileError) as error:
            run["loss"]
        assert str(error.value) == (
            f"{forged} holds more than fits into memory ('/snapshots/loss' takes 24000 bytes, and this machine "
            "has 8192); read it row by row."
        )
        assert len(list(run.snapshots.rows("loss"))) == 3


def test_a_run_that_was_closed_says_so(forged):
    with open_run(forged) as run:
        pass
    for read in (lambda: run["loss"], lambda: run.steps, lambda: run.snapshots.labels("example"), run.refresh):
        with pytest.raises(RunFileError) as error:
            read()
        assert str(error.value) == f"{forged} was closed by this program; open it again to read from it."


def test_a_heap_that_hdf5_would_search_for_ever(forged, monkeypatch):
    data = bytearray(forged.read_bytes())
    assert heap_damage(forged) is None
    start, _ = heaps(bytes(data))[0]
    data[start + 24 : start + 32] = (1 << 40).to_bytes(8, "little")
    forged.write_bytes(data)
    assert heap_damage(forged) == f"the heap of texts at byte {start} is damaged"
    with pytest.raises(RunFileError) as error:
        open_run(forged)
    assert str(error.value) == (
        f"{forged} ({len(data)} bytes) is not an HDF5 file, or is damaged: the heap of texts at byte {start} is "
        "damaged. Expected a run file that GapTrackerCallback wrote."
    )
    # What lies beyond the searched part of a large file is not held against it.
    monkeypatch.setattr(heap_module, "_SEARCHED", start + 20)
    assert heap_damage(forged) is None
