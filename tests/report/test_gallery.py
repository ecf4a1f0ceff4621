import base64
import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedcopl.errors import RunFolderError
from fedcopl.report.gallery import (
    _PER_CLASS,
    _SIDE,
    ChosenImages,
    Example,
    _examples_from,
    _thumbnail,
    as_plain,
    gallery,
    read_examples,
)

EXAMPLE = Example("data:image/png;base64,AAAA", 8, 8, 1, "dog", 0.9, None, None, "north", 3)


def pictures(number, size=(8, 8)):
    return [Image.new("L", size, color) for color in np.linspace(0, 255, number).astype(int).tolist()]


def holding(client, index, label, probability):
    log_probability = np.log(np.array(probability, float))
    return ChosenImages(client, np.array(index, np.int64), np.array(label, np.int64), log_probability)


def opened(uri):
    head, data = uri.split(",")
    assert head in ("data:image/png;base64", "data:image/jpeg;base64")
    return Image.open(io.BytesIO(base64.b64decode(data, validate=True)))


def test_by_hand():
    holdings = [
        holding("north", [3, 0], [1, 0], [0.6, 0.9]),
        holding("south", [1, 2], [1, 1], [0.95, 0.5]),
    ]
    shown = gallery(pictures(4), np.array([0, 0, 1, 1]), ("cat", "dog"), holdings)
    assert [(e.index, e.pseudo, e.truth, e.right, e.client) for e in shown] == [
        (0, "cat", "cat", True, "north"),
        (1, "dog", "cat", False, "south"),
        (3, "dog", "dog", True, "north"),
        (2, "dog", "dog", True, "south"),
    ]
    assert [e.confidence for e in shown] == pytest.approx([0.9, 0.95, 0.6, 0.5])


def test_examples_span_the_range_from_most_to_least_confident():
    probabilities = np.linspace(0.2, 0.9, 71)  # image 70 is the most confident
    shown = gallery(pictures(71), None, ("only",), [holding("a", range(71), [0] * 71, probabilities)])
    assert [e.index for e in shown] == [70, 60, 50, 40, 30, 20, 10, 0]  # eight evenly spaced ranks, both ends


def test_equally_confident_images_keep_the_order_of_the_data_set():
    shown = gallery(
        pictures(3),
        None,
        ("only",),
        [holding("a", [2, 0], [0, 0], [0.5, 0.5]), holding("b", [1], [0], [0.5])],
    )
    assert [(e.index, e.client) for e in shown] == [(0, "a"), (1, "b"), (2, "a")]


def test_without_labels_an_example_is_neither_right_nor_wrong():
    (example,) = gallery(pictures(1), None, ("only",), [holding("a", [0], [0], [0.5])])
    assert (example.truth, example.right) == (None, None)


def test_the_least_confident_images_of_all_clients_come_first():
    held = [holding("a", [0, 1, 2], [0, 0, 1], [0.9, 0.3, 0.5]), holding("b", [3], [1], [0.2])]
    shown = gallery(pictures(4), None, ("x", "y"), [], held)
    assert [(e.index, e.pseudo, e.client) for e in shown] == [
        (3, "y", "b"),
        (1, "x", "a"),
        (2, "y", "a"),
        (0, "x", "a"),
    ]
    assert all(e.least_confident for e in shown)
    many = [holding("a", range(40), [0] * 40, np.linspace(0.1, 0.9, 40))]
    assert len(gallery(pictures(40), None, ("x",), [], many)) == 12


def test_clients_without_selected_images_give_no_examples():
    assert gallery(pictures(2), None, ("x", "y"), []) == []
    assert gallery(pictures(2), None, ("x", "y"), [holding("a", [], [], [])]) == []


def test_many_classes_get_fewer_images_each():
    classes = [str(number) for number in range(200)]
    index = np.arange(2000)
    shown = gallery(pictures(2000), None, classes, [holding("a", index, index % 200, 0.1 + index / 4000)])
    assert [e.label for e in shown] == [c for c in range(200) for _ in range(2)]
    assert [e.index for e in shown[:2]] == [1800, 0]  # the most and the least confident


def test_only_the_images_shown_are_opened():
    class Counted(list):
        opened = 0

        def __getitem__(self, index):
            self.opened += 1
            return super().__getitem__(index)

    images = Counted(pictures(500))
    gallery(images, None, ("only",), [holding("a", range(500), [0] * 500, np.linspace(0.1, 1, 500))])
    assert images.opened == _PER_CLASS


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-50, 0)), max_size=60), st.integers(1, 4))
def test_each_class_is_sorted_and_has_its_extremes(chosen, clients):
    labels, log_probs = np.array([c for c, _ in chosen], np.int64), np.array([p for _, p in chosen], float)
    parts = [np.arange(len(chosen))[start::clients] for start in range(clients)]
    holdings = [ChosenImages(f"c{n}", part, labels[part], log_probs[part]) for n, part in enumerate(parts)]
    shown = gallery(pictures(len(chosen)), labels, "abcd", holdings)
    for c in range(4):
        shown_of_class, probabilities = [e for e in shown if e.label == c], np.exp(log_probs[labels == c])
        assert len(shown_of_class) == len({e.index for e in shown_of_class}) == min(len(probabilities), _PER_CLASS)
        confidences = [e.confidence for e in shown_of_class]
        assert confidences == sorted(confidences, reverse=True)
        if shown_of_class:
            assert (confidences[0], confidences[-1]) == (probabilities.max(), probabilities.min())
        assert all(e.right and e.client == f"c{e.index % clients}" for e in shown_of_class)


def test_a_tiny_image_keeps_its_pixels():
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    uri, width, height = _thumbnail(Image.fromarray(pixels))
    assert (width, height) == (8, 8)
    assert np.array_equal(np.asarray(opened(uri)), pixels)
    assert Example(uri, 8, 8, 0, "a", 1.0, None, None, "c", 0).tiny


def test_a_large_image_becomes_small_and_keeps_its_shape():
    noise = np.random.default_rng(0).integers(0, 256, (300, 600, 3), np.uint8)
    uri, width, height = _thumbnail(Image.fromarray(noise))
    assert (width, height) == opened(uri).size == (_SIDE, _SIDE // 2)
    assert len(uri) < 10_000
    assert not Example(uri, width, height, 0, "a", 1.0, None, None, "c", 0).tiny


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I", "F", "I;16"])
@pytest.mark.parametrize("side", [8, 200])
def test_an_image_of_any_mode_gets_a_thumbnail(mode, side):
    image = Image.new(mode, (side, side))
    before = image.tobytes()
    uri, *_ = _thumbnail(image)
    assert opened(uri).mode in ("L", "RGB")
    assert image.tobytes() == before


def test_transparent_pixels_become_white():
    uri, *_ = _thumbnail(Image.new("RGBA", (8, 8), (255, 0, 0, 0)))
    assert opened(uri).getpixel((0, 0)) == (255, 255, 255)


def test_16_bit_grey_is_scaled_to_its_range():
    uri, *_ = _thumbnail(Image.fromarray(np.array([[1000, 2000], [3000, 1000]], np.uint16)))
    assert np.asarray(opened(uri)).tolist() == [[0, 128], [255, 0]]


def test_examples_survive_writing_and_reading(tmp_path):
    assert _examples_from(json.dumps(as_plain([EXAMPLE])).encode(), 2) == [EXAMPLE]
    assert read_examples(tmp_path, 2) == []
    (tmp_path / "examples.json").write_text(json.dumps(as_plain([EXAMPLE])))
    assert read_examples(tmp_path, 2) == [EXAMPLE]


@pytest.mark.parametrize(
    "broken",
    [
        {},
        [3],
        [as_plain([EXAMPLE])[0] | {"label": 2}],
        [as_plain([EXAMPLE])[0] | {"label": "1"}],
        [as_plain([EXAMPLE])[0] | {"image": "https://example.org/spy.png"}],
        [{"label": 1}],
    ],
)
def test_damaged_examples_are_named(tmp_path, broken):
    (tmp_path / "examples.json").write_text(json.dumps(broken))
    with pytest.raises(
        RunFolderError, match=r"examples\.json: is damaged: .*; remove it to write the report without examples"
    ):
        read_examples(tmp_path, 2)
