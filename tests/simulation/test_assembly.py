"""Names and images of the clients of a simulation, its notes, and refused settings."""

import json

import pytest
from safetensors.numpy import load_file

from data.pictures import encoded, make_images, noise, put
from fedcopl.config import Data, RunConfig
from fedcopl.data.catalog import load_digits
from fedcopl.data.partitioning import client_names
from fedcopl.errors import ConfigError, DataError
from fedcopl.report.run_page import write_report
from fedcopl.run.progress_reporter import ProgressReporter
from fedcopl.simulation.simulate import simulate
from small_digits import small_digits


def test_names_of_clients_sort_by_number():
    digits = load_digits()
    assert client_names(digits, Data(clients=3)) == ["client-0", "client-1", "client-2"]
    names = client_names(digits, Data(clients=11))
    assert names == sorted(names)
    assert names[-1] == "client-10"


def run_on(path, folder, source="folder", **data):
    settings = {"rounds": 1, "train": {"epochs": 1}, "data": {"source": source, "path": str(path)} | data}
    return simulate(RunConfig.from_mapping(settings, "test"), folder)


def test_without_labels_only_accuracy_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCOPL_CACHE", str(tmp_path / "cache"))
    photos = make_images(tmp_path / "photos", *(f"{i}.png" for i in range(12)))
    put(photos, "classes.txt", "zero\none\n")
    put(photos, "broken.png", b"not an image")
    put(photos, "empty.png", b"")
    notes: list[str] = []
    monkeypatch.setattr(ProgressReporter, "note", lambda self, words: notes.append(words))
    results = run_on(photos, tmp_path / "run", partition="iid", clients=2)
    listing = tmp_path / "run" / "skipped.jsonl"
    assert any(
        words.startswith("2 images are skipped, for") and words.endswith(f"{listing} lists all") for words in notes
    )
    assert (results.final.macro, results.final.weighted, results.final.everywhere) == (None, None, None)
    assert results.pseudo_label_accuracy == (None,)
    assert results.images_left_out == 2
    assert results.images_used > 0
    assert [json.loads(line)["name"] for line in listing.read_text().splitlines()] == ["broken.png", "empty.png"]
    assert write_report(tmp_path / "run").exists()


def test_clients_of_a_natural_partition_keep_any_names(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCOPL_CACHE", str(tmp_path / "cache"))
    rows = ["path,label,split,client"]
    for i in range(20):
        put(tmp_path / "photos", f"{i}.png", encoded(noise(i)))
        label, split = "zero" if i % 3 else "one", "train" if i % 4 else "test"
        rows.append(f"{i}.png,{label},{split},{'server' if i < 10 else '../up'}")
    manifest = put(tmp_path / "photos", "list.csv", "\n".join(rows))
    results = run_on(manifest, tmp_path / "run", source="manifest", partition="natural")
    assert sorted(client.name for client in results.clients) == ["../up", "server"]
    assert results.final.macro is not None
    written = sorted(path.name for path in (tmp_path / "run" / "prompts" / "clients").iterdir())
    assert written == ["%2E.%2Fup.safetensors", "server.safetensors"]
    assert set(load_file(tmp_path / "run" / "prompts" / "server.safetensors")) == {"visual"}


def test_single_class_is_refused(tmp_path):
    photos = make_images(tmp_path / "photos", "1.png", "2.png")
    put(photos, "classes.txt", "zero, one, two\n")
    with pytest.raises(DataError, match=r"only one class, 'zero, one, two'; write one class name per line"):
        run_on(photos, tmp_path / "run", partition="iid", clients=1)


def test_too_long_class_names_are_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCOPL_CACHE", str(tmp_path / "cache"))
    photos = make_images(tmp_path / "photos", "1.png", "2.png")
    put(photos, "classes.txt", "zero\nantidisestablishmentarianism of the highest order\n")
    with pytest.raises(ConfigError, match=r"class 'antidis.*shorten it, or lower model\.text_prompts"):
        run_on(photos, tmp_path / "run", partition="iid", clients=1)


def test_path_without_source_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"the built-in digits have no path; .*data\.source=folder"):
        run_on(tmp_path, tmp_path / "run", source="digits")


def test_known_class_prior_is_used(tmp_path):
    shares = {name: 1 + number for number, name in enumerate(load_digits().classes)}
    (tmp_path / "mix.json").write_text(json.dumps(shares))
    settings = {"method": "priors", "model": {"threads": 1}, "priors": {"class_prior": str(tmp_path / "mix.json")}}
    simulate(RunConfig.from_mapping(settings, "test"), tmp_path / "run", dataset=small_digits())
    stored = load_file(tmp_path / "run" / "prompts" / "priors.safetensors")
    assert stored["class_prior"].tolist() == pytest.approx([(1 + number) / 55 for number in range(10)])


def test_known_class_prior_needs_logit_bias_and_file(tmp_path):
    nowhere = {"method": "priors", "priors": {"class_prior": str(tmp_path / "nowhere.csv")}}
    with pytest.raises(DataError, match=r"nowhere\.csv: there is no such file with a class prior"):
        simulate(RunConfig.from_mapping(nowhere, "test"), tmp_path / "run")
    off = {"method": "priors", "priors": {"class_prior": "mix.csv", "logit_bias": False}}
    with pytest.raises(ConfigError, match=r"priors\.class_prior: has no effect without priors\.logit_bias"):
        simulate(RunConfig.from_mapping(off, "test"), tmp_path / "run")
