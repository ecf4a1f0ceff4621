"""The pages about using the program are followed word for word."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from documents import assert_same_output, stripped_lines

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.S | re.M)


def blocks(name):
    return BLOCK.findall((DOCS / name).read_text(encoding="utf-8"))


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
            shown = stripped_lines(code)
            assert_same_output(said[-len(shown) :], shown)
            continue
        said = stripped_lines(follow(code, kind, folder))
        folder = folder / "study" if "cd study" in code else folder
    assert (folder / "answers.csv").read_text().count("\n") == 21  # twenty images and the titles


@pytest.mark.slow
def test_the_python_page(tmp_path):
    parts = blocks("python.md")
    code = "\n".join(part for kind, part in parts if kind == "python")
    assert_same_output(
        stripped_lines(follow(code, "python", tmp_path)),
        stripped_lines("".join(part for kind, part in parts if kind == "text")),
    )
