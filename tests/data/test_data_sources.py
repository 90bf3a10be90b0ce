"""Each reader on files made here, byte by byte or by another library."""

from __future__ import annotations

import csv
import gzip
import io
import json
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.data import SOURCES, load, pack_parquet_as_npz
from coterie.data.idx import read_idx
from coterie.data.text import token_numbers, words

Image = pytest.importorskip("PIL.Image")


def picture(colour: tuple[int, int, int], size: int = 8, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (size, size), colour).convert(mode).save(file, "PNG")
    return file.getvalue()


def test_digits_are_the_ones_of_scikit_learn() -> None:
    table = load("digits")
    assert table.columns["x"].shape == (1797, 1, 8, 8) and table.num_classes == 10
    assert np.bincount(table.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # UCI's own counts
    assert float(table.columns["x"].max()) == 1.0 and float(table.columns["x"].min()) == 0.0


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_plain_and_gzipped(tmp_path: Path, packed: bool) -> None:
    pixels, labels = bytes(range(3 * 2 * 2)), bytes([7, 0, 9])
    for prefix in ("train", "t10k"):
        for name, content in (
            (f"{prefix}-images-idx3-ubyte", struct.pack(">HBBIII", 0, 8, 3, 3, 2, 2) + pixels),
            (f"{prefix}-labels-idx1-ubyte", struct.pack(">HBBI", 0, 8, 1, 3) + labels),
        ):
            path = tmp_path / (name + ".gz" * packed)
            path.write_bytes(gzip.compress(content) if packed else content)
    table = load("fashion_mnist", tmp_path)
    assert table.columns["x"].tolist() == [[[[0, 1], [2, 3]]], [[[4, 5], [6, 7]]], [[[8, 9], [10, 11]]]]
    assert table.labels.tolist() == [7, 0, 9] and table.classes[9] == "ankle boot"
    assert table.central_test is not None and len(table.central_test) == 3
    decoded = table.whole().rows(torch.tensor([0]))["x"].flatten()
    assert decoded.tolist() == pytest.approx([(v / 255 - 0.5) / 0.5 for v in range(4)], abs=1e-6)


def test_broken_idx_files_are_named(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_bytes(struct.pack(">HBBI", 0, 8, 1, 3) + b"ab")
    with pytest.raises(ValueError, match=r"short' holds 10 bytes, its header promises 11"):
        read_idx(short)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match=r"is no idx file: it starts with 68656c6c"):
        read_idx(tmp_path / "text")
    with pytest.raises(ValueError, match=r"has no file 't10k-images-idx3-ubyte'"):
        load("fashion_mnist", tmp_path)


def write_parquet(path: Path, pictures: list[bytes], labels: list[int]) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    features = {"img": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    rows = [{"bytes": data, "path": f"{i}.png"} for i, data in enumerate(pictures)]
    table = pa.table({"id": pa.array(range(len(rows))), "img": rows, "label": labels})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})}), path)


def test_parquet_and_the_npz_made_of_it_give_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "train-00000-of-00001.parquet", [picture((255, 0, 9)), picture((40, 40, 40), mode="L")], [1, 0])
    write_parquet(tmp_path / "test.parquet", [picture((1, 2, 3))], [0])
    table = load("cifar10", tmp_path)
    assert table.classes == ("cat", "dog") and table.labels.tolist() == [1, 0]  # not the column "id"
    assert table.columns["x"].shape == (2, 3, 8, 8) and table.columns["x"][0, :, 0, 0].tolist() == [255, 0, 9]
    assert table.columns["x"][1].unique().tolist() == [40]  # grey became three equal channels
    packed = pack_parquet_as_npz(tmp_path, tmp_path / "cifar10.npz")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ValueError, match=r"Reading parquet needs pyarrow. Install it with: pip install 'coterie\[vision\]'"):
        load("cifar10", tmp_path)
    for place in (packed, _alone(packed)):
        again = load("cifar10", place)
        assert torch.equal(again.columns["x"], table.columns["x"]) and again.classes == table.classes
        assert again.central_test is not None and again.central_test.columns["x"][0, :, 0, 0].tolist() == [1, 2, 3]


def _alone(packed: Path) -> Path:
    folder = packed.parent / "only-npz"
    folder.mkdir()
    (folder / "cifar10.npz").write_bytes(packed.read_bytes())
    return folder


def test_an_npz_with_other_arrays_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "c.npz", images=np.zeros(3))
    with pytest.raises(ValueError, match=r"has no array \['train_stream', .*only \['images'\]. Make it with"):
        load("cifar10", tmp_path)


def test_pictures_of_two_sizes_need_a_size(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", [picture((9, 9, 9), 8), picture((5, 5, 5), 6)], [0, 1])
    with pytest.raises(ValueError, match=r"Pictures differ in size: 8x8 and 6x6 \(picture 1 of the train split.*Give size=N"):
        load("parquet", tmp_path)
    assert load("parquet", tmp_path, size=4).columns["x"].shape == (2, 3, 4, 4)


def folder_of_pictures(tmp_path: Path, rows: list[tuple[str, ...]]) -> Path:
    (tmp_path / "a").mkdir()
    for name, colour in (("a/1.png", (10, 0, 0)), ("a/2.png", (20, 0, 0)), ("3.png", (30, 0, 0))):
        (tmp_path / name).write_bytes(picture(colour))
    with (tmp_path / "index.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "method", "group"), *rows])
    return tmp_path


def test_image_folder_reads_its_index_and_filters(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path, [("a/1.png", "real", "none", "g"), ("a/2.png", "fake", "swap", "g"), ("3.png", "fake", "gan", "h")])
    table = load("image_folder", folder)
    assert table.classes == ("fake", "real") and table.labels.tolist() == [1, 0, 0]
    assert table.columns["x"][:, 0, 0, 0].tolist() == [10, 20, 30]
    assert table.column("group").tolist() == ["g", "g", "h"] and table.together == "group"
    some = load("image_folder", folder, where={"method": ["gan", "swap"]}, classes=("real", "fake"), size=4)
    assert some.labels.tolist() == [1, 1] and some.columns["x"].shape == (2, 3, 4, 4)
    with pytest.raises(ValueError, match=r"has method \['morph'\], only \['gan', 'none', 'swap'\]"):
        load("image_folder", folder, where={"method": "morph"})


@pytest.mark.parametrize("path", ["../secret.png", "/etc/hostname", "a/../../secret.png"])
def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret.png").write_bytes(picture((1, 1, 1)))
    folder = tmp_path / "set"
    folder.mkdir()
    folder_of_pictures(folder, [("3.png", "0", "", ""), (path, "1", "", "")])
    with pytest.raises(ValueError, match=rf"1 paths of the index leave the data folder .*such as '{path}'"):
        load("image_folder", folder)


def test_a_link_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(picture((1, 1, 1)))
    folder = tmp_path / "set"
    folder.mkdir()
    folder_of_pictures(folder, [("link.png", "0", "", "")])
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(ValueError, match=r"leave the data folder .*such as 'link.png'"):
        load("image_folder", folder)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path, [("gone.png", "0", "", ""), ("3.png", "0", "", "")])
    with pytest.raises(ValueError, match=r"1 of 2 files of the index do not exist in .*such as 'gone.png'"):
        load("image_folder", folder)
    (folder / "gone.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"A picture cannot be decoded \('.*gone.png'\)"):
        load("image_folder", folder)


def test_femnist_by_writer(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "part.npz", x=np.full((4, 28, 28), 255, np.uint8), y=np.array([0, 10, 36, 61], np.uint8),
        writer=np.array([0, 0, 1, 2], np.int32), split=np.array([0, 1, 1, 0], np.uint8), writer_ids=np.array(["ann", "bob", "cy"]),
    )  # fmt: skip
    table = load("femnist", tmp_path)
    assert [table.classes[y] for y in table.labels] == ["0", "A", "a", "z"]
    assert table.column("writer").tolist() == ["ann", "ann", "bob", "cy"]
    assert table.column("split").tolist() == ["train", "test", "test", "train"]
    assert load("femnist", tmp_path, writers="complete").column("writer").tolist() == ["ann", "ann", "cy"]


def test_ag_news_reads_both_layouts(tmp_path: Path) -> None:
    (tmp_path / "train_text.csv").write_text('text,label\n"Stocks rise, stocks fall",2\nA goal,1\n')
    (tmp_path / "part.csv").write_text('"4","New chip","It #39;s fast\\and small"\n')
    table = load("ag_news", tmp_path, vocab=97)
    assert table.labels.tolist() == [2, 1] and table.central_test is not None
    assert table.central_test.labels.tolist() == [3]
    bag = np.zeros(97)
    for word in ("stocks", "rise", "stocks", "fall"):
        bag[1 + zlib.crc32(word.encode()) % 96] += 1
    assert np.array_equal(table.columns["x"][0].numpy(), bag)
    decoded = table.whole().rows(torch.tensor([0, 1]))["x"]
    assert decoded.norm(dim=1).tolist() == pytest.approx([1.0, 1.0])
    assert words("It #39;s fast\\and small") == ["it", "s", "fast", "and", "small"]
    tokens = load("ag_news", tmp_path, form="tokens", vocab=97, length=3).columns["x"]
    assert tokens.tolist()[1] == [1 + zlib.crc32(b"a") % 96, 1 + zlib.crc32(b"goal") % 96, 0]
    assert token_numbers(["one two three four"], 97, 3)[0].shape == (1, 3)
    (tmp_path / "part.csv").write_text('"5","New","chip"\n')
    with pytest.raises(ValueError, match=r"part.csv' is no AG News file: line 1 has the class '5'. Use rows of"):
        load("ag_news", tmp_path)


def test_unknown_names_options_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"Unknown data set 'cifer10'. Did you mean 'cifar10'\?"):
        load("cifer10")
    with pytest.raises(ValueError, match=r"'digits' has no option 'size'. Its options: none"):
        load("digits", size=3)
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    with pytest.raises(ValueError, match=r"needs the folder 'cifar10', but no data folder is known"):
        load("cifar10")
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"cifar10' does not exist \(looked for .*\). Set COTERIE_DATA or give --data-dir DIR"):
        load("cifar10")
    with pytest.raises(ValueError, match=r"Data folder 'nowhere' does not exist \(looked for nowhere and nowhere/cifar10\)"):
        load("cifar10", "nowhere")
    (tmp_path / "cifar10").mkdir()
    with pytest.raises(ValueError, match=r"has no 'train\*.parquet'"):
        load("cifar10")
    assert all(str(source) and "\n" not in str(source) for source in SOURCES.values())
