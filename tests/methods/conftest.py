"""What the tests of methods share: one thread, and runs in float64 on the toy population."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from cases import Toy, case_of
from play import Play, record

from coterie.engine.run import Finish
from coterie.method import Plan


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def go64(tmp_path: Path) -> Callable[..., Finish]:
    """Run a plan in float64, each time in a new folder."""
    count = iter(range(1000))

    def go(plan: Plan, toy: Toy = Toy(), **settings: object) -> Finish:
        return toy.run(plan, tmp_path / str(next(count)), precision="fp64", **settings)

    return go


@pytest.fixture(scope="session")
def play_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Play]:
    """Every method is played once for all checks that only look."""
    known: dict[str, Play] = {}

    def play(name: str) -> Play:
        if name not in known:
            known[name] = record(case_of(name), name, tmp_path_factory.mktemp(name) / "run")
        return known[name]

    return play
