"""What lay on an accelerator is put back there when it comes from disk, and what did not stays."""

from __future__ import annotations

from pathlib import Path

import torch

from coterie.message import pack, pack_groups, unpack_groups
from coterie.states import ClientTable

META = torch.device("meta")  # stands for an accelerator on machines that have none


def test_packed_groups_say_where_they_lay() -> None:
    data = pack({"there|head|w": torch.ones(2), "group|head|b": torch.ones(1), "empty|none": torch.empty(0)})
    back = unpack_groups(data, META)
    assert (back["head"]["w"].device, back["head"]["b"].device) == (META, torch.device("cpu")) and back["none"] == {}
    everywhere = unpack_groups(data)
    assert {value.device.type for value in everywhere["head"].values()} == {"cpu"}
    assert list(back["head"]) == ["w", "b"]


def test_rows_from_disk_are_put_back(tmp_path: Path) -> None:
    table = ClientTable(tmp_path / "clients", None, META)
    table.commit({3: {"head": {"w": torch.arange(3.0)}}}, 1)
    saved = table.save(table.changed())
    table.path(3, 1).write_bytes(pack_groups({"head": {"w": torch.arange(3.0)}}).replace(b"group|", b"there|"))
    table.restore(saved)
    assert table[3]["head"]["w"].device == META
