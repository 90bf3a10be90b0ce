"""Who remembers what: rows in memory and on disk, and states that are never changed in place."""

import zlib

import pytest
import torch

from coterie.states import ClientTable, Content, Overlay, ServerState


def row(value, size=100):
    return {"private": {"w": torch.full((size,), float(value))}, "empty": {}}


SIZE = 400  # bytes of such a row


def value(table, client):
    return float(table[client]["private"]["w"][0])


def test_a_table_without_a_limit_keeps_everything_in_memory():
    table = ClientTable()
    table.commit({3: row(3), 1: row(1)}, version=1)
    assert list(table) == [1, 3] and len(table) == 2 and 2 not in table and table.bytes_in_memory == 2 * SIZE
    with pytest.raises(KeyError):
        table[2]


def test_rows_beyond_the_limit_wait_on_disk(tmp_path):
    """Room for three rows: of ten, the three used last stay in memory; every other is read back when asked for."""
    table = ClientTable(tmp_path / "rows", limit_bytes=3 * SIZE)
    for client in range(10):
        table.commit({client: row(client)}, version=1)
        assert table.bytes_in_memory <= 3 * SIZE
    assert sorted(p.name for p in (tmp_path / "rows").iterdir()) == [f"{client}-1.safetensors" for client in range(7)]
    assert [value(table, client) for client in range(10)] == list(range(10))
    assert table.bytes_in_memory <= 3 * SIZE


def test_what_was_read_last_stays_longest(tmp_path):
    table = ClientTable(tmp_path, limit_bytes=2 * SIZE)
    table.commit({0: row(0), 1: row(1)}, version=1)
    assert value(table, 0) == 0
    table.commit({2: row(2)}, version=1)
    assert [path.name for path in tmp_path.iterdir()] == ["1-1.safetensors"]


def test_one_row_larger_than_the_limit_still_works(tmp_path):
    table = ClientTable(tmp_path, limit_bytes=10)
    table.commit({0: row(0), 1: row(1)}, version=1)
    assert value(table, 0) == 0 and value(table, 1) == 1


def test_a_new_version_replaces_the_row_and_its_bytes(tmp_path):
    table = ClientTable(tmp_path, limit_bytes=10 * SIZE)
    table.commit({0: row(1)}, version=1)
    table.commit({0: row(2, size=50)}, version=2)
    assert value(table, 0) == 2 and table.version(0) == 2 and table.bytes_in_memory == 200


def test_only_changed_rows_are_written_and_the_checksum_is_the_files(tmp_path):
    table = ClientTable(tmp_path)
    table.commit({0: row(0), 1: row(1)}, version=1)
    first = table.save(table.changed())
    times = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    table.commit({1: row(5)}, version=2)
    second = table.save(table.changed())
    assert first[0] == second[0] == (1, zlib.crc32((tmp_path / "0-1.safetensors").read_bytes()))
    assert second[1] == (2, zlib.crc32((tmp_path / "1-2.safetensors").read_bytes()))
    assert all((tmp_path / name).stat().st_mtime_ns == time for name, time in times.items())
    assert not list(tmp_path.glob("*.partial"))


def test_restored_rows_come_from_disk(tmp_path):
    table = ClientTable(tmp_path)
    table.commit({0: row(0), 1: row(1)}, version=1)
    saved = table.save(table.changed())
    table.commit({0: row(9)}, version=2)
    other = ClientTable(tmp_path)
    for restored in (table, other):
        restored.restore(saved)
        assert value(restored, 0) == 0 and restored.version(0) == 1 and list(restored) == [0, 1]


def test_rows_are_secret_files(tmp_path):
    table = ClientTable(tmp_path / "rows")
    table.commit({0: row(0)}, version=1)
    table.save(table.changed())
    assert (tmp_path / "rows").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "rows" / "0-1.safetensors").stat().st_mode & 0o777 == 0o600


def test_a_limit_needs_a_folder():
    with pytest.raises(ValueError, match=r"needs a folder for the rows beyond it\. Give folder="):
        ClientTable(limit_bytes=5)


def test_an_overlay_shows_changes_over_a_table_that_does_not_change():
    below = ClientTable()
    below.commit({0: row(0), 1: row(1)}, version=1)
    state = ServerState({}, below).with_rows({1: row(5)}).with_rows({2: row(6)})
    assert [value(state.rows, c) for c in state.rows] == [0, 5, 6] and len(state.rows) == 3 and 2 in state.rows
    assert value(below, 1) == 1 and 2 not in below
    assert isinstance(state.rows, Overlay) and set(state.rows.changed) == {1, 2} and state.rows.below is below


def test_a_state_is_a_value():
    one = ServerState({"shared": {"w": torch.zeros(2)}})
    two = one.with_shared(shared={"w": torch.ones(2)}, control={"w": torch.ones(2)})
    assert set(one.shared) == {"shared"} and float(one.shared["shared"]["w"][0]) == 0 and set(two.shared) == {"shared", "control"}


def test_public_content_is_written_once_and_known_by_its_hash():
    content = {"x": torch.arange(3.0)}
    state = ServerState().publishing("pool", content)
    assert state.public["pool"].digest == Content.of({"x": torch.arange(3.0)}).digest
    assert state.public["pool"].digest != Content.of({"x": torch.arange(3.0) + 1}).digest
    with pytest.raises(ValueError, match=r"'pool' is already published and can't change\. Publish it under another name"):
        state.publishing("pool", content)
