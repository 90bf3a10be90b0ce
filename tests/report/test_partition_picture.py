"""The clients-by-classes picture: areas and heights are the numbers, and any text is safe in it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from coterie.report.partition_picture import partition_svg

SVG = "{http://www.w3.org/2000/svg}"


def parsed(svg: str) -> ElementTree.Element:
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")  # nothing is loaded from anywhere
    return ElementTree.fromstring(svg)


def test_bubbles_have_the_area_and_bars_the_height_of_the_counts() -> None:
    root = parsed(partition_svg([[100, 25], [0, 50]], ["ann", "bob"], ["cat", "dog"]))
    radius = {circle.find(f"{SVG}title").text: float(circle.get("r")) for circle in root.iter(f"{SVG}circle") if len(circle)}
    assert set(radius) == {"ann, cat: 100", "ann, dog: 25", "bob, dog: 50"}  # no bubble for nothing
    assert (radius["ann, dog: 25"] / radius["ann, cat: 100"]) ** 2 == pytest.approx(0.25, abs=0.01)
    bars = {bar.find(f"{SVG}title").text: float(bar.get("height")) for bar in root.iter(f"{SVG}rect") if len(bar)}
    assert bars["bob: 50 examples"] / bars["ann: 125 examples"] == pytest.approx(50 / 125, abs=0.01)


def test_a_hundred_clients_are_cells_one_per_count_above_zero() -> None:
    counts = np.random.default_rng(0).integers(0, 3, (100, 10))
    root = parsed(partition_svg(counts, [f"c{i}" for i in range(100)], [str(i) for i in range(10)]))
    cells = sum(path.get("d").count("M") for path in root.iter(f"{SVG}path"))
    assert cells == (counts > 0).sum() and not list(root.iter(f"{SVG}circle"))


def test_ten_thousand_clients_and_a_thousand_classes_stay_small_and_say_so() -> None:
    svg = partition_svg(np.ones((10_000, 1000)), [f"c{i}" for i in range(10_000)], [f"k{i}" for i in range(1000)])
    assert "100 of 10,000 clients, evenly chosen" in svg and len(svg) < 300_000
    assert ">0–15<" in svg  # 1000 classes in rows of 16


def test_names_are_escaped_and_everything_stays_inside() -> None:
    svg = partition_svg([[1] * 3] * 12, ["<script>" * 4] * 12, ["a&b", "c<d", "x" * 80], title='"quoted" & <so>')
    root = parsed(svg)
    width, height = (float(v) for v in root.get("viewBox").split()[2:])
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.get("x")) <= width and 0 <= float(text.get("y")) <= height
    assert "<script>" not in svg


def test_counts_must_fit_their_names() -> None:
    with pytest.raises(ValueError, match=r"\[clients, classes\] = \[1, 2\], found \[2, 2\]"):
        partition_svg([[1, 2], [3, 4]], ["a"], ["x", "y"])
