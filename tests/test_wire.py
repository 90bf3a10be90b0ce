"""Every byte that crosses is in wire.jsonl, and it is what spec/wire.md's formulas say, entry by entry.

The formula of each method stands in its own test file (CASES[name].wire), in the letters of the specification.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from cases import ROTA, TRAINING, Facts, Toy, case_of, cohorts_of, norm_net

from coterie import methods
from coterie.engine.wire import Ledger
from coterie.message import Message
from coterie.method import ClientRun, Hub, Method, Named, Phase, Round, Site
from coterie.methods.fedavg import FedAvg
from coterie.models.nets import resnet18
from coterie.randomness import Key
from coterie.states import ServerState
from coterie.tensors import Groups


def entries(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "wire.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", methods.__all__)
def test_the_ledger_holds_exactly_the_formulas_bytes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 as in the formulas (b = 4), with a batch norm so that every letter counts, and partial participation."""
    case = case_of(name)
    plan = case.plan(name)
    crossed: list[tuple[int, str, Message]] = []
    count = Ledger.count

    def counted(self: Ledger, direction: str, message: Message, *rest: object) -> None:
        crossed.append((self.round, direction, message))
        count(self, direction, message, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "count", counted)
    case.toy.run(plan, tmp_path)
    facts = Facts.of(case.toy.net(), cohorts_of(plan, case.toy), crossed)
    found = [(e["round"], e["direction"], e["slot"], e["bytes"], e["clients"]) for e in entries(tmp_path)]
    assert sorted(found) == sorted(entry for entry in case.wire(facts) if entry[3])


def test_totals_are_sums_over_entries_and_over_participants(tmp_path: Path) -> None:
    """W3: 7 participations in 3 rounds. Linear 6 x 5 without bias, norm 5 + 5, head 5 x 3 + 3, statistics 5 + 5."""
    finish = Toy(net=norm_net).run(methods.fedavg(rounds=3, training=TRAINING, cohort=ROTA), tmp_path)
    one_way = 7 * 4 * (6 * 5 + 5 + 5 + 5 * 3 + 3 + 5 + 5)
    assert finish.summary["bytes"] == {
        "up": one_way + 7 * 8, "down": one_way, "once": 0, "up_per_client": (one_way + 56) / 4, "down_per_client": one_way / 4,
    }  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    rounds = [line for line in lines if line.get("event") == "round"]
    assert [line["bytes_up"] for line in rounds] == [(one_way + 56) // 7 * len(cohort) for cohort in ROTA.rounds]
    assert {(e["phase"], e["exchange"], e["once"]) for e in entries(tmp_path)} == {("train", None, False)}


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedper", "ditto", "fable"])
def test_keeping_statistics_local_saves_exactly_their_bytes(name: str, tmp_path: Path) -> None:
    """W4: bB in each direction and participation, with B = 10."""
    case = case_of(name)
    totals = {}
    for choice in ("average", "local"):
        totals[choice] = case.toy.run(case.plan(name, buffers=choice), tmp_path / choice).summary["bytes"]
    for way in ("up", "down"):
        assert totals["average"][way] - totals["local"][way] == 7 * 4 * 10


def test_flags_are_counted_as_bits_and_weights_as_8_bytes() -> None:
    message = Message(
        {"bits": {"open": torch.zeros(17, dtype=torch.bool)}, "y": {"labels": torch.zeros(3, dtype=torch.int64)}, "none": {}},
        scalars={"loss": torch.tensor(0.5), "pair": torch.zeros(2)}, weight=torch.tensor(1.0, dtype=torch.float64),
    )  # fmt: skip
    assert message.bytes_by_slot() == {"bits": 3, "y": 24, "scalars": 24, "weight": 8}


# --- the fixtures of spec/wire.md sections 2.3, 3 and 4, for ResNet-18 with a 3x3 stem and 10 classes ----------------------------


@pytest.fixture(scope="module")
def hub() -> Hub:
    return Hub(Round(0, 1, "train", 0, 1, (0,), 1), resnet18(3, 10), Key(0))


def bytes_of(method: Method, hub: Hub) -> tuple[int, int]:
    """Up and down of one participant, without the weight: what is declared, and what is sent."""
    slots = method.slots(hub).values()
    up = sum(torch.Size(shape).numel() * 4 for slot in slots for shape, _ in slot.spec.values())
    down = method.send(ServerState(method.server_state(hub)), 0, hub).bytes_by_slot()
    return up, sum(down.values())


LOCAL = {"buffers": "local"}


@pytest.mark.parametrize(
    ("name", "knobs", "expected"),
    [
        ("fedavg", {}, 44_695_848 + 38_400),
        ("fedprox", LOCAL, 44_695_848),
        ("ditto", LOCAL, 44_695_848),
        ("scaffold", LOCAL, 89_391_696),
        ("fedbn", {}, 44_657_448),
        ("fedper", LOCAL, 44_675_328),
        ("fedrep", LOCAL, 44_675_328),
        ("fable", {}, 44_675_328),
        ("fable", {"linear": False}, 44_675_328),
    ],
)
def test_resnet18_fixtures(name: str, knobs: dict[str, object], expected: int, hub: Hub) -> None:
    method = getattr(methods, name)(rounds=1, **knobs)[0].method
    assert bytes_of(method, hub) == (expected, expected)


@dataclass(frozen=True, kw_only=True)
class Broken(FedAvg):
    """FedAvg whose client 2 sends NaN."""

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        row, up = yield from super().client(mine, down, site)
        nan = {name: value * float("nan") for name, value in up["shared"].items()}
        return row, up.with_(shared=nan) if site.client == 2 else up


def test_a_client_that_is_left_out_has_sent_its_bytes_all_the_same(tmp_path: Path) -> None:
    """What crossed is counted before it is judged. Linear 6 x 5 + 5, head 5 x 3 + 3: 53 floats."""
    finish = Toy().run((Phase("train", 1, Broken(), Named((1, 2))),), tmp_path)
    assert finish.summary["bytes"]["up"] == 2 * (4 * 53 + 8)
    assert [(e["slot"], e["clients"]) for e in entries(tmp_path) if e["direction"] == "up"] == [("shared", 2), ("weight", 2)]
    assert set(finish.clients) == {1}
