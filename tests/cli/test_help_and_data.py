"""What the commands say of themselves, in eighty columns; `coterie data`."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from commands import SMALL, refused, succeed

from coterie import __version__, methods, recipes
from coterie.attacks.poison.named import AttackName
from coterie.data import SOURCES
from coterie.options import convert, options_of, paragraphs_of, parse
from coterie.recipes.population import build_population
from coterie.reduce.named import ReduceName


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


PAGES = ["", "--help", "run", "run --help", *(f"run {name} --help" for name in recipes.__all__), "sweep", "sweep quickstart --help",
         "list", "list --help", "data", "data inspect --help", "data check --help", "data partition --help", "data build leaf --help", "compare --help", "report --help",
         "privacy", "privacy --help", "privacy plan --help", "privacy account --help"]  # fmt: skip


@pytest.mark.parametrize("words", PAGES)
def test_every_page_fits_and_says_no_python(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = succeed(capsys, *words.split())
    assert page.strip() and max(map(len, page.splitlines())) <= 80
    assert "…" not in page and not re.search(r"\bNone\b|\('|<class|typing|True|False", page)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert succeed(capsys, "--version") == succeed(capsys, "-V") == f"coterie {__version__}\n"


def test_the_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    page = succeed(capsys, "list")
    assert [name for name in (*methods.__all__, *recipes.__all__, *SOURCES, *get_args(ReduceName), *get_args(AttackName)) if f"  {name} " not in page] == []
    assert re.findall(r"(?m)^\S.*$", page) == ["Methods", "Recipes", "Data sets", "Reductions", "Attacks"]


def test_help_says_what_each_default_means(capsys: pytest.CaptureFixture[str]) -> None:
    page = succeed(capsys, "run", "compare_digits", "--help")
    for key, default in {"methods": "local,fedavg,fable", "cohort": "all", "knobs": "none", "momentum": "0", "buffers": "average",
                         "workers": "one per core", "row-memory-mb": "1024", "quiet": "no"}.items():  # fmt: skip
        assert re.search(rf"--{key} +{re.escape(default)}  ", page), key
    assert "fedavg,scaffold,ditto" in page  # the example of the docstring


def test_every_key_of_a_recipe_is_a_key_of_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in recipes.__all__:
        page = succeed(capsys, "run", name, "--help")
        assert [key for key, option in options_of(getattr(recipes, name)).items() if f"  {option.flag} " not in page] == []


def example(
    *, count: int = 3, share: float | None = None, names: tuple[str, ...] = ("a", "b"), mode: Literal["x", "y"] = "x",
    check: bool = True, where: Path | None = None,
) -> None:  # fmt: skip
    """An example, which goes on
    in a second line.

    --count 5        how many (default: some)
    --share          a part (default: all)
    """


def test_options_come_from_the_signature_and_the_docstring() -> None:
    options = options_of(example)
    assert paragraphs_of(example) == ["An example, which goes on in a second line."]
    assert options["count"].explained() == ("--count", "3", "how many, as in --count 5")
    assert options["share"].explained() == ("--share", "all", "a part; number")
    assert options["names"].explained() == ("--names", "a,b", "text,...")
    assert options["check"].explained() == ("--check", "yes", "yes|no (--no-check)")
    words = ["--count=7", "--share", "none", "--names", " c ,d", "--mode", "y", "--no-check", "--where", "a/b"]
    expected = {"count": 7, "share": None, "names": ("c", "d"), "mode": "y", "check": False, "where": Path("a/b")}
    assert parse(words, options, "example") == expected
    assert parse(["--check", "--share", "-0.5"], options, "example") == {"check": True, "share": -0.5}
    with pytest.raises(ValueError, match=r"can't be written on the command line, found 'x'\. Set it from Python"):
        convert("x", dict, "--table")


def test_a_data_set_by_name_or_folder(capsys: pytest.CaptureFixture[str]) -> None:
    page = succeed(capsys, "data", "inspect", "digits", "--clients", "3", "--limit", "90")
    assert "digits: 3 clients, 90 examples, 10 classes" in page and "Picture: digits-dirichlet.svg" in page
    assert Path("digits-dirichlet.svg").read_text().startswith("<svg")
    content = {"users": ["ann", "bob"], "user_data": {u: {"x": [[i / 7] for i in range(6)], "y": [0, 1] * 3} for u in ("ann", "bob")}}
    Path("mine").mkdir()
    Path("mine/all.json").write_text(json.dumps(content))
    words = ("data", "inspect", "mine", "--partition", "column", "--column", "user", "--clients", "2", "--json", "--out", "p.svg")
    found = json.loads(succeed(capsys, *words))
    assert found["names"] == ["ann", "bob"] and found["examples"]["total"] == 12 and Path("p.svg").exists()
    assert succeed(capsys, "data", "check", "--limit", "90", "--clients", "3", "digits").strip()


def test_what_lies_in_a_folder_is_found_out(capsys: pytest.CaptureFixture[str]) -> None:
    """One `.npz` of JPEG bytes (of one split, or of two), FEMNIST's, AG News, and idx files under Debian's name."""
    image = pytest.importorskip("PIL.Image")
    for folder in ("jpeg", "letters", "news", "fashion-mnist", "idx", "mixed"):
        Path(folder).mkdir()
    files = []
    for shade in range(12):
        picture = io.BytesIO()
        image.new("RGB", (16, 16), (20 * shade, 9, 9)).save(picture, "JPEG")
        files.append(picture.getvalue())
    stream, offsets = np.frombuffer(b"".join(files), np.uint8), np.cumsum([0, *map(len, files)])
    np.savez("jpeg/all.npz", stream=stream, offsets=offsets, labels=np.arange(12) % 3)
    x = np.random.default_rng(0).integers(0, 256, (12, 28, 28), dtype=np.uint8)
    np.savez("letters/part.npz", x=x, y=np.arange(12), writer=np.arange(12) % 2)
    Path("news/part.csv").write_text("".join(f'"{1 + i % 4}","title {i}","text {i}"\n' for i in range(12)))
    for folder in ("fashion-mnist", "idx"):
        for split in ("train", "t10k"):
            Path(folder, f"{split}-images-idx3-ubyte").write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">3I", 12, 28, 28) + x.tobytes())
            Path(folder, f"{split}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", 12) + bytes(range(10)) + bytes(2))
    for place, name in (("jpeg", "parquet"), ("jpeg/all.npz", "parquet"), ("letters/part.npz", "femnist"), ("news/part.csv", "ag_news"),
                        ("fashion-mnist", "fashion_mnist")):  # fmt: skip
        assert f"{name}: 2 clients, 12 examples" in succeed(capsys, "data", "inspect", place, "--clients", "2", "--partition", "iid")
    assert "Name it: coterie data inspect mnist --data-dir idx" in refused(capsys, "data", "inspect", "idx")
    for side in (20, 30):
        image.new("RGB", (side, side), (side, 9, 9)).save(f"mixed/{side}.png")
    Path("mixed/index.csv").write_text("path,label\n20.png,0\n30.png,1\n")
    assert "Give size=N" in refused(capsys, "data", "inspect", "mixed", "--clients", "1")
    for place in ("mixed", "mixed/index.csv"):
        assert "image_folder: 1 clients, 2 examples" in succeed(capsys, "data", "inspect", place, "--clients", "1", "--size", "16")


def test_a_partition_is_written_row_by_row(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("digits", "--clients", "4", "--seed", "3")
    assert "1,797 rows of 4 clients: digits-dirichlet.csv" in succeed(capsys, "data", "partition", *words)
    rows = list(csv.DictReader(Path("digits-dirichlet.csv").read_text().splitlines()))
    assert [int(row["row"]) for row in rows] == list(range(1797))
    population = build_population("digits", clients=4, seed=3)
    for name, own in zip(population.names, population.parts, strict=True):
        assert [int(row["row"]) for row in rows if (row["client"], row["part"]) == (name, "test")] == own.test.index.tolist()
    assert "Can't write the partition to 'no/such.csv' (No such file or directory)" in refused(capsys, "data", "partition", *words, "--out", "no/such.csv")


def test_a_data_set_becomes_leaf_and_is_read_again(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("data", "build", "leaf", "digits", "--clients", "4", "--limit", "90")
    assert succeed(capsys, *words) == "4 users: digits-dirichlet.json\n"
    again = json.loads(succeed(capsys, "data", "inspect", "digits-dirichlet.json", "--partition", "column", "--column", "user", "--clients", "4", "--json"))
    assert again["names"] == [f"client-{i}" for i in range(4)] and again["examples"]["total"] == 90
    assert succeed(capsys, *words, "--out", "folder") == "4 users: folder\n" and Path("folder/train/users-0000.json").exists()
    assert "'folder' is not empty" in refused(capsys, *words, "--out", "folder")
    assert "Unknown command 'data build fdf'. Did you mean 'build leaf'?" in refused(capsys, "data", "build", "fdf")


def test_places_stand_before_or_after_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(succeed(capsys, "data", "inspect", "--json", "digits", "--limit", "60"))  # --json takes no value
    assert found["name"] == "digits"
    assert "found 2: faces, digits. Give one" in refused(capsys, "data", "inspect", "digits", "--data", "faces")
    with pytest.raises(ValueError, match=r"Expected an option like --key value, found 'yes'"):
        parse(["--check", "no", "yes"], options_of(example), "example")


def test_a_terminal_without_our_characters_ends_no_command() -> None:
    command = [sys.executable, "-m", "coterie", "data", "inspect", "digits", "--limit", "60"]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, timeout=120, check=True)
    assert b"digits: 10 clients" in done.stdout and not done.stderr


def test_reports_are_written_again(capsys: pytest.CaptureFixture[str]) -> None:
    succeed(capsys, "run", "quickstart", *SMALL, "--quiet", "--out", "r")
    Path("r/report.html").unlink()
    assert succeed(capsys, "report", "r") == "Report: r/report.html\n" and Path("r/report.html").exists()
    assert "fedavg" in succeed(capsys, "compare", "--json", "c.json", "r", "--baseline", "fedavg") and Path("c.json").exists()
