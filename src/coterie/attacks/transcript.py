"""What an honest-but-curious server saw of a run: the folder `transcript/`, which an attack reads and nothing else.

A run writes it (`engine/transcript.py`) when it is told to (`--record-messages`). `index.json` lists every Message in the order in which it
crossed; Messages lie beside it as safetensors, one file for all that are equal bytes. What is sent down is as it was sent. What comes up is
as it arrived, after the client's guards: averaged values as changes against what was sent, under noise multiplied by the
client's weight. Under a secure sum there is one Message per round, the sum, of no client.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from coterie.message import Message

FOLDER, INDEX = "transcript", "index.json"
FORMAT = 1


@dataclass(frozen=True)
class Crossing:
    """One Message that crossed. `client` None: the sum of a secure sum. `exchange`: of a question in mid-round."""

    round: int  # the first is 1
    phase: str
    attempt: int
    client: int | None
    way: Literal["down", "up"]
    exchange: str | None
    file: str
    checksum: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Transcript:
    """The Messages that a run has recorded, loaded one by one."""

    folder: Path
    crossings: tuple[Crossing, ...]

    @classmethod
    def load(cls, run: Path) -> Transcript:
        """The transcript of a run folder."""
        folder = run / FOLDER
        if not (folder / INDEX).exists():
            raise ValueError(
                f"'{run}' holds no recorded Messages, which are all that this attack may see. Run it again with --record-messages 1 "
                "(the first round), and give the folder of one of its runs."
            )
        try:
            index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
            known = [field.name for field in fields(Crossing)]
            crossings = tuple(Crossing(**{name: entry[name] for name in known}) for entry in index["messages"])
            readable = index["format"] == FORMAT
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"'{folder / INDEX}' is damaged: {error}. Record the run again with --record-messages.") from None
        if not readable:
            raise ValueError(f"'{folder / INDEX}' has format {index['format']}, known is {FORMAT}. Use the version that recorded it.")
        return cls(folder, crossings)

    @property
    def rounds(self) -> tuple[int, ...]:
        return tuple(sorted({crossing.round for crossing in self.crossings}))

    def message(self, crossing: Crossing) -> Message:
        """The Message itself; a damaged file is an error."""
        path = self.folder / crossing.file
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise ValueError(f"The index of '{self.folder}' names the file '{crossing.file}' outside of it. Record the run again.")
        data = path.read_bytes()
        if zlib.crc32(data) != crossing.checksum:
            raise ValueError(f"'{path}' does not match its checksum: it was changed or damaged. Record the run again with --record-messages.")
        return Message.from_bytes(data)

    def pairs(self, round: int) -> Iterator[tuple[int, Message, Message]]:
        """(client, what it was sent, what arrived from it) for everybody whose Message arrived in the round's last attempt."""
        own = [crossing for crossing in self.crossings if crossing.round == round and crossing.exchange is None]
        if not own:
            raise ValueError(f"Round {round} was not recorded, only {', '.join(map(str, self.rounds)) or 'none'}. Choose one of those.")
        last = max(crossing.attempt for crossing in own)
        own = [crossing for crossing in own if crossing.attempt == last]
        down = {crossing.client: crossing for crossing in own if crossing.way == "down"}
        for up in sorted((crossing for crossing in own if crossing.way == "up" and crossing.client is not None), key=lambda c: c.client or 0):
            assert up.client is not None
            yield up.client, self.message(down[up.client]), self.message(up)

    def summed(self, round: int) -> bool:
        """Whether the server saw the sum only."""
        return any(crossing.client is None for crossing in self.crossings if crossing.round == round)
