"""Documents agree with the code."""

import inspect
import re
import subprocess
import sys
from dataclasses import fields

import pytest
from typer.main import get_command

import fedcopl
from documents import ROOT, page, resolve_name
from fedcopl import errors, messages
from fedcopl.cli import app
from fedcopl.config import RunConfig
from fedcopl.labelers import LABELERS
from fedcopl.methods import METHODS
from fedcopl.privacy.accountant import noise_for, planned_releases
from figures import FIGURES
from small_digits import small_digits

PAGES = sorted(
    page for folder in ("*.md", "docs/**/*.md", "experiments/*.md", "benchmarks/*.md") for page in ROOT.glob(folder)
)


def named_functions():
    return sorted(set(re.findall(r"`((?:algorithm|methods|federation)\.[\w.]+)`", page("docs/as-published.md"))))


def test_the_algorithm_page_names_many_functions():
    assert len(named_functions()) >= 12


@pytest.mark.parametrize("name", named_functions())
def test_the_algorithm_page_names_real_functions(name):
    assert callable(resolve_name(name))


def test_what_leaves_a_client_is_the_list_on_the_page():
    rows = set(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", page("docs/privacy.md"), re.M))
    assert rows == {(kind.__name__, field.name) for kind in messages.REPLY_TO.values() for field in fields(kind)}


def test_the_example_of_the_privacy_page_has_the_noise_of_its_epsilon():
    text = page("docs/privacy.md")
    epsilon, rounds, refresh = map(
        int, re.search(r"fedcopl privacy --epsilon (\d+) --rounds (\d+) --refresh-every (\d+)", text).groups()
    )
    config = RunConfig.from_mapping({"rounds": rounds, "labels": {"refresh_every": refresh}}, "docs/privacy.md")
    noise = float(re.search(r"fedcopl run .*privacy.noise_multiplier=([\d.]+)", text)[1])
    assert noise == pytest.approx(noise_for(epsilon, 1e-5, planned_releases(config)), abs=1e-4)


def test_every_method_has_its_row_and_every_row_its_method():
    table = page("docs/methods.md").split("## Methods\n\n")[1].split("\n\n")[0]
    cells = re.findall(r"^\| (`\w+`[^|]*) \|", table, re.M)
    assert sorted(name for cell in cells for name in re.findall(r"`(\w+)`", cell)) == sorted(["method", *METHODS])


def test_every_error_has_its_row():
    rows = {name: int(code) for code, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", page("docs/errors.md"), re.M)}
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.FedCoPLError)]
    assert rows == {kind.__name__: kind.exit_code for kind in kinds}
    assert len({kind.exit_code for kind in kinds}) == len(kinds)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:")):
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_make_targets_named_in_documents_exist(path):
    targets = set(re.findall(r"^([\w-]+):", page("Makefile"), re.M))
    assert set(re.findall(r"`make ([\w-]+)", path.read_text(encoding="utf-8"))) <= targets


EXAMPLES = ("NAME", "fedper")  # a method that is not there: docs/methods.md


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_named_in_documents_exist(path):
    named = re.findall(r"`((?:src|tests|tools|benchmarks|experiments)/[\w./-]+)`", path.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists() and not any(x in name for x in EXAMPLES)] == []


def test_every_mechanism_of_the_threat_model_exists():
    named = set(re.findall(r"`([a-z_/]+\.py)`", page("docs/threat-model.md")))
    mechanisms = {name for name in named if "test_" not in name}
    assert len(mechanisms) >= 12
    assert [name for name in mechanisms if not (ROOT / "src/fedcopl" / name).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_named_in_documents_exist(path):
    if path.name != "CHANGELOG.md":  # which also names what is gone
        for name in set(re.findall(r"\bfedcopl\.([a-z_]+(?:\.\w+)+)", path.read_text(encoding="utf-8"))):
            package = "/".join(name.split("."))
            assert (ROOT / "src/fedcopl" / package).with_suffix(".py").exists() or resolve_name(name)


WRITTEN = re.compile(r".*\.(?:py|md|toml|jinja|ipynb)")
FOLDERS = ("src", "tests", "docs", "tools", "experiments", "benchmarks")
CITED_PAGE = re.compile(r"[\w./-]*\w\.md\b(?!\.jinja)")
CITED_TEST = re.compile(r"\b(?:experiments/)?tests/[\w/]+\.py\b")
NOT_IN_THE_REPOSITORY = re.compile(r"\bthe (?:spec|issue)\b|\bspec/|[(]spec\b", re.I)
MADE_UP = {  # pages that the program writes, that a test makes up, or that are part of another project
    *("index.md", "1.md", "decisions/index.md", "notebooks/a.md", "nowhere.md", "page.md", "results.md"),
    *("results/paper/table6.md", "classifier/README.md", "DATASETS.md"),
    *("tests/test_two.py", "tests/methods/test_NAME.py", "tests/methods/test_fedper.py"),
}


def citations_of_nothing(path):
    text = path.read_text(encoding="utf-8")
    cited = {*CITED_PAGE.findall(text), *CITED_TEST.findall(text)} - MADE_UP
    folders = (ROOT, ROOT / "docs", ROOT / "experiments", path.parent)
    missing = [name for name in cited if not any((folder / name).exists() for folder in folders)]
    return [f"{path.relative_to(ROOT)}: {name}" for name in (*missing, *NOT_IN_THE_REPOSITORY.findall(text))]


def test_cited_pages_and_tests_exist():
    below = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if WRITTEN.fullmatch(path.name))
    files = [*ROOT.glob("*.md"), *ROOT.glob("*.py"), *below]
    assert len(files) > 500
    assert [citation for path in files for citation in citations_of_nothing(path)] == []


def test_the_architecture_page_has_every_file_that_uses_private_parts_of_flower():
    table = page("docs/architecture.md").split("`deployment/flower_internals/`:")[1]
    files = (ROOT / "src/fedcopl/deployment/flower_internals").glob("*.py")
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.M)) == sorted(file.stem for file in files)


def commands_in(text):
    return set(re.findall(r"^\s*(?:\$ )?fedcopl (\w+)", text, re.M)) | set(re.findall(r"`fedcopl (\w+)", text))


def test_documents_name_only_commands_that_exist():
    known = set(get_command(app).commands)
    named = {command for path in PAGES for command in commands_in(path.read_text(encoding="utf-8"))}
    assert named
    assert named <= known
    assert known <= named


OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]+")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_only_options_that_the_command_has(path):
    """docs/commands.md has the options; another test compares it with the commands."""
    sections = re.findall(r"^## fedcopl ([\w ]+)\n(.*?)(?=^## |\Z)", page("docs/commands.md"), re.M | re.S)
    options = {name: set(OPTION.findall(text)) for name, text in sections}
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    named = re.findall(r"fedcopl ((?:data|models|cache) \w+|\w+)([^`\n#]*)", text) if path.name != "commands.md" else []
    assert [(name, said) for name, said in named if name in options and set(OPTION.findall(said)) - options[name]] == []


DOORS = sorted((ROOT / "docs").glob("*.md"))


def test_there_are_few_pages():
    assert 8 <= len(DOORS) <= 25, "merge a page instead, or move a study to experiments/ or docs/decisions/"


@pytest.mark.parametrize("path", DOORS, ids=lambda path: path.name)
def test_a_page_opens_with_who_it_is_for(path):
    title, _, opening = path.read_text(encoding="utf-8").splitlines()[:3]
    assert title.startswith("# ")
    assert opening.startswith("For "), "the first paragraph says who the page is for, and what they can do after it"


def test_the_readme_counts_methods_and_labelers():
    numbers = {
        kind: int(number) for number, kind in re.findall(r"more than (\d+) (methods|labelers)", page("README.md"))
    }
    counts = {"methods": len({id(METHODS[name]) for name in METHODS}), "labelers": len(LABELERS)}
    assert numbers.keys() == counts.keys()
    assert all(numbers[kind] < counts[kind] <= numbers[kind] + 10 for kind in counts)


STUDIED = {  # data set of the study on docs/priors.md -> its row in the README
    "digits, glyph-clip": "digits, glyph-clip",
    "CIFAR-10, photo-clip": "CIFAR-10, photo-clip",
    "dtd (bias 0.7)": "DTD",
    "flowers (bias 0.7)": "Flowers102",
    "aircraft (bias 0.7)": "FGVC Aircraft",
}


@pytest.mark.parametrize("name", STUDIED)
def test_the_readme_has_the_numbers_of_the_study(name):
    """Zero-shot accuracy of the iid split, and all priors under Dirichlet 0.1 and iid."""
    titles = [cell.strip() for cell in re.search(r"^\| set \|(.*)\|$", page("docs/priors.md"), re.M)[1].split("|")]
    cells = re.search(rf"^\| {re.escape(name)} \|(.*)\|$", page("docs/priors.md"), re.M)[1].split("|")
    splits = {title: cell.strip().split(" / ") for title, cell in zip(titles, cells, strict=True)}
    shown = [splits["iid"][0], splits["Dirichlet 0.1"][-1], splits["iid"][-1]]
    row = re.search(rf"^\| {re.escape(STUDIED[name])}[^|]*\|(.*)\|$", page("README.md"), re.M)[1]
    assert [cell.strip() for cell in row.split("|")][:3] == shown


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_those_of_the_tool(name):
    assert page(f"docs/images/{name}.svg") == FIGURES[name](), "run tools/figures.py"


@pytest.mark.slow
def test_the_python_example_of_the_readme_runs(tmp_path):
    digits = small_digits(60, 2)
    for number, (image, label) in enumerate(zip(digits.train.images, digits.train.labels, strict=True)):
        if label < 2:  # the classes of the example
            folder = tmp_path / "photos" / "ab"[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            image.save(folder / f"{number}.png")
    first = next((tmp_path / "photos" / "a").iterdir())
    [example] = re.findall(r"```python\n(.*?)```", page("README.md"), re.S)
    example = example.replace("photos/a/1.png", f"photos/a/{first.name}")
    process = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert re.search("zero|one", process.stdout)
    assert (tmp_path / "run" / "report.html").exists()


def shown_accuracies(text):
    """The numbers of the table that a run prints, three in each of its rows."""
    rows = re.findall(r"│ (?:zero-shot|priors|last round|best round)[^│]*│ +([\d.]+) │ +([\d.]+) │ +([\d.]+) │", text)
    return [float(number) for row in rows for number in row]


@pytest.mark.slow
def test_the_readme_shows_what_the_demo_prints(tmp_path):
    command = [sys.executable, "-m", "fedcopl", "run"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    [shown] = re.findall(r"```text\n(.*?)```", page("README.md"), re.S)
    assert len(shown_accuracies(shown)) == 12
    # Another processor may round a last bit otherwise, and a pseudo label or two with it.
    assert shown_accuracies(told) == pytest.approx(shown_accuracies(shown), abs=1.5)
    words = [line.split("  ")[0] for line in shown.splitlines()[-5:]]
    assert [line.split("  ")[0] for line in told.splitlines()[-5:]] == words


def test_the_table_of_models_is_that_of_the_models():
    from models_page import page as made

    assert page("docs/models.md") == made()


def test_the_settings_page_is_that_of_the_settings():
    from settings_page import page as made

    assert page("docs/settings.md") == made()


def test_the_api_page_is_that_of_the_docstrings():
    from api_page import PUBLIC
    from api_page import page as made

    assert page("docs/api.md") == made(), "run tools/api_page.py"
    assert set(PUBLIC) == set(fedcopl.__all__)
