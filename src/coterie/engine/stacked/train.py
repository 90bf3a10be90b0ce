"""Many Trains of one signature as one: the reference's steps under vmap, stepped outside it in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coterie.engine.answers import count_steps
from coterie.engine.recording import Kept
from coterie.engine.signature import Signature, signature
from coterie.engine.stacked.member import Member, longest_first
from coterie.engine.stacked.program import StackedProgram
from coterie.method import Net, Round, Train, Trained


def train_stacked(
    members: Sequence[Member], net: Net, round: Round, programs: Kept[StackedProgram] | None = None,
    remark: Callable[[str], None] = lambda reason: None,
) -> list[Trained]:  # fmt: skip
    """What `answers.train` gives for every member, from steps that all of them take together.

    `programs` keeps what the next members of the same kind can use again; `remark` is told why steps are not recorded.
    """
    programs = Kept() if programs is None else programs

    def answer(ordered: Sequence[Member]) -> list[Trained]:
        first = ordered[0].ask
        assert isinstance(first, Train)
        asks = [member.ask for member in ordered if isinstance(member.ask, Train)]
        kind: Signature = (id(net), len(ordered), signature(first), shared_refs(asks))
        program = programs.get(kind, lambda: StackedProgram(asks, net))
        found = program.answer(ordered, round)
        if program.told:
            remark(program.told.pop())
        return found

    return longest_first(members, _steps, answer)


def shared_refs(asks: Sequence[Train]) -> frozenset[tuple[str, str]]:
    """Refs that are one tensor for all of them, and need no copy for each."""
    first = asks[0].refs
    return frozenset(
        (group, name) for group, values in first.items() for name, value in values.items()
        if all(ask.refs[group][name] is value for ask in asks)
    )  # fmt: skip


def _steps(member: Member) -> int:
    assert isinstance(member.ask, Train)
    return count_steps(member.ask, member.streams)
