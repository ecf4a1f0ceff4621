"""Serialisation: every message is read back unchanged, and anything else is refused."""

import contextlib
import io
import json
import pickle
from collections.abc import Mapping
from dataclasses import fields
from types import UnionType
from typing import Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numbers

from deployment.toolbox import terms
from fedcopl.config import RunConfig
from fedcopl.deployment.message_format import (
    _KINDS,
    Packed,
    Unreadable,
    name_records,
    one_line,
    pack,
    read_name,
    read_reply,
    read_request,
    refusal_records,
    reply_records,
    request_records,
    unpack,
)
from fedcopl.deployment.terms import config_from, differences, flat_settings
from fedcopl.errors import ConfigError
from fedcopl.messages import REPLY_TO, Estimated, Evaluated, Select, Selected, Train, Trained, digest

VISUAL = np.arange(6, dtype=np.float32).reshape(2, 3)
SHAPES = st.tuples(st.integers(0, 3), st.integers(0, 3))
PLAIN = {int: st.integers(-(2**62), 2**62), float: st.floats(), str: st.text(), bytes: st.binary(), bool: st.booleans()}


def values(hint):
    """Return a strategy for the values of a field of this type."""
    origin, inside = get_origin(hint), get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if hint is type(None):
        return st.none()
    if origin in {Union, UnionType}:
        return st.one_of(*map(values, inside))
    if origin is np.ndarray:
        return SHAPES.flatmap(lambda shape: numbers.arrays(get_args(inside[1])[0], shape))
    if origin is tuple:
        return st.lists(values(inside[0]), max_size=3).map(tuple)
    assert issubclass(origin, Mapping)
    return st.dictionaries(st.text(), values(inside[1]), max_size=3)


@st.composite
def messages(draw):
    kind = draw(st.sampled_from(sorted(_KINDS.values(), key=lambda kind: kind.__name__)))
    return kind(**{name: draw(values(hint)) for name, hint in get_type_hints(kind).items()})


def same(one, other):
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, Mapping):
        return set(one) == set(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))


def equal(one, other):
    return type(one) is type(other) and all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))


@given(messages())
def test_every_message_comes_back_as_it_was(message):
    assert equal(unpack(pack(message)), message)


@given(messages())
def test_every_message_survives_flowers_records(message):
    config = RunConfig()
    if type(message) in REPLY_TO:
        back, on = read_request(request_records(message, terms(config)), 10**6)
        assert on == terms(config)
        assert digest(back) == digest(message)
    else:
        back, folder = read_reply(reply_records(message, "q", "here"), "q", 10**6)
        assert folder == "here"
    assert equal(back, message)


def test_every_message_can_be_serialised():
    assert set(_KINDS.values()) == {*REPLY_TO, *REPLY_TO.values()}


WRONG_TREES = {
    "no JSON": "{",
    "another field": '{"correct": 1, "examples": 2, "more": 3}',
    "a field missing": '{"correct": 1}',
    "no object": "[1, 2]",
    "text for a number": '{"correct": "1", "examples": 2}',
    "a boolean for a number": '{"correct": true, "examples": 2}',
    "a bare list": '{"correct": [1], "examples": 2}',
    "a value of no kind": '{"correct": {"call": "rm"}, "examples": 2}',
    "a missing array": '{"correct": {"array": 0}, "examples": 2}',
    "a negative array number": '{"correct": {"array": -1}, "examples": 2}',
    "two kinds at once": '{"correct": {"map": {}, "tuple": []}, "examples": 2}',
    "too deeply nested": '{"correct": ' + '{"tuple": [' * 900 + "]}" * 900 + ', "examples": 2}',
}


@pytest.mark.parametrize("tree", WRONG_TREES.values(), ids=WRONG_TREES)
def test_a_wrong_tree_is_refused(tree):
    with pytest.raises(Unreadable):
        unpack(Packed("Evaluated", tree, ()))


def test_only_messages_of_the_list_can_be_made():
    with pytest.raises(Unreadable, match="unknown message 'Path'"):
        unpack(Packed("Path", '{"x": 1}', ()))


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (np.zeros(3, np.float32), "field counts of message Estimated has the wrong type: an array of float32"),
        ("abc", "field counts of message Estimated has the wrong type: 'abc'"),
        ({"a": 1}, "field counts of message Estimated has the wrong type: a dict of 1"),
    ],
)
def test_a_field_of_another_type_is_refused_with_its_name(counts, words):
    with pytest.raises(Unreadable, match=words):
        unpack(pack(Estimated(counts)))


@given(st.text(), st.text())
def test_text_is_never_executed(kind, tree):
    with pytest.raises(Unreadable):
        unpack(Packed(kind, tree, ()))


# Arrays of a hostile sender.


def saved(array, **how):
    stream = io.BytesIO()
    np.save(stream, array, **how)
    return stream.getvalue()


def zipped():
    stream = io.BytesIO()
    np.savez(stream, a=VISUAL)
    return stream.getvalue()


class Bomb:
    """Writes a file when it is unpickled."""

    def __reduce__(self):
        return exec, ("import pathlib; pathlib.Path('burst').write_text('x')",)


HUGE = (
    b"\x93NUMPY\x01\x00v\x00"
    + b"{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000, 1000), }".ljust(117)
    + b"\n"
)
MALFORMED = {
    "a pickle": pickle.dumps(Bomb()),
    "a pickle in an array": saved(np.array([Bomb()], object), allow_pickle=True),
    "an archive": zipped(),
    "a header of sixteen terabytes": HUGE,
    "nothing": b"",
    "half an array": saved(VISUAL)[:-4],
    "more than an array": saved(VISUAL) + b"1234",
    "other byte order": saved(VISUAL.astype(">f4")),
    "columns first": saved(np.asfortranarray(VISUAL)),
    "text": saved(np.array(["a"])),
    "complex numbers": saved(VISUAL.astype(np.complex64)),
    "a header of code": b"\x93NUMPY\x01\x00v\x00" + b"__import__('os').system('touch burst')".ljust(117) + b"\n",
}


def with_array(data):
    records = reply_records(Trained({"visual": VISUAL}, 1, 0.5), "q", "here")
    records["message"]["arrays"] = [data]
    return records


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_malformed_arrays_are_refused_and_never_executed(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Unreadable):
        read_reply(with_array(data), "q", 10**6)
    assert not list(tmp_path.iterdir())


def test_a_valid_array_is_read():
    assert (read_reply(with_array(saved(VISUAL)), "q", 10**6)[0].shared["visual"] == VISUAL).all()
    for no_bytes in ("text", 3.5, [1, 2]):
        records = with_array(b"")
        records["message"]["arrays"] = no_bytes
        with pytest.raises(Unreadable, match="the arrays of the message are not bytes"):
            read_reply(records, "q", 10**6)


@given(st.binary(max_size=300))
def test_bytes_are_never_executed(data):
    with pytest.raises(Unreadable):
        read_reply(with_array(data), "q", 10**6)


def array_with_header(shape, data=b"", descr="<f4"):
    """Return the bytes of an array with a header of this shape, a value or its text."""
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}"
    text = text.ljust(-(len(text) + 11) % 64 + len(text)) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode("latin1", "replace") + data


IMPOSSIBLE_SHAPES = {
    "a huge dimension": array_with_header((0, 2**70)),
    "dimensions with a huge product": array_with_header((0, 2**62, 8)),
    "a boolean dimension": array_with_header((True, 0)),
    "seventy dimensions": array_with_header((1,) * 70, bytes(4)),
    "negative dimensions": array_with_header((-1, -1), bytes(4)),
    "a number that cannot be printed": array_with_header(f"(0x{'f' * 6000}, 2)"),
    "no tuple of dimensions": array_with_header("3", bytes(12)),
}


@pytest.mark.parametrize("data", IMPOSSIBLE_SHAPES.values(), ids=IMPOSSIBLE_SHAPES)
def test_an_impossible_shape_is_refused(data):
    with pytest.raises(Unreadable):
        read_reply(with_array(data), "q", 10**6)


def test_a_valid_header_is_read():
    assert (
        read_reply(with_array(array_with_header((2, 3), VISUAL.tobytes())), "q", 10**6)[0].shared["visual"] == VISUAL
    ).all()


sides = st.sampled_from([-1, 0, 1, 2, 3, 2**31, 2**63, 2**70, True])
shapes = st.lists(sides, max_size=3).map(tuple) | st.integers(0, 70).map(lambda many: (1,) * many) | st.text(max_size=9)
descrs = st.sampled_from(["<f4", "<f8", "<i8", "<u8", "|u1", "|b1", "|O", ">f4", "<U3", "|V4", "<M8[s]", "f4,i8"])
nothing = st.lists(sides, max_size=3).map(lambda more: (0, *more))
empty = st.builds(array_with_header, nothing, st.just(b""))  # of no bytes, consistent with the header
arrays_sent = empty | st.builds(array_with_header, shapes, st.binary(max_size=48), descrs | st.text(max_size=5))
numbers_sent = st.integers(-(10**400), 10**400) | st.floats() | st.booleans() | st.none() | st.text(max_size=5)
pointers = st.builds(dict, st.tuples(st.tuples(st.sampled_from(["array", "bytes"]), st.integers(-1, 2))))
trees = st.recursive(
    numbers_sent | pointers,
    lambda inside: st.one_of(
        st.lists(inside, max_size=3),
        st.lists(inside, max_size=3).map(lambda values: {"tuple": values}),
        st.dictionaries(st.text(max_size=5), inside, max_size=3).map(lambda values: {"map": values}),
    ),
    max_leaves=6,
)


@st.composite
def hostile_records(draw):
    """Draw records of a message with valid or invalid fields and arbitrary values."""
    kind = draw(st.sampled_from(sorted(_KINDS)))
    named = draw(st.just(sorted(get_type_hints(_KINDS[kind]))) | st.lists(st.text(max_size=5), max_size=3))
    tree = json.dumps({name: draw(trees) for name in named})
    stored = draw(st.lists(arrays_sent, min_size=1, max_size=2))
    message = {"kind": kind, "tree": tree, "to": "q", "from": draw(st.text(max_size=5)), "arrays": stored}
    return RecordDict({"message": ConfigRecord(message)})


@given(hostile_records())
@settings(max_examples=300)
def test_any_input_is_a_message_or_unreadable(records):
    for read in (lambda: read_reply(records, "q", 10**6), lambda: read_request(records, 10**6)):
        with contextlib.suppress(Unreadable):
            read()


def test_a_name_is_one_line_and_may_be_empty():
    assert read_name(name_records("site\na")) == "site a"
    assert read_name(RecordDict()) == ""


def test_a_too_large_reply_is_refused_before_it_is_parsed():
    big = reply_records(Trained({"visual": np.zeros(1000, np.float32)}, 1, 0.5), "q", "here")
    with pytest.raises(Unreadable, match="more than the limit of 4,000"):
        read_reply(big, "q", 4000)


def test_a_reply_to_another_request_is_refused():
    old = reply_records(Selected(3, 5, None), digest(Select(0, 0, None, 2)), "here")
    with pytest.raises(Unreadable, match="another request"):
        read_reply(old, digest(Select(1, 0, None, 2)), 10**6)


def test_a_refusal_is_one_line():
    with pytest.raises(Unreadable, match=r"refused: no space  left$"):
        read_reply(refusal_records("no space\n\x1bleft"), "q", 10**6)
    assert len(one_line("x" * 10_000)) < 400


@pytest.mark.parametrize(
    "records",
    [
        RecordDict(),
        RecordDict({"message": ConfigRecord({"kind": 3, "tree": "{}"})}),
        RecordDict({"message": ConfigRecord({"kind": "Evaluated", "tree": '{"correct": 1, "examples": 2}'})}),
    ],
)
def test_records_without_a_message_or_terms_are_refused(records):
    with pytest.raises(Unreadable):
        read_request(records, 10**6)


def test_a_reply_is_not_a_request():
    records = request_records(Evaluated(1, 2), terms(RunConfig()))
    with pytest.raises(Unreadable, match="not a request"):
        read_request(records, 10**6)


def test_settings_travel_flat_and_only_where_they_differ():
    given = {"rounds": 3, "train": {"lr": 0.5}, "options": {"mu": 0.25}, "model": {"threads": 2, "template": "a {}"}}
    config = RunConfig.from_mapping(given, "test")
    flat = flat_settings(config)
    assert flat == {"rounds": 3, "train.lr": 0.5, "options.mu": 0.25, "model.template": "a {}"}
    back = config_from(flat, "test")
    assert back.model.threads == 0  # set by each site
    assert back.model_copy(update={"model": config.model}) == config


def test_invalid_settings_in_terms_are_refused():
    with pytest.raises(ConfigError, match=r"train\.lr"):
        config_from({"train.lr": -1}, "run x")
    with pytest.raises(ConfigError, match="train is a setting and a section"):
        config_from({"train": 1, "train.lr": 1}, "run x")


def test_terms_name_both_sides_of_every_difference():
    server = terms(RunConfig())
    assert differences(server, server.classes, "another name, 1") == []  # the digest decides, not the name
    [line] = differences(server, "9 classes, 77", server.model)
    assert line == f"classes: the server has {server.classes}, this site has 9 classes, 77"


def test_a_train_request_is_packed_with_its_experts():
    message = Train(3, {"visual": VISUAL}, ({"visual": VISUAL + 1}, {"visual": VISUAL + 2}))
    packed = pack(message)
    assert len(packed.arrays) == 3
    assert json.loads(packed.tree)["experts"] == {
        "tuple": [{"map": {"visual": {"array": 1}}}, {"map": {"visual": {"array": 2}}}]
    }
