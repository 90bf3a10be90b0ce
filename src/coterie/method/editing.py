"""How one method drives another's client run and changes what it asks."""

from __future__ import annotations

import types
from collections.abc import Callable, Generator
from typing import Any

from coterie.method.asks import Ask, Exchange, Train
from coterie.method.hooks import ClientRun
from coterie.tensors import Groups


def as_run(result: Any) -> Generator[Any, Any, Any]:
    """A hook that asks nothing may be a plain function: give its value the form of a run."""
    if isinstance(result, types.GeneratorType):
        return (yield from result)
    return result


class editing:
    """Drive an inner client run and change the asks that move a group: how one method wraps another.

    Only `Train` asks whose params hold `moves` are changed (and only those called `named`, where given).
    `started`, `trained` and `lr_sum` tell of the changed asks: first start, last result, sum of rates per group.
    """

    def __init__(self, run: Any, change: Callable[[Train], Train], *, moves: str, named: str | None = None) -> None:
        self._run = as_run(run)
        self._change = change
        self._moves = moves
        self._named = named
        self._matched = False
        self.started: Groups = {}
        self.trained: Groups = {}
        self.lr_sum: dict[str, float] = {}

    def __iter__(self) -> ClientRun:
        run, answer, error = self._run, None, None
        while True:
            try:
                ask = run.throw(error) if error is not None else run.send(answer)
            except StopIteration as stop:
                if not self._matched:
                    raise ValueError(
                        f"An edit of asks that move '{self._moves}' matched none in this client's run. "
                        "Wrap a method that trains that group, or edit another group."
                    ) from None
                return stop.value  # type: ignore[no-any-return]
            error = None
            edited = self._matches(ask)
            if edited:
                ask = self._change(ask)
                self._matched = True
                for group, tensors in ask.params.items():
                    self.started.setdefault(group, tensors)
            try:
                answer = yield ask
            except GeneratorExit:
                run.close()
                raise
            except Exception as raised:
                error = raised
                continue
            if edited:
                self.trained.update(answer.params)
                for group, total in answer.lr_sum.items():
                    self.lr_sum[group] = self.lr_sum.get(group, 0.0) + total

    def _matches(self, ask: Ask) -> bool:
        return isinstance(ask, Train) and self._moves in ask.params and self._named in (None, ask.name)


def peek(run: Any, *, moves: str) -> Generator[Ask, Any, Train]:
    """The first ask of a run that moves this group, by `ask = yield from peek(...)`; what the run asks before is asked.

    The run is closed, and must be started again.
    """
    run, answer = as_run(run), None
    try:
        while True:
            ask: Ask = run.send(answer)
            if isinstance(ask, Train) and moves in ask.params:
                return ask
            if isinstance(ask, Exchange):
                raise ValueError(f"This client run asks the server '{ask.name}' before it moves '{moves}', which may happen only once.")
            answer = yield ask
    except StopIteration:
        raise ValueError(f"This client run never moves '{moves}', so there is no such ask to look at. Wrap a method that trains it.") from None
    finally:
        run.close()
