"""CIFAR in both published formats, and malicious pickles."""

import io
import pickle
import pickletools
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from data.pictures import load, put
from fedcopl.config import Data
from fedcopl.data.official import _CIFAR_FORMATS, read_cifar
from fedcopl.errors import DataError

SIZES = (4, 3)  # images in each file, instead of 10,000
TEN, HUNDRED = _CIFAR_FORMATS["cifar10"], _CIFAR_FORMATS["cifar100"]
TINY = {name: [replace(form, sizes=SIZES) for form in forms] for name, forms in _CIFAR_FORMATS.items()}


def batch(seed: int, size: int, classes: int) -> tuple[np.ndarray, list[int]]:
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (size, 3072), dtype=np.uint8), random.integers(0, classes, size).tolist()


def python_2_pickle(value) -> bytes:
    """Protocol 2 as Python 2 wrote it: byte strings are strings, and NumPy's modules have their old names."""
    out = io.BytesIO()
    out.write(b"\x80\x02")
    _write(out, value)
    out.write(b".")
    pickletools.dis(out.getvalue(), out=io.StringIO())  # checks that the pickle is complete
    return out.getvalue()


def _write(out, value):
    match value:
        case bytes():
            out.write(b"T" + len(value).to_bytes(4, "little") + value)
        case int():
            out.write(b"J" + value.to_bytes(4, "little"))
        case list():
            out.write(b"](")
            for item in value:
                _write(out, item)
            out.write(b"e")
        case dict():
            out.write(b"}(")
            for key, item in value.items():
                _write(out, key)
                _write(out, item)
            out.write(b"u")
        case np.ndarray():
            out.write(b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01(")
            for length in value.shape:
                _write(out, length)
            out.write(
                b"tcnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
            )
            _write(out, value.tobytes())
            out.write(b"tb")


def python_3_pickle(value) -> bytes:
    return pickle.dumps(value, protocol=2)


def write_python(root, form, classes, key, write=python_2_pickle):
    for files, size, shift in ((form.train, SIZES[0], 0), (form.test, SIZES[1], 50)):
        for number, file in enumerate(files):
            data, labels = batch(number + shift, size, classes)
            content = {b"data": data, key: labels, b"batch_label": b"a batch", b"filenames": [b"x.png"] * size}
            put(root, f"{form.folder}/{file}", write(content))
    return root


def write_binary(root, form, classes):
    for files, size, shift in ((form.train, SIZES[0], 0), (form.test, SIZES[1], 50)):
        for number, file in enumerate(files):
            data, labels = batch(number + shift, size, classes)
            coarse = [np.zeros(size, np.uint8)] * (form.labels - 1)
            rows = np.column_stack([*coarse, np.array(labels, np.uint8), data])
            put(root, f"{form.folder}/{file}", rows.tobytes())
    return root


def ten(path):
    with patch.dict(_CIFAR_FORMATS, TINY):
        return read_cifar(Data(source="cifar10", path=str(path)))


def hundred(path):
    with patch.dict(_CIFAR_FORMATS, TINY):
        return read_cifar(Data(source="cifar100", path=str(path)))


@pytest.fixture(params=["python 2", "python 3", "binary"])
def cifar10(request, tmp_path):
    if request.param == "binary":
        return write_binary(tmp_path, TEN[1], 10)
    write = python_2_pickle if request.param == "python 2" else python_3_pickle
    return write_python(tmp_path, TEN[0], 10, b"labels", write)


def test_cifar10(cifar10):
    dataset = ten(cifar10)
    assert dataset.classes[:3] == ("airplane", "automobile", "bird")
    assert dataset.template == "a photo of a {}."
    assert (len(dataset.train), len(dataset.test)) == (20, 3)
    data, labels = batch(2, 4, 10)
    assert dataset.train.labels[8:12].tolist() == labels
    # a row is 1,024 red, then green, then blue; each of them row by row
    image = dataset.train.images[9]
    assert image.size == (32, 32)
    assert image.getpixel((5, 7)) == tuple(data[1][[7 * 32 + 5, 1024 + 7 * 32 + 5, 2048 + 7 * 32 + 5]].tolist())


def test_the_path_may_be_the_published_folder(cifar10):
    (folder,) = cifar10.iterdir()
    assert np.array_equal(ten(folder).train.labels, ten(cifar10).train.labels)


@pytest.mark.parametrize("form", ["python", "binary"])
def test_cifar100_has_the_fine_labels(tmp_path, form):
    if form == "python":
        write_python(tmp_path, HUNDRED[0], 100, b"fine_labels")
    else:
        write_binary(tmp_path, HUNDRED[1], 100)
    dataset = hundred(tmp_path)
    assert (len(dataset.classes), len(dataset.train), len(dataset.test)) == (100, 4, 3)
    assert (dataset.classes[1], dataset.classes[99]) == ("aquarium fish", "worm")
    assert dataset.test.labels.tolist() == batch(50, 3, 100)[1]


def test_the_official_sizes_are_required(tmp_path):
    write_binary(tmp_path, TEN[1], 10)
    with pytest.raises(DataError, match=r"data_batch_1\.bin: should be 30,730,000 bytes long, not 12,292"):
        load("cifar10", tmp_path)
    write_python(tmp_path, HUNDRED[0], 100, b"fine_labels")
    with pytest.raises(DataError, match="should have 50,000 images, but has 4; fetch it again"):
        load("cifar100", tmp_path)


def test_a_missing_file(tmp_path):
    write_binary(tmp_path, TEN[1], 10)
    (tmp_path / TEN[1].folder / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"contains no data_batch_3\.bin; fetch all files of cifar10 again"):
        ten(tmp_path)


def test_an_empty_folder_names_the_command_to_fetch(tmp_path):
    with pytest.raises(
        DataError, match="contains no cifar-10-batches-py or cifar-10-batches-bin; download it with: fedcopl"
    ):
        load("cifar10", tmp_path)


def test_labels_out_of_range(tmp_path):
    write_binary(tmp_path, TEN[1], 200)
    with pytest.raises(DataError, match="but there are 10 classes"):
        ten(tmp_path)


class Evil:
    """Unpickled in the usual way, this leaves a file behind."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def hostile(path) -> dict[str, bytes]:
    import builtins
    import os

    array = np.array([Evil(os.system, f"touch {path}")], object)
    return {
        "a system call": pickle.dumps(Evil(os.system, f"touch {path}"), 2),
        "new protocol": pickle.dumps({b"data": Evil(os.system, f"touch {path}")}, 5),
        "eval": pickle.dumps(Evil(builtins.eval, f"open({str(path)!r}, 'w')"), 2),
        "an array of objects": pickle.dumps({b"data": array, b"labels": []}, 2),
        "numpy's loader": b"cnumpy\nload\n(S'x'\ntR.",
        "a module's module": b"cnumpy\nos.system\n(S'true'\ntR.",
        "by its parts": b"\x80\x04\x8c\x05numpy\x8c\x07ndarray\x93\x8c\x08builtins\x8c\x04exec\x93.",
        "a persistent name": b"Px\n.",
        "an extension": b"\x80\x02\x82\x01.",
    }


@pytest.mark.parametrize("name", hostile("x"))
def test_no_code_in_a_pickle_is_run(tmp_path, name):
    trace = tmp_path / "trace"
    write_python(tmp_path, TEN[0], 10, b"labels")
    put(tmp_path, "cifar-10-batches-py/data_batch_2", hostile(trace)[name])
    with pytest.raises(DataError, match="data_batch_2: is not one of CIFAR's pickles"):
        ten(tmp_path)
    assert not trace.exists()


def test_a_hostile_batch_is_one_line(tmp_path):
    write_python(tmp_path, TEN[0], 10, b"labels")
    put(tmp_path, "cifar-10-batches-py/data_batch_2", hostile(tmp_path / "trace")["a system call"])
    with pytest.raises(DataError, match=r"data_batch_2: is not one of CIFAR's pickles: calls posix\.system") as error:
        ten(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x02", b"no pickle", pickle.dumps([1, 2]), pickle.dumps({b"data": 3, b"labels": []})]
)
def test_a_damaged_batch(tmp_path, content):
    write_python(tmp_path, TEN[0], 10, b"labels")
    put(tmp_path, "cifar-10-batches-py/test_batch", content)
    with pytest.raises(DataError, match="test_batch: is not one of CIFAR's pickles"):
        ten(tmp_path)
