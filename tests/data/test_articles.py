"""Articles in every layout that they are published in, public vocabularies, texts that are cut, and CIFAR-100's two labels."""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from coterie.data import load, make_population
from coterie.data.partition import iid
from coterie.data.sogou_news import balanced
from coterie.data.text import Vocabulary, words
from coterie.randomness import Key

pa = pytest.importorskip("pyarrow", reason="writing a parquet folder needs coterie[vision]")
pq = pytest.importorskip("pyarrow.parquet", reason="writing a parquet folder needs coterie[vision]")

SOGOU = ("sports", "finance", "entertainment", "automobile", "technology")


def class_label(names: tuple[str, ...]) -> dict[str, object]:
    return {"names": list(names), "_type": "ClassLabel"}


def write_parquet(path: Path, columns: dict[str, list[object]], features: dict[str, object]) -> None:
    """As `datasets` writes it: what each column is stands in the schema."""
    table = pa.table(columns)
    told = json.dumps({"info": {"features": features}}).encode()
    pq.write_table(table.replace_schema_metadata({b"huggingface": told}), path)


def write_csv(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)


def number(word: str, vocab: int) -> int:
    return 1 + zlib.crc32(word.encode()) % (vocab - 1)


def test_sogou_in_its_original_csv(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", [[str(1 + c), f"biao ti {c}", "x" * 200_000 if c == 4 else f"nei rong {c}"] for c in range(5)])
    write_csv(tmp_path / "test.csv", [["5", "ti", "rong"]])
    table = load("sogou_news", tmp_path, vocab=99, length=5)
    assert table.classes == SOGOU and table.labels.tolist() == [0, 1, 2, 3, 4]
    assert table.columns["x"][1].tolist() == [number(word, 99) for word in ("biao", "ti", "1", "nei", "rong")]
    assert table.central_test is not None and table.central_test.labels.tolist() == [4]
    assert table.central_test.columns["x"].tolist() == [[number("ti", 99), number("rong", 99), 0, 0, 0]]


def test_sogou_in_hugging_faces_parquet(tmp_path: Path) -> None:
    features = {"title": {"dtype": "string"}, "content": {"dtype": "string"}, "label": class_label(SOGOU)}
    for split, labels in (("train-00000-of-00002", [0, 4]), ("train-00001-of-00002", [1]), ("test-00000-of-00001", [2])):
        columns = {"title": [f"t{n}" for n in labels], "content": [f"c{n}" for n in labels], "label": labels}
        write_parquet(tmp_path / f"{split}.parquet", columns, features)  # type: ignore[arg-type]
    table = load("sogou_news", tmp_path, vocab=99, length=2)
    assert table.labels.tolist() == [0, 4, 1]
    assert table.columns["x"].tolist() == [[number(f"t{n}", 99), number(f"c{n}", 99)] for n in (0, 4, 1)]
    assert table.central_test is not None and table.central_test.labels.tolist() == [2]


def test_sogous_subset_is_balanced_and_always_the_same(tmp_path: Path) -> None:
    counts = (9, 4, 6, 5, 7)
    write_csv(tmp_path / "train.csv", [[str(1 + c), "a", f"{c} {i}"] for c in range(5) for i in range(counts[c])])
    table, again = (load("sogou_news", tmp_path) for _ in range(2))
    assert Counter(table.labels.tolist()) == dict.fromkeys(range(5), 4)
    assert torch.equal(table.columns["x"], again.columns["x"])
    assert len(load("sogou_news", tmp_path, subset=False)) == sum(counts)
    from coterie.data.articles import Articles

    every = Articles([f"{c} {i}" for c in range(5) for i in range(counts[c])], [c for c in range(5) for _ in range(counts[c])])
    small = balanced(every, 2)
    assert Counter(small.labels) == dict.fromkeys(range(5), 2) and all(text.startswith(f"{c} ") for text, c in zip(small.texts, small.labels, strict=True))


def test_ag_news_in_hugging_faces_parquet_and_csv(tmp_path: Path) -> None:
    rows = {"text": ["Stocks rise", "A goal"], "label": [2, 1]}
    (tmp_path / "parquet").mkdir()
    write_parquet(tmp_path / "parquet" / "train.parquet", rows, {"label": class_label(("World", "Sports", "Business", "Sci/Tech"))})  # type: ignore[arg-type]
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "train.csv").write_text("label,title,description\n2,Stocks,rise\n1,A,goal\n")
    for folder in ("parquet", "csv"):
        table = load("ag_news", tmp_path / folder, form="tokens", vocab=50, length=2)
        assert table.labels.tolist() == [2, 1]
        assert table.columns["x"][0].tolist() == [number("stocks", 50), number("rise", 50)]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a"], "label": [7]}, r"is no Sogou News file: it has the label 7\. Number the 5 classes from 0"),
        ({"body": ["a"], "label": [0]}, r"needs a column label and one of text, title, content, description, found \['body', 'label'\]"),
    ],
)
def test_parquet_of_something_else_is_refused(columns: dict[str, list[object]], message: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=message):
        load("sogou_news", tmp_path)


def test_a_vocabulary_comes_from_public_articles_only(tmp_path: Path) -> None:
    """Words that clients alone use have no number of their own; public articles are nobody's."""
    texts = [f"common w{i % 7} only{i}" for i in range(400)]
    write_csv(tmp_path / "train.csv", [[str(1 + i % 4), "", text] for i, text in enumerate(texts)])
    write_csv(tmp_path / "test.csv", [["1", "", "common only3 never"]])
    table = load("ag_news", tmp_path, form="tokens", vocab=10, length=4, public_share=0.2)
    joined = [f" {text}" for text in texts]  # title, space, description
    public = [text for text in joined if zlib.crc32(text.encode()) < 0.2 * 2**32]
    assert 40 < len(public) < 120 and len(table) == 400 - len(public)
    counts = Counter(word for text in public for word in text.split())
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[:8]
    known = {word: place for place, word in enumerate(ranked, 2)}
    rest = [text for text in joined if text not in public]
    expected = [[known.get(word, 1) for word in text.split()] + [0] for text in rest]
    assert table.columns["x"].tolist() == expected and ranked[0] == "common"
    assert table.central_test is not None and table.central_test.columns["x"].tolist() == [[2, 1, 1, 0]]
    assert table.findings[0].text == f"8 words were learned from {len(public)} public articles, which no client holds"


def test_vocabulary_is_the_most_frequent_words() -> None:
    found = Vocabulary.learned(["b a b", "c a b d"], 5)
    assert found.words == ("b", "a", "c") and [found.number(word) for word in ("b", "c", "d", "x")] == [2, 4, 1, 1]
    assert words("It's quot;new quot;") == ["it", "s", "new"]


def test_texts_longer_than_the_window_are_cut_and_counted(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", [[str(1 + i % 4), "", " ".join(["word"] * (3 + i))] for i in range(8)])
    write_csv(tmp_path / "test.csv", [["1", "", "one two three four five six seven eight nine"]])
    table = load("ag_news", tmp_path, form="tokens", length=6)
    assert [f.text for f in table.findings] == ["4 of 8 texts are longer than 6 words and were cut there"]
    population = make_population(table, iid(table.labels, 2, Key(0)), key=Key(0), check=False)
    assert [f.count for f in population.findings if f.kind == "truncated"] == [4, 1]
    assert [f.count for f in table.with_test_rows().findings] == [4, 1]
    assert not load("ag_news", tmp_path, form="tokens", length=50).findings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"public_share": 0.5}, r"goes with form='tokens', found 0\.5 and 'bag'"),
        ({"form": "tokens", "public_share": 1.0}, r"public_share must be at least 0, below 1"),
        ({"form": "words"}, r"form must be 'bag' or 'tokens', found 'words'"),
        ({"vocab": 2}, r"vocab must be at least 3"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str, tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", [["1", "a", "b"]])
    with pytest.raises(ValueError, match=message):
        load("ag_news", tmp_path, **options)


def png(colour: tuple[int, int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((32, 32, 3), colour, dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def test_cifar100_has_fine_and_coarse_labels(tmp_path: Path) -> None:
    """Hugging Face's layout: img, fine_label, coarse_label, class names in the schema."""
    fine, coarse = tuple(f"fine{i}" for i in range(100)), tuple(f"coarse{i}" for i in range(20))
    features = {"img": {"_type": "Image"}, "fine_label": class_label(fine), "coarse_label": class_label(coarse)}
    for split, labels in (("train", [3, 99, 40]), ("test", [7])):
        columns = {
            "img": [{"bytes": png((n, 0, 255)), "path": None} for n in labels],
            "fine_label": labels, "coarse_label": [n // 5 for n in labels],
        }  # fmt: skip
        write_parquet(tmp_path / f"{split}-00000-of-00001.parquet", columns, features)  # type: ignore[arg-type]
    table = load("cifar100", tmp_path)
    assert table.classes == fine and table.labels.tolist() == [3, 99, 40] and table.name == "cifar100"
    assert table.columns["x"][:, :, 0, 0].tolist() == [[3, 0, 255], [99, 0, 255], [40, 0, 255]]
    assert table.central_test is not None and table.central_test.labels.tolist() == [7]
    groups = load("cifar100", tmp_path, labels="coarse")
    assert groups.classes == coarse and groups.labels.tolist() == [0, 19, 8] and groups.num_classes == 20
    with pytest.raises(ValueError, match=r"labels must be 'fine' or 'coarse', found 'both'"):
        load("cifar100", tmp_path, labels="both")
