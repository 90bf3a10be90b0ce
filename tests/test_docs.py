"""What the pages promise: their code runs, their commands are the ones that CI uses."""

from __future__ import annotations

import dataclasses
import re
import sys
import types
from pathlib import Path

import pytest
import torch
from toy import go

from coterie import methods
from coterie.message import Slot
from coterie.method import SGD, Exchange, Method, Sweep, Train
from coterie.methods.fedavg import Training

ROOT = Path(__file__).parent.parent


def code_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def test_the_method_on_the_architecture_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """theta_2 = theta_1 + beta d_0 + d_1, where FedAvg from the same start gives d_0 and then d_1."""
    (source,) = code_blocks("docs/architecture.md")
    module = types.ModuleType("fedavgm_from_the_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(source, "docs/architecture.md", "exec"), module.__dict__)
    training = Training(optim=SGD(lr=0.1), batch_size=8)

    def after(rounds: int, momentum: bool) -> dict[str, torch.Tensor]:
        plan = (module.fedavgm if momentum else methods.fedavg)(rounds=rounds, training=training)
        finish = go(plan, tmp_path / f"{rounds}-{momentum}", precision="fp64")
        return finish.state.shared["shared"]

    from toy import net

    start = {name: value.double() for name, value in net().params.items()}
    one, two = after(1, momentum=False), after(2, momentum=False)
    found_one, found_two = after(1, momentum=True), after(2, momentum=True)
    for name, theta_0 in start.items():
        torch.testing.assert_close(found_one[name], one[name], rtol=0, atol=1e-12)
        expected = one[name] + 0.9 * (one[name] - theta_0) + (two[name] - one[name])
        torch.testing.assert_close(found_two[name], expected, rtol=0, atol=1e-12)


def test_the_example_in_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = code_blocks("README.md")
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {"__name__": "readme"}
    exec(compile(source, "README.md", "exec"), space)
    assert list(tmp_path.glob("runs/*/summary.json"))


def test_ci_runs_the_readmes_test_command() -> None:
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    commands = [line for line in readme.splitlines() if line.startswith("python3 -m venv")]
    assert len(commands) == 2
    assert commands[1] in ci


SHIPPED = {
    "local", "centralized", "fedavg", "fedprox", "scaffold", "fedbn", "fedper", "fedrep", "ditto", "fable", "fl_gap", "fedxds",
    "privfedtalk",
}  # fmt: skip


def test_the_readmes_table_holds_the_methods_that_ship_and_no_others() -> None:
    """A list of its own, so that a new method touches its file, its test and one import line, and no page."""
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert SHIPPED <= set(rows) <= set(methods.__all__)


def test_the_page_for_authors_names_every_hook_and_every_ask() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    hooks = [name for name, value in vars(Method).items() if isinstance(value, types.FunctionType)]
    fields = [f.name for ask in (Train, Sweep, Exchange, Slot) for f in dataclasses.fields(ask)]
    assert len(hooks) == 11 and [name for name in (*hooks, *fields) if f"`{name}" not in page] == []
