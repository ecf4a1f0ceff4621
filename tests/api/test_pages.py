"""The pages about using the program are followed word for word."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.S | re.M)


def blocks(name):
    return BLOCK.findall((DOCS / name).read_text(encoding="utf-8"))


NUMBER = re.compile(r"\d[\d.,]*(?<![.,])")


def lines_of(text):
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def agree(printed, shown):
    """The same words; numbers may differ a little, as another processor may round a last bit otherwise."""
    words = ([NUMBER.sub("#", line) for line in lines] for lines in (printed, shown))
    assert next(words) == next(words)
    numbers = (
        [float(number.replace(",", "")) for number in NUMBER.findall(" ".join(lines))] for lines in (printed, shown)
    )
    assert next(numbers) == pytest.approx(next(numbers), rel=0.05, abs=0.05)


def follow(code, kind, folder):
    """One block, typed in a folder; what it prints."""
    command = [sys.executable, "-c", code] if kind == "python" else ["bash", "-e", "-c", code]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_tutorial(tmp_path):
    folder, said = tmp_path, []
    for kind, code in blocks("tutorial.md"):
        if kind == "text":
            shown = lines_of(code)
            agree(said[-len(shown) :], shown)
            continue
        said = lines_of(follow(code, kind, folder))
        folder = folder / "study" if "cd study" in code else folder
    assert (folder / "answers.csv").read_text().count("\n") == 21  # twenty images and the titles


@pytest.mark.slow
def test_the_python_page(tmp_path):
    parts = blocks("python.md")
    code = "\n".join(part for kind, part in parts if kind == "python")
    agree(lines_of(follow(code, "python", tmp_path)), lines_of("".join(part for kind, part in parts if kind == "text")))
