"""Many clients whose models are asked and trained side by side: the same bits as one after the other."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from fedcopl.clip import in_company
from fedcopl.clip.in_company import NEVER, alike_from
from fedcopl.clip.text_towers import CausalText
from fedcopl.clip.vision_tower import VisionTower
from fedcopl.data.catalog import load_digits
from fedcopl.errors import ClientFailed
from fedcopl.federation.learner import LookWanted
from fedcopl.methods.side_by_side import found_for_each
from fedcopl.run.record import to_plain
from fedcopl.run.watcher import SilentWatcher
from fedcopl.simulation import simulate as simulating
from fedcopl.simulation import together
from fedcopl.simulation.assemble import assemble
from fedcopl.simulation.simulate import simulate
from few_sites import bits, config_of, without_times
from small_digits import SITE_ALONE

SIZES = [20, 2, 17, 6, 9, 1, 12, 4, 12]  # images of nine sites: some have fewer than a product is alike from
ALONE = 10**9  # teams at least: then nobody is in one


@cache
def nine_sites():
    digits = load_digits()
    whose = np.repeat(np.arange(len(SIZES)), SIZES)
    train, test = (
        replace(images, images=images.images[: len(held)], labels=images.labels[: len(held)], clients=held)
        for images, held in ((digits.train, whose), (digits.test, whose[::3]))
    )
    return replace(digits, train=train, test=test, clients=tuple(f"site-{number}" for number in range(len(SIZES))))


def played(folder, *pairs, workers=1, **more):
    config = config_of("epochs=2", "batch=5", "model.threads=1", *pairs)
    return simulate(config, folder, workers=workers, dataset=nine_sites(), **more)


@pytest.fixture
def lots(monkeypatch):
    """How many lots went through each tower at once."""
    seen = {VisionTower: [], CausalText: []}
    for tower, place in ((VisionTower, 1), (CausalText, 2)):

        def counted(*given, _whole=tower.of_each, _seen=seen[tower], _place=place, **named):
            _seen.append(len(given[_place]))
            return _whole(*given, **named)

        monkeypatch.setattr(tower, "of_each", counted)
    return seen


RUNS = {
    "fedcopl": ((), (True, True)),
    "as in the paper": (("train.held_out=0", "train.step=plain", *SITE_ALONE), (True, True)),
    "visual prompts alone": (("method=fedvpt", *SITE_ALONE), (True, False)),
    "text prompts alone": (("method=promptprox", "labeler=fpl"), (False, True)),
    "candidate sets": (("method=local", "labeler=cpl", "labels.cpl_loss=rc", "train.clip_norm=0.1"), (True, True)),
    "a way of its own": (("method=pfedmoap", "labeler=fpl", *SITE_ALONE), (False, False)),
    "in secret": (("privacy.secure_sums=true", *SITE_ALONE), (True, True)),
}


@pytest.mark.parametrize(("pairs", "shared"), RUNS.values(), ids=RUNS)
def test_side_by_side_and_one_by_one_are_the_same_bits(tmp_path, monkeypatch, lots, pairs, shared):
    monkeypatch.setattr(together, "FEWEST_TEAMS", ALONE)
    alone = played(tmp_path / "alone", *pairs)
    assert {*lots[VisionTower], *lots[CausalText]} == {1}
    monkeypatch.setattr(together, "FEWEST_TEAMS", 1)
    beside = played(tmp_path / "beside", *pairs)
    assert (max(lots[VisionTower]) > 1, max(lots[CausalText]) > 1) == shared
    assert without_times(to_plain(beside)) == without_times(to_plain(alone))
    assert bits(tmp_path / "beside") == bits(tmp_path / "alone")


@pytest.mark.parametrize("many_clients", [1, 500], ids=["states in files", "states in memory"])
def test_in_workers_too(tmp_path, monkeypatch, many_clients):
    monkeypatch.setattr(together, "FEWEST_TEAMS", ALONE)
    alone = played(tmp_path / "alone", *SITE_ALONE)
    monkeypatch.setattr(together, "FEWEST_TEAMS", 2)
    monkeypatch.setattr(simulating, "MANY_CLIENTS", many_clients)
    beside = played(tmp_path / "beside", *SITE_ALONE, workers=2)
    assert without_times(to_plain(beside)) == without_times(to_plain(alone))
    assert bits(tmp_path / "beside") == bits(tmp_path / "alone")


@pytest.mark.parametrize("workers", [1, 2])
def test_who_fails_in_a_team_is_named(tmp_path, monkeypatch, workers):
    from fedcopl.methods import training

    def refuses(config, round, epoch, highest):
        raise RuntimeError("no rate today")

    monkeypatch.setattr(together, "FEWEST_TEAMS", 1)
    monkeypatch.setattr(training, "learning_rate", refuses)
    with pytest.raises(ClientFailed, match=r"site-\d.*no rate today"):
        played(tmp_path / "run", *SITE_ALONE, workers=workers)


def test_few_clients_are_asked_one_by_one():
    clients = assemble(config_of(), SilentWatcher(), nine_sites()).clients
    assert list(together.side_by_side(dict.fromkeys(clients), clients)) == []


def test_those_who_share_a_process_are_in_a_team(monkeypatch):
    monkeypatch.setattr(together, "FEWEST_TEAMS", 3)
    clients = assemble(config_of(), SilentWatcher(), nine_sites()).clients
    names = list(clients)
    teams = together.side_by_side(dict.fromkeys(names), clients, [names[::2], names[1::2]])
    assert list(teams) == [tuple(names[0:6:2]), tuple(names[6::2]), tuple(names[1:7:2]), tuple(names[7::2])]


def test_what_is_found_is_given_to_whom_it_is_of():
    learners = [client.learner for client in assemble(config_of(), SilentWatcher(), nine_sites()).clients.values()]
    wanted = [(learner, LookWanted(learner.start, np.arange(len(learner.images)))) for learner in learners]
    for (learner, what), found in zip(wanted, found_for_each(wanted), strict=True):
        assert np.array_equal(found, learner.examine(what.prompts, what.index))


# Whether a row of a product may be in company


def test_of_this_machines_products():
    torch.set_num_threads(1)
    tower = nn.Sequential(nn.Linear(64, 192), nn.Linear(192, 64))
    fewest = alike_from(tower)
    x = torch.randn(300, 64)
    for rows in (fewest, fewest + 1, 41, 123):
        assert torch.equal(tower[0](x)[:rows], tower[0](x[:rows]))


def test_it_is_tried(monkeypatch):
    torch.set_num_threads(1)

    def depends(given, weight, bias):
        return given @ weight.T + (len(given) if len(given) < 10 else 0)

    monkeypatch.setattr(in_company.F, "linear", depends)
    assert alike_from(nn.Linear(8, 8)) == 10


def test_never_where_it_always_depends_or_threads_share(monkeypatch):
    torch.set_num_threads(1)
    with monkeypatch.context() as patched:
        patched.setattr(in_company.F, "linear", lambda given, weight, bias: given @ weight.T + len(given))
        assert alike_from(nn.Linear(8, 8)) == NEVER
    assert alike_from(nn.Linear(8, 8).double()) == NEVER
    assert alike_from(nn.ReLU()) == NEVER
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert alike_from(nn.Linear(8, 8)) == NEVER
