"""Checkpoints: everything a run needs to go on as if it had never stopped.

A manifest is written last, and names every file with its checksum; the newest manifest whose files are all
intact counts. The one before is kept, so a half-written or damaged checkpoint costs one round, not the run.
Rows of clients that did not change are named again, not written again.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from coterie.message import pack, pack_groups, unpack, unpack_groups
from coterie.states import ClientId, ClientTable, Content, Overlay, ServerState, write_private
from coterie.tensors import Groups

_KEPT = 2


@dataclass(eq=False)
class Progress:
    """Where a run stands after `round` whole rounds."""

    round: int = 0
    log_sizes: dict[str, int] = field(default_factory=dict)
    delivered: dict[str, set[ClientId]] = field(default_factory=dict)  # content digest -> who has it
    seconds: list[float] = field(default_factory=list)
    attempts: int = 0  # that are written down in releases.jsonl
    clip: float | None = None  # of the next round, where it is adaptive


class CheckpointStore:
    """The folder `checkpoint/` of one run, with the two tables whose rows live there."""

    def __init__(self, folder: Path, row_limit_bytes: int | None, device: torch.device | None = None) -> None:
        self.folder = folder
        self._device = device
        self.clients = ClientTable(folder / "clients", row_limit_bytes, device)
        self.server = ClientTable(folder / "server", row_limit_bytes, device)
        self._saved = 0
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None
        self._public: dict[str, tuple[str, int]] = {}  # name -> digest, checksum
        self._swept = False  # whether files of an earlier process are cleared away
        self._rows_of_the_one_before: list[Path] = []  # needed only as long as the checkpoint before the newest is kept

    @property
    def saved(self) -> int:
        """Rounds that a resumed run would not repeat."""
        self.wait()
        return self._saved

    def save(self, state: ServerState, progress: Progress) -> None:
        """Begin to write; the next round may train meanwhile, and nothing of it is committed before this has ended."""
        self.wait()
        manifest = {
            "round": progress.round,
            "logs": dict(progress.log_sizes),
            "delivered": {digest: sorted(clients) for digest, clients in progress.delivered.items()},
            "seconds": list(progress.seconds),
            "attempts": progress.attempts,
            "clip": progress.clip,
        }
        changed = {"clients": self.clients.changed(), "server": self.server.changed()}
        self._pending = self._writer.submit(self._write, manifest, state, changed)

    def wait(self) -> None:
        """Until the checkpoint that is being written is whole; an error of writing it is raised here."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Nothing is saved from here on."""
        self.wait()
        self._writer.shutdown()

    def _write(self, manifest: dict[str, Any], state: ServerState, changed: Mapping[str, Mapping[ClientId, Groups]]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        state_file = f"state-{manifest['round']}.safetensors"
        manifest["state"] = [state_file, write_private(self.folder / state_file, pack_groups(state.shared))]
        manifest["public"] = self._save_public(state.public)
        for table, key in ((self.clients, "clients"), (self.server, "server")):
            manifest[key] = {str(c): list(saved) for c, saved in table.save(changed[key]).items()}
        text = json.dumps(manifest)
        whole = json.dumps({"checksum": zlib.crc32(text.encode()), "manifest": manifest})
        write_private(self._manifest(manifest["round"]), whole.encode())
        self._saved = manifest["round"]
        self._tidy()

    def load(self) -> tuple[ServerState, Progress, list[str]]:
        """The newest whole checkpoint, and what was wrong with newer ones."""
        problems: list[str] = []
        for round in sorted(self._rounds(), reverse=True):
            try:
                state, progress = self._restore(self._read(round))
            except (OSError, ValueError, KeyError, TypeError) as error:
                problems.append(f"The checkpoint of round {round} is damaged ({error}).")
                continue
            for newer in self._rounds():
                if newer > round:  # damaged; kept, it would push a whole one out
                    self._manifest(newer).unlink()
            self._saved = round
            return state, progress, problems
        if problems:
            raise ValueError(" ".join(problems) + " No whole checkpoint is left; start the run again in a new folder.")
        raise ValueError(f"'{self.folder.parent}' has no checkpoint to resume from. Start the run again with --out.")

    def exists(self) -> bool:
        return bool(self._rounds())

    def _restore(self, manifest: Mapping[str, Any]) -> tuple[ServerState, Progress]:
        shared = unpack_groups(self._whole(*manifest["state"]), self._device)
        public = {}
        self._public = {}  # what a damaged checkpoint knew of may never be published
        for name, (digest, checksum) in manifest["public"].items():
            tensors = unpack(self._whole(f"public/{digest}.safetensors", checksum))
            public[name] = Content({n: v.to(self._device) for n, v in tensors.items()} if self._device else tensors, digest)
            self._public[name] = digest, checksum
        for table, key in ((self.clients, "clients"), (self.server, "server")):
            saved = {int(client): (int(version), int(checksum)) for client, (version, checksum) in manifest[key].items()}
            for client, (version, checksum) in saved.items():
                self._whole(table.path(client, version).relative_to(self.folder), checksum)
            table.restore(saved)
        progress = Progress(
            manifest["round"], manifest["logs"], {d: set(c) for d, c in manifest["delivered"].items()}, manifest["seconds"],
            manifest.get("attempts", 0),
            manifest.get("clip"),
        )  # fmt: skip
        return ServerState(shared, self.server, public), progress

    def _save_public(self, public: Mapping[str, Content]) -> dict[str, list[Any]]:
        for name, content in public.items():
            if name not in self._public:
                (self.folder / "public").mkdir(exist_ok=True, mode=0o700)
                path = self.folder / "public" / f"{content.digest}.safetensors"
                self._public[name] = content.digest, write_private(path, pack(content.tensors))
        return {name: list(saved) for name, saved in self._public.items() if name in public}

    def _read(self, round: int) -> dict[str, Any]:
        outer = json.loads(self._manifest(round).read_text())
        manifest: dict[str, Any] = outer["manifest"]
        if zlib.crc32(json.dumps(manifest).encode()) != outer["checksum"]:
            raise ValueError("its manifest does not match its checksum")
        return manifest

    def _whole(self, file: str | Path, checksum: int) -> bytes:
        path = self.folder / file
        data = path.read_bytes()
        if zlib.crc32(data) != checksum:
            raise ValueError(f"'{path.name}' does not match its checksum")
        return data

    def _manifest(self, round: int) -> Path:
        return self.folder / f"manifest-{round}.json"

    def _rounds(self) -> list[int]:
        return [int(path.stem.split("-")[1]) for path in self.folder.glob("manifest-*.json")]

    def _tidy(self) -> None:
        """Delete what neither this checkpoint nor the one before needs; only the first time by looking at every file."""
        rounds = sorted(self._rounds())
        for round in rounds[:-_KEPT]:
            self._manifest(round).unlink()
            (self.folder / f"state-{round}.safetensors").unlink(missing_ok=True)
        done, self._rows_of_the_one_before = self._rows_of_the_one_before, [*self.clients.replaced(), *self.server.replaced()]
        if not self._swept:
            self._sweep(rounds[-_KEPT:])
            self._swept = True
            return
        for path in done:
            path.unlink(missing_ok=True)

    def _sweep(self, rounds: list[int]) -> None:
        needed: set[Path] = set()
        for round in rounds:
            try:
                manifest = self._read(round)
            except (OSError, ValueError, KeyError):
                continue
            needed.add(self.folder / manifest["state"][0])
            for table, key in ((self.clients, "clients"), (self.server, "server")):
                needed |= {table.path(int(client), saved[0]) for client, saved in manifest[key].items()}
        for folder, pattern in ((self.folder, "state-*"), (self.folder / "clients", "*"), (self.folder / "server", "*")):
            for path in folder.glob(pattern) if folder.is_dir() else ():
                if path not in needed:
                    path.unlink()


def commit(store: CheckpointStore, state: ServerState, rows: Mapping[ClientId, Any], version: int) -> ServerState:
    """Write a round's rows into the tables; the state then reads the server's rows from its table."""
    store.wait()
    store.clients.commit(rows, version)
    if isinstance(state.rows, Overlay):
        store.server.commit(state.rows.changed, version)
    elif state.rows is not store.server:
        raise ValueError("absorb gave rows that are not the server's own. Change rows with state.with_rows({client: groups}).")
    return ServerState(state.shared, store.server, state.public)
