"""Token ids against `transformers`' CLIP tokenizer over the same vocabulary."""

import json
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clip.tiny_clip import clip_bpe
from fedcopl.clip.tokenizer import clip_tokenizer, read_tokenizer
from fedcopl.errors import ModelError

NASTY = [
    "",
    "   \t\r\n ",
    "a photo of a cat",
    "A  PHOTO\nof\ta   CAT",
    "it's we'LL can't 's's 'S 'llama",
    "1234567890 3.14 ½ ² ١٢٣",
    "a_b-c--d ... !!! ?!?",
    "&amp; &lt;b&gt; <b>bold</b>",
    "naïve café, e\u0301 against é",
    "ΟΔΟΣ σας ΣΑΣ",
    "İstanbul STRASSE ẞ ß ŉ Ǆ ﬁ",
    "日本語 한국어 العربية हिन्दी",
    "😀 👩‍👩‍👧 🏳️‍🌈",
    "a\u200bb\u00a0c\u2003d\x85e\x1cf\u3000g",
    "\u0301abc \u0000 \x7f",
    "<|endoftext|>",
    "<|startoftext|>a<|endoftext|>b",
    "<|ENDOFTEXT|> <|endoftext|",
    "<start_of_text> <end_of_text> <START_OF_TEXT>",
    "x" * 300,
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
]
OURS = clip_tokenizer(pad_id=0)


def reference(sentence: str) -> list[int]:
    return clip_bpe()(sentence).input_ids


def test_ids_known_from_openais_package():
    assert OURS.rows(["a photo of a cat"]) == [[49406, 320, 1125, 539, 320, 2368, 49407]]
    assert (OURS.start_id, OURS.end_id, OURS.pad_id, OURS.vocabulary) == (49406, 49407, 0, 49408)


@pytest.mark.parametrize("sentence", NASTY, ids=range(len(NASTY)))
def test_special_strings_give_the_ids_of_transformers(sentence):
    assert OURS.rows([sentence]) == [reference(sentence)]


def is_assigned(sentence: str) -> bool:
    return all(unicodedata.category(letter) != "Cn" for letter in sentence)


# The libraries may differ on characters that are not in Python's Unicode tables yet.
@settings(max_examples=300)
@given(st.text(max_size=30).filter(is_assigned))
@example("Σ<|endoftext|>Σ")
@example("\u1df6\u1defx")  # marks that newer tables put in another order
def test_any_text_gives_the_ids_of_transformers(sentence):
    assert OURS.rows([sentence]) == [reference(sentence)]


@pytest.fixture(scope="module")
def saved_tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    clip_bpe().save_pretrained(folder)
    return folder


@pytest.fixture
def as_two_files(saved_tokenizer, tmp_path):
    """The same as vocab.json and merges.txt."""
    model = json.loads((saved_tokenizer / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    lines = "\n".join(" ".join(pair) for pair in model["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{lines}\n", encoding="utf-8")
    return tmp_path


def test_the_tokenizer_json_of_a_folder_is_used(saved_tokenizer):
    tokenizer = read_tokenizer(saved_tokenizer)
    assert tokenizer.rows(NASTY) == [reference(sentence) for sentence in NASTY]
    assert (tokenizer.start_id, tokenizer.end_id, tokenizer.vocabulary) == (49406, 49407, 49408)
    assert tokenizer.pad_id == clip_bpe().pad_token_id


def test_the_vocabulary_and_merges_of_a_folder_are_used(as_two_files):
    tokenizer = read_tokenizer(as_two_files)
    assert tokenizer.rows(NASTY) == [reference(sentence) for sentence in NASTY]
    assert tokenizer.pad_id == tokenizer.end_id == 49407


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("token", ["!", {"content": "!", "special": True}])
def test_the_padding_token_is_that_of_the_folder(name, token, as_two_files):
    (as_two_files / name).write_text(json.dumps({"pad_token": token}))
    assert read_tokenizer(as_two_files).pad_id == 0


def test_padding_that_the_vocabulary_lacks_is_refused(as_two_files):
    (as_two_files / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]"}))
    with pytest.raises(ModelError, match=r"vocab\.json: the padding token '\[PAD\]' is not in the vocabulary"):
        read_tokenizer(as_two_files)


def test_stored_padding_and_truncation_are_ignored(saved_tokenizer, tmp_path):
    content = json.loads((saved_tokenizer / "tokenizer.json").read_text())
    content["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert read_tokenizer(tmp_path).rows(["a photo of a cat"]) == [reference("a photo of a cat")]


def test_a_folder_without_a_tokenizer_has_none(tmp_path):
    assert read_tokenizer(tmp_path) is None


def test_a_vocabulary_without_merges_is_refused(as_two_files):
    (as_two_files / "merges.txt").unlink()
    with pytest.raises(ModelError, match=r"merges\.txt: is missing"):
        read_tokenizer(as_two_files)


@pytest.mark.parametrize("merges", ["one two three\n", "nosuchpiece atall\n"])
def test_broken_merges_are_refused(merges, as_two_files):
    (as_two_files / "merges.txt").write_text(merges)
    with pytest.raises(ModelError, match=r"vocab\.json: cannot be read as a tokenizer"):
        read_tokenizer(as_two_files)


def test_a_tokenizer_of_another_kind_is_refused(saved_tokenizer, tmp_path):
    content = json.loads((saved_tokenizer / "tokenizer.json").read_text())
    content["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match="adds 0 tokens to a sentence"):
        read_tokenizer(tmp_path)
