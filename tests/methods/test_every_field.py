"""Every hyperparameter of every method counts: a field that changes nothing is a bug."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import ROTA, case_of
from play import tensors_of

from coterie import methods
from coterie.method import SGD, Adam, Cohort


def changes_of() -> list[tuple[str, str]]:
    """(method, field) over the plan functions' parameters, taken apart where they are dataclasses."""
    found = []
    for name in methods.__all__:
        try:
            case = case_of(name)
        except AssertionError:
            continue  # test_every_method_states_its_case says it
        found += [(name, where) for where in fields_of(case.arguments(name), signature_of(name))]
    return found


def signature_of(name: str) -> dict[str, Any]:
    parameters = inspect.signature(getattr(methods, name)).parameters.values()
    return {p.name: None if p.default is p.empty else p.default for p in parameters}


def fields_of(arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for name, default in defaults.items():
        value = arguments.get(name, default)
        if dataclasses.is_dataclass(value) and not isinstance(value, SGD | Adam | Cohort | type(ROTA)):
            inner = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            found += [f"{name}.{where}" for where in fields_of(inner, inner)]
        else:
            found.append(name)
    return found


def with_changes(value: Any, changes: Mapping[str, object]) -> Any:
    """Arguments, or a dataclass among them, with fields like "training.epochs" replaced, all at once."""
    new: dict[str, Any] = {where: other for where, other in changes.items() if "." not in where}
    for name in {where.partition(".")[0] for where in changes if "." in where}:
        inner = {where.removeprefix(f"{name}."): other for where, other in changes.items() if where.startswith(f"{name}.")}
        new[name] = with_changes(value[name] if isinstance(value, dict) else getattr(value, name), inner)
    return {**value, **new} if isinstance(value, dict) else replace(value, **new)


@pytest.mark.parametrize("name", methods.__all__)
def test_every_method_states_its_case(name: str) -> None:
    case = case_of(name)
    stated, fields = set(case.changes), fields_of(case.arguments(name), signature_of(name))
    missing = [f for f in fields if not any(f == s or f.startswith(f"{s}.") for s in stated)]
    unknown = [s for s in stated if not any(f == s or f.startswith(f"{s}.") for f in fields)]
    assert not missing, f"CASES['{name}'].changes says nothing of {missing}: another value, and a setting in which it matters"
    assert not unknown, f"CASES['{name}'].changes speaks of {unknown}, which {name} does not have"


@pytest.mark.parametrize(("name", "field"), changes_of())
def test_every_field_changes_the_result(name: str, field: str, tmp_path: Path) -> None:
    case = case_of(name)
    change = next((c for s, c in case.changes.items() if field == s or field.startswith(f"{s}.")), None)
    if change is None:
        pytest.fail(f"CASES['{name}'].changes says nothing of '{field}'")
    if isinstance(change, str):
        return  # the case states why it can't matter
    other, setting = change
    arguments, results = {**signature_of(name), **case.arguments(name)}, []
    for i, changes in enumerate((setting, {**setting, field: other})):
        plan = getattr(methods, name)(**with_changes(arguments, changes))
        finish = case.toy.run(plan, tmp_path / str(i), precision="fp64", eval_every=100, checkpoint_every=100)
        results.append((tensors_of(finish), finish.summary["results"]))
    (one, first), (two, second) = results
    assert one.keys() != two.keys() or first != second or any(not torch.equal(v, two[n]) for n, v in one.items())
