"""report.html: well formed, self-contained, harmless, and with the run's own numbers in it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from coterie.report.page import write_report
from coterie.report.read import read_run
from coterie.report.sections import cumulative_bytes

MakeRun = Callable[..., Path]

VOID = {"meta", "img", "br", "link", "input"}


class Page(HTMLParser):
    """Checks that tags nest, and gathers links, texts and headings."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.targets: list[str] = []
        self.text: list[str] = []
        self.headings: list[str] = []
        self.scripts = 0
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.scripts += tag == "script"
        self.targets += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" in self.open or "style" in self.open:
            return
        self.text.append(data)
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)

    @property
    def words(self) -> str:
        return " ".join(self.text)


def pictures(page: Page) -> list[str]:
    return re.findall(r"<svg.*?</svg>", page.source, re.DOTALL)


def test_one_run(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "a")
    path = write_report(folder)
    assert path == folder / "report.html" and not (folder / ".report.html.partial").exists()
    page = Page(path)
    assert page.headings == [
        "Results", "Round by round", "Client by client", "Data", "What it cost", "Privacy", "Left out and warnings", "How it ran",
    ]  # fmt: skip
    result = json.loads((folder / "summary.json").read_text())["results"]["personal"]["accuracy"]
    for number in ("last", "worst10", "best"):
        assert f"{100 * result[number]:.1f}" in page.words
    for words in ("fable on digits", "10 clients, dirichlet(beta=0.1), 12 rounds, seed 0", "commit 6b67cd3", "2.15.0"):
        assert words in page.words
    assert (
        "one CPU device and a small model" in page.words and "buffers average" in page.words and "precision fp32" in page.words
    )
    assert "5.76 MB" in page.words and "48,040" in page.words and "nan in slot 'shared'" in page.words
    for svg in pictures(page):
        ElementTree.fromstring(svg)  # well formed as XML too


def test_it_opens_without_a_network(tmp_path: Path, make_set: MakeRun) -> None:
    path = write_report(make_set(tmp_path / "s", ["local", "fable"], [0]))
    for report in (path, *tmp_path.glob("s/*/report.html")):
        page = Page(report)
        assert not [target for target in page.targets if "//" in target]
        assert "@import" not in page.source and "url(" not in page.source
        assert not re.findall(r"https?://(?!www\.w3\.org)", page.source)


def test_names_from_data_stay_text(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "a", method="<script>alert(1)</script>", name='"><img src=x onerror=alert(1)>')
    page = Page(write_report(folder))
    assert page.scripts == 1 and "<img" not in page.source and "<b>once</b>" not in page.source
    assert "<b>once</b>" in page.words  # shown as it was written


def test_curves_stand_where_the_numbers_are(tmp_path: Path, make_run: MakeRun) -> None:
    """The read-out under the pointer carries the mean of every round; its height falls as accuracy rises."""
    folder = make_run(tmp_path / "a", rounds=6)
    page = Page(write_report(folder))
    svg = next(svg for svg in pictures(page) if "Accuracy over the rounds" in svg)
    data = json.loads(ElementTree.fromstring(svg).attrib["data-lines"])
    line = next(line for line in data["lines"] if line["name"] == "personal")
    log = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    means = [entry["accuracy"] for entry in log if (entry.get("model"), entry.get("split")) == ("personal", "test")]
    assert [point[1:] for point in line["points"]] == [[str(i + 1), f"{100 * mean:.1f} %"] for i, mean in enumerate(means)]
    path = re.search(r'class="line s0" d="M([^"]+)"', svg)
    assert path is not None
    heights = [float(point.split()[1]) for point in path.group(1).split("L")]
    assert (heights == sorted(heights, reverse=True)) == (means == sorted(means))
    left, _, right, _ = data["box"]
    assert float(path.group(1).split()[0]) == pytest.approx(left) and line["points"][-1][0] == pytest.approx(right)


def test_bytes_add_up_and_once_only_content_stands_at_its_phase(tmp_path: Path, make_run: MakeRun) -> None:
    """10 bytes a round, and 1000 that are sent once, in the phase that begins with round 3."""
    folder = make_run(tmp_path / "a", rounds=4, events=False)
    log = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in log:
        line["phase"] = "train" if line["round"] >= 3 else "warmup"
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    head = {"exchange": None, "direction": "down", "clients": 10}
    wire = [head | {"round": r, "phase": "x", "slot": "shared", "bytes": 10, "once": False} for r in (1, 2, 3, 4)]
    wire.append(head | {"round": -1, "phase": "train", "slot": "pool", "bytes": 1000, "once": True})
    (folder / "wire.jsonl").write_text("".join(json.dumps(line) + "\n" for line in wire))
    run = read_run(folder)
    assert cumulative_bytes(run, "down") == [(1, 10), (2, 20), (3, 1030), (4, 1040)] and run.bytes("down") == 1040
    assert cumulative_bytes(run, "up") == [(1, 0), (2, 0), (3, 0), (4, 0)]
    page = Page(write_report(folder))
    assert "pool (once)" in page.words and "warmup" in page.words and "train" in page.words


def test_a_comparison_links_to_every_run(tmp_path: Path, make_set: MakeRun) -> None:
    folder = make_set(tmp_path / "s", ["local", "fedavg", "fable"], [0, 1])
    page = Page(write_report(folder))
    links = [target for target in page.targets if target.endswith("report.html")]
    assert len(links) == 6 and all((folder / target).exists() for target in links)
    own = Page(folder / "fable" / "seed-0" / "report.html")
    assert (folder / "fable" / "seed-0" / own.targets[0]).resolve() == (folder / "report.html").resolve()
    assert "Is the difference more than luck?" in page.headings and "Accuracy for bytes" in page.headings
    values = [
        json.loads((folder / f"fable/seed-{s}/summary.json").read_text())["results"]["personal"]["accuracy"]["last"]
        for s in (0, 1)
    ]
    mean, std = sum(values) / 2, abs(values[0] - values[1]) / 2**0.5
    assert f"{100 * mean:.1f} ± {100 * std:.1f} %" in page.words


def test_a_run_that_is_going_on(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "a", done=5, finished=False)
    assert "Not finished: round 5 of 12" in Page(write_report(folder)).words
    for name in ("metrics.jsonl", "clients.csv", "wire.jsonl"):
        (folder / name).unlink()
    assert "Nothing has been evaluated yet." in Page(write_report(folder)).words


def test_runs_without_accuracy_counts_or_clients(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "a", accuracy=False)
    info = json.loads((folder / "run.json").read_text())
    for client in info["population"]["clients"]:
        del client["counts"]
    (folder / "run.json").write_text(json.dumps(info))
    page = Page(write_report(folder))
    assert "Accuracy" not in page.words and "personal loss" in page.words and "Who holds what" not in page.source


def test_many_clients_become_a_curve(tmp_path: Path, make_run: MakeRun) -> None:
    page = Page(write_report(make_run(tmp_path / "a", clients=200, rounds=2)))
    assert "share of clients" in page.words and len(page.source) < 1_000_000


def test_no_number_is_called_epsilon_without_an_accountant(tmp_path: Path, make_run: MakeRun) -> None:
    nothing = Page(write_report(make_run(tmp_path / "a"))).words
    assert "No differential privacy." in nothing and "epsilon" not in nothing
    guarded = Page(write_report(make_run(tmp_path / "b", privacy={"clip": 1.0, "noise": 0.5, "epsilon": 3.0}))).words
    assert "no accountant measured it: this run claims no differential privacy" in guarded
    assert "noise" in guarded and "epsilon" not in guarded
    counted = {"accountant": "pld", "epsilon": 3.25, "delta": 1e-5, "unit": "client"}
    assert "3.25" in Page(write_report(make_run(tmp_path / "c", privacy=counted))).words


def test_the_three_views_stand_together_with_what_they_need(tmp_path: Path, make_run: MakeRun) -> None:
    def view(epsilon: float | None, only_if: str | None, reason: str | None = None) -> dict[str, object]:
        return {"epsilon": epsilon, "relation": "replaced", "against": "the server", "only_if": only_if, "reason": reason}

    views = {"local": view(140.001, None), "central": view(3.25, "the server can be trusted"), "amplified": view(None, None, "no package")}
    told = {"accountant": "exact Gaussian", "epsilon": 140.001, "view": "local", "delta": 1e-5, "unit": "one client", "note": "epsilon 140.01", "views": views}
    folder = make_run(tmp_path / "a", privacy=told)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line.get("event") == "round":
            line["epsilon"] = {"local": 10.0 * line["round"], "central": 0.3 * line["round"], "amplified": None}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = Page(write_report(folder))
    assert all(word in page.words for word in ("140.01", "3.25", "the server can be trusted", "no package", "Unit: one client; delta 1e-05"))
    assert 'aria-label="Epsilon over the rounds"' in page.source and "logarithmic" in page.words  # the views are 33 times apart
    assert "Epsilon over the rounds" not in Page(write_report(make_run(tmp_path / "b"))).source


def test_a_secure_sum_is_told_of_and_promises_no_more(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "a")
    summary = json.loads((folder / "summary.json").read_text())
    summary["secure_sum"] = {"bits": 32, "threshold": 7, "recovered_dropouts": 3, "clamped_coordinates": 0, "note": "not shown"}
    (folder / "summary.json").write_text(json.dumps(summary))
    words = Page(write_report(folder)).words
    assert "the server learned the sum of all updates, and no client's own" in words and "recovered dropouts" in words
    assert "No differential privacy." in words and "epsilon" not in words and "not shown" not in words


def test_small_media_are_inside_large_ones_linked(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "a")
    (folder / "media").mkdir()
    (folder / "media" / "clip & truth.mp4").write_bytes(b"\x00" * 300)
    (folder / "media" / "faces.png").write_bytes(b"\x89PNG")
    page = Page(write_report(folder))
    assert "Made by this run" in page.headings
    assert page.targets == [f"data:video/mp4;base64,{'A' * 400}", "data:image/png;base64,iVBORw=="]
    (folder / "media" / "faces.png").write_bytes(b"\x00" * 8_000_001)
    assert Page(write_report(folder)).targets == ["media/clip & truth.mp4", "media/faces.png"]


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no run folder: it has no run\.json\. Give a folder made by coterie run\."):
        write_report(tmp_path)


def test_one_round_is_one_round(tmp_path: Path, make_run: MakeRun) -> None:
    for name in ("local", "fable"):
        make_run(tmp_path / name, method=name, rounds=1, clients=4)
    page = Page(write_report(tmp_path))
    assert ", 1 round, seed 0" in page.words
    trains = sorted(size["train"] for size in json.loads((tmp_path / "fable" / "run.json").read_text())["population"]["clients"])
    assert f"(median {(trains[1] + trains[2]) / 2:,.0f})" in page.words
