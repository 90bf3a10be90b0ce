"""Rows of many clients wait on disk, change no number, and cost what the cohort costs (small form of benchmarks/scale.py)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import numbers

from coterie import methods, states
from coterie.data.examples import ClientParts, Population, View
from coterie.engine.run import Finish, run
from coterie.engine.settings import Settings
from coterie.method import SGD, Fixed
from coterie.methods.fedavg import Training
from coterie.metrics.classification import Classification
from coterie.models.nets import mlp
from coterie.states import ClientId, ClientTable
from coterie.tensors import Groups

FEATURES, CLASSES, HIDDEN, COHORT, ROUNDS, EACH = 8, 3, 24, 40, 6, 8
PARAMETERS = FEATURES * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES
ROW_BYTES = 4 * PARAMETERS  # SCAFFOLD keeps one control variate per client
LIMIT = 25 * ROW_BYTES  # fewer than the cohort: rows spill within a round


def views(clients: int) -> Population:
    """`clients` views on one table of random points with a linear teacher."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients * EACH, FEATURES, generator=generator)
    table = {"x": x, "y": (x @ torch.randn(FEATURES, CLASSES, generator=generator)).argmax(1)}
    starts = range(0, clients * EACH, EACH)
    parts = [ClientParts(*(View(table, torch.arange(s + a, s + b)) for a, b in ((0, 6), (6, 7), (7, 8)))) for s in starts]
    return Population("views", tuple(map(str, range(clients))), parts, num_classes=CLASSES)


def scaffold(clients: int, out: Path, limit: int | None) -> Finish:
    torch.manual_seed(0)
    net = mlp(FEATURES, CLASSES, hidden=(HIDDEN,))
    plan = methods.scaffold(rounds=ROUNDS, training=Training(optim=SGD(lr=0.05), batch_size=6), cohort=Fixed(COHORT))
    megabytes = None if limit is None else limit / 1e6
    settings = Settings(backend="loop", row_memory_mb=megabytes, eval_clients="cohort", eval_every=3, quiet=True)
    return run(plan, views(clients), net=net, metric=Classification(CLASSES), out=out, settings=settings)


class Counted:
    """What a run does with rows, round by round."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.in_memory: list[int] = []
        self.read: list[int] = [0]
        self.written: list[int] = [0]
        commit, write, unpack = ClientTable.commit, states.write_private, states.unpack_groups

        def committing(table: ClientTable, rows: Mapping[ClientId, Groups], version: int) -> None:
            commit(table, rows, version)
            self.in_memory.append(table.bytes_in_memory)
            self.read.append(0)
            self.written.append(0)

        def writing(path: Path, data: bytes) -> int:
            self.written[-1] += 1
            return write(path, data)

        def reading(data: bytes, device: torch.device | None = None) -> Any:
            self.read[-1] += 1
            return unpack(data, device)

        patch.setattr(ClientTable, "commit", committing)
        patch.setattr(states, "write_private", writing)
        patch.setattr(states, "unpack_groups", reading)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Finish, Counted]]:
    """300 clients with a limit and without, and 100 clients with it."""
    found = {}
    for name, clients, limit in (("spilled", 300, LIMIT), ("whole", 300, None), ("few", 100, LIMIT)):
        with pytest.MonkeyPatch.context() as patch:
            counted = Counted(patch)
            found[name] = scaffold(clients, tmp_path_factory.mktemp(name) / "run", limit), counted
    return found


def test_rows_beyond_the_limit_are_on_disk_and_memory_stays_below(runs: dict[str, tuple[Finish, Counted]]) -> None:
    finish, counted = runs["spilled"]
    assert len(finish.clients) * ROW_BYTES > 5 * LIMIT  # far more rows than may stay in memory
    assert len(counted.in_memory) == ROUNDS and max(counted.in_memory) <= LIMIT
    assert runs["whole"][1].in_memory[-1] == len(runs["whole"][0].clients) * ROW_BYTES  # the check itself can fail
    files = list((finish.path / "checkpoint" / "clients").glob("*.safetensors"))
    assert {int(path.stem.split("-")[0]) for path in files} == set(finish.clients)
    assert sum(path.stat().st_size for path in files) > len(finish.clients) * ROW_BYTES


def test_a_limit_changes_no_number(runs: dict[str, tuple[Finish, Counted]]) -> None:
    spilled, whole = runs["spilled"][0], runs["whole"][0]
    assert numbers(spilled) == numbers(whole)
    for log in ("clients.csv", "wire.jsonl"):
        assert (spilled.path / log).read_text() == (whole.path / log).read_text()
    assert set(spilled.clients) == set(whole.clients)
    for client in whole.clients:
        a, b = spilled.clients[client]["control"], whole.clients[client]["control"]
        assert all(torch.equal(a[name], b[name]) for name in b)


def test_a_round_reads_and_writes_the_rows_of_its_cohort_only(runs: dict[str, tuple[Finish, Counted]]) -> None:
    """Counted from commit to commit: rows of evaluation and of the next training are read, changed rows are written once."""
    for name in ("spilled", "few"):  # 300 and 100 clients
        counted = runs[name][1]
        assert sum(counted.written) == COHORT * ROUNDS
        assert max(counted.written) <= COHORT and max(counted.read) <= 2 * COHORT
        assert sum(counted.read) > COHORT
    assert sum(runs["whole"][1].written) == COHORT * ROUNDS and sum(runs["whole"][1].read) == 0
