"""Writes what the server saw of chosen rounds into the run folder, for attacks (`attacks/transcript.py` reads it)."""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path

from coterie.attacks.transcript import FOLDER, FORMAT, INDEX, Crossing, Transcript
from coterie.engine.wire import Way
from coterie.message import Message
from coterie.states import write_private


def recorded_rounds(wanted: int | str) -> tuple[int, frozenset[int]]:
    """"3": the first three rounds; "1,50" or "50,": exactly these. As (how many first ones, which others)."""
    words = [word.strip() for word in str(wanted).split(",")]
    listed = [word for word in words if word]
    if not listed or not all(word.isdecimal() for word in listed):
        raise ValueError(f"record_messages must be a number of rounds or a list of rounds, found '{wanted}'. Use 1 for the first round, or 1,50.")
    if len(words) == 1:
        return int(words[0]), frozenset()
    if "0" in listed:
        raise ValueError(f"record_messages counts rounds from 1, found '{wanted}'. Use for example 1,50.")
    return 0, frozenset(map(int, listed))


class Recorder:
    """The transcript of one run. Files are written as Messages cross; the index names them when their round is committed."""

    def __init__(self, run: Path, wanted: int | str) -> None:
        self.folder = run / FOLDER
        self._first, self._others = recorded_rounds(wanted)
        self._committed: list[Crossing] = []
        self._pending: list[Crossing] = []

    def begin(self, finished: int) -> None:
        """Go on after so many finished rounds: what a later, lost round has written is forgotten."""
        if (self.folder / INDEX).exists():
            known = Transcript.load(self.folder.parent).crossings
            self._committed = [crossing for crossing in known if crossing.round <= finished]

    def tape(self, index: int, phase: str, attempt: int) -> Tape | None:
        """Where a round (counted from 0) is written, or nothing if it is not recorded."""
        if not (index < self._first or index + 1 in self._others):
            return None
        return Tape(self, index + 1, phase, attempt)

    def add(self, crossing: Crossing) -> None:
        self._pending.append(crossing)

    def commit(self) -> None:
        """Name what the round has written."""
        if not self._pending:
            return
        self._committed += self._pending
        self._pending = []
        index = {"format": FORMAT, "messages": [crossing.to_json() for crossing in self._committed]}
        write_private(self.folder / INDEX, (json.dumps(index, indent=1) + "\n").encode())


class Tape:
    """One attempt of one recorded round."""

    def __init__(self, recorder: Recorder, round: int, phase: str, attempt: int) -> None:
        self._recorder, self._round, self._phase, self._attempt = recorder, round, phase, attempt
        self._written: dict[bytes, str] = {}  # by digest: equal downloads of a cohort share one file
        self._crossed = 0

    def note(self, way: Way, client: int | None, message: Message, exchange: str | None = None) -> None:
        """Write a Message down as it crosses."""
        data = message.to_bytes()
        digest = hashlib.sha256(data).digest()
        file = self._written.get(digest) if way == "down" else None
        if file is None:
            who = "sum" if client is None else f"client-{client}"
            parts = [f"round-{self._round}", way, who, str(self._crossed)]
            parts = [f"attempt-{self._attempt}", *parts] if self._attempt else parts
            file = ".".join([*parts, "safetensors"])
            self._recorder.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(self._recorder.folder / file, data)
            if way == "down":
                self._written[digest] = file
        self._crossed += 1
        self._recorder.add(Crossing(self._round, self._phase, self._attempt, client, way, exchange, file, zlib.crc32(data)))
