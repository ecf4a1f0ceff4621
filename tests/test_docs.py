"""Documents agree with the code."""

import inspect
import re
import subprocess
import sys
from dataclasses import fields

import pytest
from typer.main import get_command

import api_page
import fedcopl
import models_page
import settings_page
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


def test_the_privacy_page_lists_every_field_of_every_reply():
    rows = set(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", page("docs/privacy.md"), re.M))
    assert rows == {(kind.__name__, field.name) for kind in messages.REPLY_TO.values() for field in fields(kind)}


def test_the_example_of_the_privacy_page_has_the_noise_multiplier_of_its_epsilon():
    text = page("docs/privacy.md")
    epsilon, rounds, refresh = map(
        int, re.search(r"fedcopl privacy --epsilon (\d+) --rounds (\d+) --refresh-every (\d+)", text).groups()
    )
    config = RunConfig.from_mapping({"rounds": rounds, "labels": {"refresh_every": refresh}}, "docs/privacy.md")
    noise = float(re.search(r"fedcopl run .*privacy.noise_multiplier=([\d.]+)", text)[1])
    assert noise == pytest.approx(noise_for(epsilon, 1e-5, planned_releases(config)), abs=1e-4)


def test_the_table_of_methods_has_a_row_for_each_method():
    table = page("docs/methods.md").split("## Methods\n\n")[1].split("\n\n")[0]
    cells = re.findall(r"^\| (`\w+`[^|]*) \|", table, re.M)
    assert sorted(name for cell in cells for name in re.findall(r"`(\w+)`", cell)) == sorted(["method", *METHODS])


def test_the_table_of_errors_has_a_row_for_each_error_class():
    rows = {name: int(code) for code, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", page("docs/errors.md"), re.M)}
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.FedCoPLError)]
    assert rows == {kind.__name__: kind.exit_code for kind in kinds}
    assert len({kind.exit_code for kind in kinds}) == len(kinds)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_to_existing_files(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:")):
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_make_targets_named_in_documents_exist(path):
    targets = set(re.findall(r"^([\w-]+):", page("Makefile"), re.M))
    assert set(re.findall(r"`make ([\w-]+)", path.read_text(encoding="utf-8"))) <= targets


EXAMPLES = ("NAME", "fedper")  # a method that the reader adds: docs/methods.md


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
    if path.name != "CHANGELOG.md":  # it also names removed modules
        for name in set(re.findall(r"\bfedcopl\.([a-z_]+(?:\.\w+)+)", path.read_text(encoding="utf-8"))):
            package = "/".join(name.split("."))
            assert (ROOT / "src/fedcopl" / package).with_suffix(".py").exists() or resolve_name(name)


TEXT_FILE = re.compile(r".*\.(?:py|md|toml|jinja|ipynb)")
FOLDERS = ("src", "tests", "docs", "tools", "experiments", "benchmarks")
CITED_PAGE = re.compile(r"[\w./-]*\w\.md\b(?!\.jinja)")
CITED_TEST = re.compile(r"\b(?:experiments/)?tests/[\w/]+\.py\b")
NOT_IN_THE_REPOSITORY = re.compile(r"\bthe (?:spec|issue)\b|\bspec/|[(]spec\b", re.I)
EXAMPLE_FILES = {  # written by the program or a test, or part of another project
    *("index.md", "1.md", "decisions/index.md", "notebooks/a.md", "nowhere.md", "page.md", "results.md"),
    *("results/paper/table6.md", "classifier/README.md", "DATASETS.md"),
    *("tests/test_two.py", "tests/methods/test_NAME.py", "tests/methods/test_fedper.py"),
}


def invalid_citations(path):
    text = path.read_text(encoding="utf-8")
    cited = {*CITED_PAGE.findall(text), *CITED_TEST.findall(text)} - EXAMPLE_FILES
    folders = (ROOT, ROOT / "docs", ROOT / "experiments", path.parent)
    missing = [name for name in cited if not any((folder / name).exists() for folder in folders)]
    return [f"{path.relative_to(ROOT)}: {name}" for name in (*missing, *NOT_IN_THE_REPOSITORY.findall(text))]


def test_cited_pages_and_tests_exist():
    in_folders = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if TEXT_FILE.fullmatch(path.name))
    files = [*ROOT.glob("*.md"), *ROOT.glob("*.py"), *in_folders]
    assert len(files) > 500
    assert [citation for path in files for citation in invalid_citations(path)] == []


def test_the_architecture_page_lists_every_module_that_uses_the_private_api_of_flower():
    table = page("docs/architecture.md").split("`deployment/flower_internals/`:")[1]
    files = (ROOT / "src/fedcopl/deployment/flower_internals").glob("*.py")
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.M)) == sorted(file.stem for file in files)


def commands_in(text):
    return set(re.findall(r"^\s*(?:\$ )?fedcopl (\w+)", text, re.M)) | set(re.findall(r"`fedcopl (\w+)", text))


def test_documents_name_all_commands_and_no_other():
    named = {command for path in PAGES for command in commands_in(path.read_text(encoding="utf-8"))}
    assert named == set(get_command(app).commands)


OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]+")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_only_options_that_the_command_has(path):
    """The options are read from docs/commands.md, which another test compares with the commands."""
    sections = re.findall(r"^## fedcopl ([\w ]+)\n(.*?)(?=^## |\Z)", page("docs/commands.md"), re.M | re.S)
    options = {name: set(OPTION.findall(text)) for name, text in sections}
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    named = re.findall(r"fedcopl ((?:data|models|cache) \w+|\w+)([^`\n#]*)", text) if path.name != "commands.md" else []
    assert [(name, line) for name, line in named if name in options and set(OPTION.findall(line)) - options[name]] == []


DOC_PAGES = sorted((ROOT / "docs").glob("*.md"))


def test_there_are_few_pages():
    assert 8 <= len(DOC_PAGES) <= 25, "merge a page instead, or move a study to experiments/ or docs/decisions/"


@pytest.mark.parametrize("path", DOC_PAGES, ids=lambda path: path.name)
def test_a_page_opens_with_its_audience(path):
    title, _, opening = path.read_text(encoding="utf-8").splitlines()[:3]
    assert title.startswith("# ")
    assert opening.startswith("For "), "the first paragraph names the readers of the page and what they can do after it"


def test_the_readme_counts_methods_and_labelers():
    numbers = {
        kind: int(number) for number, kind in re.findall(r"more than (\d+) (methods|labelers)", page("README.md"))
    }
    counts = {"methods": len({id(METHODS[name]) for name in METHODS}), "labelers": len(LABELERS)}
    assert numbers.keys() == counts.keys()
    assert all(numbers[kind] < counts[kind] <= numbers[kind] + 10 for kind in counts)


STUDY_ROWS = {  # data set of the study on docs/priors.md -> its row in the README
    "digits, glyph-clip": "digits, glyph-clip",
    "CIFAR-10, photo-clip": "CIFAR-10, photo-clip",
    "dtd (bias 0.7)": "DTD",
    "flowers (bias 0.7)": "Flowers102",
    "aircraft (bias 0.7)": "FGVC Aircraft",
}


@pytest.mark.parametrize("name", STUDY_ROWS)
def test_the_readme_has_the_numbers_of_the_study(name):
    """Zero-shot accuracy of the iid split, and all priors under Dirichlet 0.1 and iid."""
    titles = [cell.strip() for cell in re.search(r"^\| set \|(.*)\|$", page("docs/priors.md"), re.M)[1].split("|")]
    cells = re.search(rf"^\| {re.escape(name)} \|(.*)\|$", page("docs/priors.md"), re.M)[1].split("|")
    splits = {title: cell.strip().split(" / ") for title, cell in zip(titles, cells, strict=True)}
    shown = [splits["iid"][0], splits["Dirichlet 0.1"][-1], splits["iid"][-1]]
    row = re.search(rf"^\| {re.escape(STUDY_ROWS[name])}[^|]*\|(.*)\|$", page("README.md"), re.M)[1]
    assert [cell.strip() for cell in row.split("|")][:3] == shown


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_up_to_date(name):
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
    """Return the numbers of the table that a run prints, three for each row."""
    rows = re.findall(r"│ (?:zero-shot|priors|last round|best round)[^│]*│ +([\d.]+) │ +([\d.]+) │ +([\d.]+) │", text)
    return [float(number) for row in rows for number in row]


@pytest.mark.slow
def test_the_readme_shows_what_the_demo_prints(tmp_path):
    command = [sys.executable, "-m", "fedcopl", "run"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    [shown] = re.findall(r"```text\n(.*?)```", page("README.md"), re.S)
    assert len(shown_accuracies(shown)) == 12
    # Rounding differs between processors and may change one or two pseudo labels.
    assert shown_accuracies(printed) == pytest.approx(shown_accuracies(shown), abs=1.5)
    words = [line.split("  ")[0] for line in shown.splitlines()[-5:]]
    assert [line.split("  ")[0] for line in printed.splitlines()[-5:]] == words


def test_the_table_of_models_is_up_to_date():
    assert page("docs/models.md") == models_page.page()


def test_the_settings_page_is_up_to_date():
    assert page("docs/settings.md") == settings_page.page()


def test_the_api_page_is_up_to_date():
    assert page("docs/api.md") == api_page.page(), "run tools/api_page.py"
    assert set(api_page.PUBLIC) == set(fedcopl.__all__)
