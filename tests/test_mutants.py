"""Every fault of tools/mutants.toml applies to the source, and the tool reports whether tests detect it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mutants import ROOT, BadMutant, Mutant, SourceCopy, part_of, read_mutants

MUTANTS = read_mutants()


def test_there_are_many_mutants_with_unique_names():
    assert len(MUTANTS) >= 60
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_to_its_file_and_names_existing_tests(mutant):
    mutant.applied_to((ROOT / mutant.file).read_text(encoding="utf-8"))
    assert mutant.tests
    for test in mutant.tests:
        file, *function = test.split("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert all(re.search(rf"^def {name}\b", text, re.MULTILINE) for name in function), test


def test_the_parts_contain_all_mutants():
    parts = [part_of(MUTANTS, f"{number}/4") for number in (1, 2, 3, 4)]
    assert sorted(mutant.name for part in parts for mutant in part) == sorted(mutant.name for mutant in MUTANTS)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    with pytest.raises(BadMutant, match="--part 5/4"):
        part_of(MUTANTS, "5/4")


@pytest.fixture
def source_copy(tmp_path):
    """A package of two lines with a test of one line."""
    source = tmp_path / "source"
    for folder in ("src", "tests"):
        (source / folder).mkdir(parents=True)
    (source / "src" / "two.py").write_text("two = 1 + 1\nthree = two + 1\n")
    (source / "tests" / "test_two.py").write_text("from two import two\n\n\ndef test_two():\n    assert two == 2\n")
    (tmp_path / "copy").mkdir()
    return SourceCopy.create(tmp_path / "copy", source)


def test_the_result_of_a_mutant(source_copy):
    fault = Mutant("three halves", "src/two.py", "1 + 1", "1 + 2", ("tests/test_two.py",))
    broken = replace(fault, new="1 +")
    undetected = replace(fault, old="two + 1", new="two + 2")
    results = [source_copy.run_mutant(mutant)[0] for mutant in (fault, broken, undetected, fault)]
    assert results == ["killed", "no test ran", "survived", "killed"]
    assert Path(source_copy.root / "src" / "two.py").read_text() == "two = 1 + 1\nthree = two + 1\n"


@pytest.mark.parametrize(
    ("old", "why"), [("gone", "occurs 0 times"), ("1", "occurs 2 times"), ("1 + 2", "equals the new text")]
)
def test_an_old_text_that_is_not_unique_is_an_error(source_copy, old, why):
    text = (source_copy.root / "src" / "two.py").read_text().replace("1 + 1", "1 + 2")
    with pytest.raises(BadMutant, match=why):
        Mutant("unclear", "src/two.py", old, "1 + 2", ()).applied_to(text)
