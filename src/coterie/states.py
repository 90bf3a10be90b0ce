"""Who remembers what: the server's state, and one row of named tensors per client.

Values in, values out: a method gets a state and returns another; nothing is changed in place.
"""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import torch

from coterie.message import pack, pack_groups, unpack_groups
from coterie.tensors import Groups, Tensors, memory_bytes

ClientId: TypeAlias = int


@dataclass(frozen=True)
class Content:
    """Something public that the server publishes once (a backbone, a shared set), known by its hash."""

    tensors: Tensors
    digest: str

    @classmethod
    def of(cls, tensors: Tensors) -> Content:
        return cls(tensors, hashlib.blake2b(pack(tensors), digest_size=16).hexdigest())


@dataclass(frozen=True)
class ServerState:
    """What the server remembers: `shared` for all, `rows` per client, `public` written once by name."""

    shared: Groups = field(default_factory=dict)
    rows: Mapping[ClientId, Groups] = field(default_factory=dict)
    public: Mapping[str, Content] = field(default_factory=dict)

    def with_shared(self, **groups: Tensors) -> ServerState:
        return replace(self, shared={**self.shared, **groups})

    def with_rows(self, rows: Mapping[ClientId, Groups]) -> ServerState:
        """The same state with these clients' rows replaced (the others are not touched or loaded)."""
        return replace(self, rows=Overlay(self.rows, rows))

    def publishing(self, name: str, tensors: Tensors) -> ServerState:
        if name in self.public:
            raise ValueError(f"Public content '{name}' is already published and can't change. Publish it under another name.")
        return replace(self, public={**self.public, name: Content.of(tensors)})


class Overlay(Mapping[ClientId, Groups]):
    """A table seen through this round's changes; the engine writes `changed` back when the round is committed."""

    def __init__(self, below: Mapping[ClientId, Groups], changed: Mapping[ClientId, Groups]) -> None:
        self.below: Mapping[ClientId, Groups] = below.below if isinstance(below, Overlay) else below
        self.changed: dict[ClientId, Groups] = {**(below.changed if isinstance(below, Overlay) else {}), **changed}

    def __getitem__(self, client: ClientId) -> Groups:
        return self.changed[client] if client in self.changed else self.below[client]

    def __contains__(self, client: object) -> bool:
        return client in self.changed or client in self.below

    def __iter__(self) -> Iterator[ClientId]:
        yield from sorted({*self.below, *self.changed})

    def __len__(self) -> int:
        return len({*self.below, *self.changed})


class ClientTable(Mapping[ClientId, Groups]):
    """One row per client that ever took part. Rows beyond `limit_bytes` wait on disk, oldest use first.

    A row's file is named after client and version and never rewritten, so a checkpoint only names
    versions: what has not changed since the last one is not written again. Files hold secrets
    (anchors, heads), hence mode 0600 in a folder of mode 0700.
    """

    def __init__(self, folder: Path | None = None, limit_bytes: int | None = None, device: torch.device | None = None) -> None:
        if limit_bytes is not None and folder is None:
            raise ValueError("A ClientTable with a memory limit needs a folder for the rows beyond it. Give folder=...")
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._device = device  # where rows from disk are put that lay on an accelerator
        self._writing = threading.RLock()  # a checkpoint may be written while the next round reads
        self._memory: OrderedDict[ClientId, Groups] = OrderedDict()
        self._sizes: dict[ClientId, int] = {}
        self._bytes = 0
        self._version: dict[ClientId, int] = {}
        self._on_disk: dict[ClientId, tuple[int, int]] = {}  # newest version that has a file, and its checksum
        self._replaced: list[Path] = []  # files of older versions since somebody asked

    def __getitem__(self, client: ClientId) -> Groups:
        if client in self._memory:
            self._memory.move_to_end(client)
            return self._memory[client]
        if client not in self._version:
            raise KeyError(client)
        row = unpack_groups(self.path(client, self._version[client]).read_bytes(), self._device)
        self._remember(client, row)
        self._spill()
        return row

    def __contains__(self, client: object) -> bool:
        return client in self._version

    def __iter__(self) -> Iterator[ClientId]:
        return iter(sorted(self._version))

    def __len__(self) -> int:
        return len(self._version)

    @property
    def bytes_in_memory(self) -> int:
        return self._bytes

    def path(self, client: ClientId, version: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{client}-{version}.safetensors"

    def commit(self, rows: Mapping[ClientId, Groups], version: int) -> None:
        """Replace these rows; `version` grows from round to round."""
        for client, row in rows.items():
            self._version[client] = version
            self._remember(client, row)
        self._spill()

    def changed(self) -> dict[ClientId, Groups]:
        """The rows that have no file of their newest version."""
        return {c: row for c, row in self._memory.items() if self._on_disk.get(c, (None, 0))[0] != self._version[c]}

    def save(self, rows: Mapping[ClientId, Groups]) -> dict[ClientId, tuple[int, int]]:
        """Write these rows, from `changed`, before the table changes again; version and checksum of every client."""
        for client, row in rows.items():
            self._write(client, row)
        return dict(self._on_disk)

    def replaced(self) -> list[Path]:
        """Files whose row has a newer file, since the last call."""
        with self._writing:
            found, self._replaced = self._replaced, []
        return found

    def restore(self, saved: Mapping[ClientId, tuple[int, int]]) -> None:
        """Forget everything and take the rows of these versions from disk (when they are asked for)."""
        self._memory.clear()
        self._sizes.clear()
        self._bytes = 0
        self._replaced = []
        self._version = {client: version for client, (version, _) in saved.items()}
        self._on_disk = dict(saved)

    def version(self, client: ClientId) -> int | None:
        return self._version.get(client)

    def _remember(self, client: ClientId, row: Groups) -> None:
        self._bytes += memory_bytes(row) - self._sizes.get(client, 0)
        self._sizes[client] = memory_bytes(row)
        self._memory[client] = row
        self._memory.move_to_end(client)

    def _spill(self) -> None:
        if self.limit_bytes is None:
            return
        while self._bytes > self.limit_bytes and len(self._memory) > 1:
            client = next(iter(self._memory))
            self._write(client, self._memory[client])
            del self._memory[client]
            self._bytes -= self._sizes.pop(client)

    def _write(self, client: ClientId, row: Groups) -> None:
        with self._writing:
            version = self._version[client]
            if self._on_disk.get(client, (None, 0))[0] == version:
                return
            assert self.folder is not None
            for folder in (self.folder.parent, self.folder):  # mkdir gives its mode to the last of a path only
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if client in self._on_disk:
                self._replaced.append(self.path(client, self._on_disk[client][0]))
            self._on_disk[client] = version, write_private(self.path(client, version), pack_groups(row))


def write_private(path: Path, data: bytes) -> int:
    """Write a whole file that only its owner may read, or nothing; its checksum. The name appears when all is there."""
    partial = path.with_name(path.name + ".partial")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    os.replace(partial, path)  # noqa: PTH105 - Path.replace returns a new path, this says what happens
    return zlib.crc32(data)
