"""A run depends on its values only: settings that nobody knows are refused, and nothing depends on who was computed before."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import OrderedDict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from cases import TRAINING, Toy, norm_net
from play import assert_same
from torch import nn

from coterie.data.examples import Finding
from coterie.engine.record import knobs
from coterie.engine.settings import Settings
from coterie.message import Message, Slot
from coterie.method import SGD, ClientRun, Hub, Phase, Site
from coterie.methods.fedavg import FedAvg, Training, fedavg
from coterie.models.losses import CrossEntropy
from coterie.models.net import EncoderHead, Net
from coterie.states import ServerState
from coterie.tensors import Groups


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        ({"backend": "lop"}, r"backend must be one of .*loop.*, found 'lop'"),
        ({"precision": "fp16"}, r"precision must be one of fp32, tf32, bf16, fp64, found 'fp16'"),
        ({"order": "backwards"}, r"order must be one of forward, reversed, found 'backwards'"),
    ],
)
def test_an_unknown_word_is_refused(knobs: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Settings(**knobs)


def test_a_plan_without_phases_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="The plan has no phase"):
        Toy().run((), tmp_path / "run")


def test_rows_wait_in_folders_that_only_their_owner_reads(tmp_path: Path) -> None:
    """Also where rows go to disk before the first checkpoint."""
    plan = fedavg(rounds=1, training=TRAINING, buffers="local")
    finish = Toy(net=norm_net).run(plan, tmp_path / "run", row_memory_mb=1e-6)
    folders = [finish.path / "checkpoint", finish.path / "checkpoint" / "clients"]
    assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700, 0o700]


def test_data_are_given_in_the_runs_precision(tmp_path: Path) -> None:
    """Columns made from NumPy are float64, the net is float32."""

    def double() -> Any:
        return toy.population().moved(lambda c: c.double() if c.is_floating_point() else c)

    plan = fedavg(rounds=2, training=TRAINING)
    assert_same(Toy(population=double).run(plan, tmp_path / "double"), Toy().run(plan, tmp_path / "single"))


def dropout_net() -> Net:
    torch.manual_seed(1)
    layer = nn.Sequential(nn.Linear(toy.FEATURES, 5), nn.ReLU(), nn.Dropout(0.5))
    return Net(EncoderHead(nn.Sequential(OrderedDict(layer1=layer)), nn.Linear(5, toy.CLASSES), 5), CrossEntropy())


def test_what_a_net_draws_by_itself_does_not_depend_on_who_was_computed_before(tmp_path: Path) -> None:
    """Dropout draws from torch's own generator, which each ask seeds by its place in the run, and leaves as it was."""
    net = dropout_net()
    plan, toys = fedavg(rounds=2, training=TRAINING), Toy(net=lambda: net)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = toys.run(plan, tmp_path / "first")
    assert torch.equal(torch.rand(3), expected)
    assert_same(first, toys.run(plan, tmp_path / "reversed", order="reversed"))


@dataclass(frozen=True, kw_only=True)
class Notes(FedAvg):
    """FedAvg whose clients also send a note that they keep, into which the server writes."""

    def slots(self, hub: Hub) -> dict[str, Slot]:
        return {**super().slots(hub), "note": Slot({"n": ((2,), torch.float32)}, reduce="each", guard="public")}

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        row, up = yield from super().client(mine, down, site)
        note = {"n": torch.ones(2)}
        return {**row, "note": note}, up.plus(note=note)

    def absorb(self, state: ServerState, mean: Message | None, each: Any, hub: Hub) -> ServerState:
        for message in each.values():
            message["note"]["n"].zero_()
        return super().absorb(state, mean, each, hub)


def test_a_server_that_writes_into_what_it_received_changes_no_clients_row(tmp_path: Path) -> None:
    finish = Toy().run((Phase("train", 1, Notes()),), tmp_path)
    assert all(torch.equal(finish.clients[k]["note"]["n"], torch.ones(2)) for k in range(4))


def test_a_last_batch_of_one_example_costs_nobody_the_round(tmp_path: Path) -> None:
    """21 = 2 x 10 + 1 examples and a batch norm."""
    finish = Toy(net=norm_net, population=lambda: toy.population(sizes=(21, 11, 20))).run(fedavg(rounds=1, training=TRAINING), tmp_path)
    assert len(finish.clients) == 3


def test_a_message_copied_shares_nothing() -> None:
    one = Message({"a": {"x": torch.ones(2)}}, {"s": torch.ones(())}, torch.ones((), dtype=torch.float64))
    two = one.copied()
    assert two.weight is not None and one.weight is not None
    for value in (two["a"]["x"], two.scalars["s"], two.weight):
        value.zero_()
    assert float(one["a"]["x"].sum() + one.scalars["s"] + one.weight) == 4


def test_an_optimiser_for_each_group_is_told_in_full() -> None:
    """SCAFFOLD around FABLE: plain SGD on what is shared, momentum on what is not."""
    training = Training(optim={"shared": SGD(lr=0.1), "private": SGD(lr=0.1, momentum=0.9)})  # type: ignore[arg-type]
    told = knobs(training)["optim"]
    assert (told["shared"]["momentum"], told["private"]["momentum"]) == (0.0, 0.9)


def test_the_median_of_an_even_number_of_rounds_is_the_median(tmp_path: Path) -> None:
    finish = Toy().run(fedavg(rounds=4, training=TRAINING), tmp_path / "run")
    events = [json.loads(line) for line in (finish.path / "metrics.jsonl").read_text().splitlines()]
    seconds = [line["seconds"] for line in events if line.get("event") == "round"]
    assert finish.summary["seconds"]["per_round_median"] == statistics.median(seconds)


def test_what_a_leak_check_found_is_told_without_a_recipe_too(tmp_path: Path) -> None:
    found = Finding("leak", "exact", 3, "3 rows of the test part are in a train part")
    toy_ = Toy(population=lambda: replace(toy.population(), findings=(found,)))
    finish = toy_.run(fedavg(rounds=1, training=TRAINING), tmp_path / "run")
    assert json.loads((finish.path / "run.json").read_text())["leak_check"] == [asdict(found)]
    unchecked = Toy().run(fedavg(rounds=1, training=TRAINING), tmp_path / "unchecked")
    assert "leak_check" not in json.loads((unchecked.path / "run.json").read_text())


def test_names_of_clients_are_utf8_whatever_the_locale(tmp_path: Path) -> None:
    """In a process of its own, since Python decides about encodings when it starts."""
    script = tmp_path / "script.py"
    script.write_text(NAMED, encoding="utf-8")
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": os.pathsep.join([*sys.path, tests])}
    subprocess.run([sys.executable, str(script), str(tmp_path / "run")], check=True, env=environment, timeout=120)
    assert "Zoë" in (tmp_path / "run" / "clients.csv").read_text(encoding="utf-8")


NAMED = """
import sys
from dataclasses import replace
from pathlib import Path
import toy
from cases import TRAINING, Toy
from coterie.methods import fedavg
population = lambda: replace(toy.population(), names=("Zo\u00eb", "b", "c", "d"))
Toy(population=population).run(fedavg(rounds=1, training=TRAINING), Path(sys.argv[1]))
"""
