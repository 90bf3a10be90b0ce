"""Reading run folders: whole, going on, cut short, or none at all."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from coterie.report.groups import group_runs
from coterie.report.read import find_runs, read_run, read_runs

MakeRun = Callable[..., Path]


def test_results_of_a_going_run_are_those_of_its_summary(tmp_path: Path, make_run: MakeRun) -> None:
    """The summary is computed from the same log, so reading without it must give the same numbers."""
    finished = read_run(make_run(tmp_path / "a"))
    (tmp_path / "a" / "summary.json").unlink()
    going = read_run(tmp_path / "a")
    assert finished.finished and not going.finished
    assert going.results.keys() == finished.results.keys() == {"personal", "global", "local"}
    for model, found in finished.results.items():
        for metric, result in found.items():
            assert vars(going.results[model][metric]) == pytest.approx(vars(result))
    assert going.bytes("up") == finished.bytes("up") == 48_040 * 10 * 12
    assert going.rounds_done == 12


def test_numbers_come_from_the_files(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "a", rounds=4, clients=3)
    run = read_run(folder)
    with (folder / "clients.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["model"], row["split"], row["round"]) == ("personal", "test", "4")]
    assert [row.values["accuracy"] for row in run.last_clients("personal")] == [float(row["accuracy"]) for row in rows]
    mean = sum(float(row["accuracy"]) for row in rows) / 3
    assert run.curve("personal", "accuracy")[-1] == (4, pytest.approx(mean))
    assert [event.kind for event in run.events] == ["warning"]


def test_events_are_read(tmp_path: Path, make_run: MakeRun) -> None:
    events = read_run(make_run(tmp_path / "a", name="site")).events
    assert (events[0].kind, events[0].round, events[0].client) == ("client_left_out", 3, "site-04")
    assert events[0].text == "nan in slot 'shared'"
    assert (events[1].kind, events[1].round, events[1].text) == (
        "warning",
        None,
        "the cohort was smaller than asked <b>once</b>",
    )


def test_half_a_last_line_is_left_out_and_said(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "a", finished=False, events=False)
    for name in ("metrics.jsonl", "clients.csv"):
        content = (folder / name).read_text()
        (folder / name).write_text(content[:-7])
    run = read_run(folder)
    assert len(run.costs) == 11 and len(run.points) == 72
    said = [event.text for event in run.events]
    assert said[0] == "1 unreadable line(s) of metrics.jsonl are left out here."
    assert all(row.values.keys() == {"accuracy", "loss"} for row in run.clients)


def test_undefined_numbers_are_unknown_not_zero(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "a", rounds=2, clients=2, finished=False, events=False)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line.get("split") == "test" and line["round"] == 2:
            line["accuracy"] = None
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read_run(folder)
    assert [round for round, _ in run.curve("personal", "accuracy")] == [1]


def test_an_empty_new_run_reads(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "a", finished=False)
    for name in ("metrics.jsonl", "clients.csv", "wire.jsonl"):
        (folder / name).unlink()
    run = read_run(folder)
    assert (run.rounds_done, run.results, run.seconds) == (0, {}, 0)


def test_folders_of_runs(tmp_path: Path, make_run: MakeRun, make_set: MakeRun) -> None:
    one = make_run(tmp_path / "one")
    assert find_runs(one) == [one]
    many = make_set(tmp_path / "many", ["fedavg", "fable"], [0, 1])
    listed = [many / "fedavg/seed-0", many / "fedavg/seed-1", many / "fable/seed-0", many / "fable/seed-1"]
    assert find_runs(many) == listed
    (many / "summary.json").unlink()  # still going: nothing lists the runs yet
    assert sorted(find_runs(many)) == sorted(listed)


def test_what_is_no_run_is_said(tmp_path: Path, make_run: MakeRun) -> None:
    with pytest.raises(ValueError, match=r"nowhere' does not exist or is no folder\. Give a folder made by coterie run\."):
        read_runs(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty' is no run folder: it has no run\.json\. Give a folder made by coterie run\."):
        read_runs(tmp_path / "empty")
    with pytest.raises(ValueError, match=r"is no run folder: it has no run\.json"):
        read_run(tmp_path / "empty")
    broken = make_run(tmp_path / "broken")
    (broken / "run.json").write_text('{"recipe": ')
    with pytest.raises(ValueError, match=r"run\.json' is not JSON .* Restore the file"):
        read_run(broken)


def test_a_summary_cannot_lead_out_of_its_folder(tmp_path: Path, make_run: MakeRun) -> None:
    make_run(tmp_path / "secret")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "summary.json").write_text(json.dumps({"runs": ["../secret"]}))
    with pytest.raises(ValueError, match=re.escape("lists the run '../secret' outside its own folder")):
        find_runs(tmp_path / "set")


def test_runs_that_differ_in_their_seed_only_are_one_method(tmp_path: Path, make_run: MakeRun) -> None:
    folders = [make_run(tmp_path / str(seed), seed=seed) for seed in (1, 0)]
    folders.append(make_run(tmp_path / "other", seed=0, values={"beta": 0.5}))
    folders.append(make_run(tmp_path / "again", seed=1))
    groups, notes = group_runs([read_run(folder) for folder in folders])
    assert [(group.label, group.seeds) for group in groups] == [("fable (beta=0.1)", (0, 1)), ("fable (beta=0.5)", (0,))]
    assert notes == [f"fable (beta=0.1): seed 1 is there twice; '{tmp_path / 'again'}' is left out."]


def test_unlike_conditions_and_open_runs_are_noted(tmp_path: Path, make_run: MakeRun) -> None:
    runs = [
        read_run(make_run(tmp_path / "a", method="fedavg", rounds=6)),
        read_run(make_run(tmp_path / "b", done=7, finished=False)),
    ]
    _, notes = group_runs(runs)
    assert notes == [
        "Not the same rounds everywhere: 6 (fedavg); 12 (fable).",
        "fable, seed 0: not finished, round 7 of 12.",
    ]


def test_numbers_without_an_end_are_infinite_not_an_accident(tmp_path: Path, make_run: MakeRun) -> None:
    """JSON allows whole numbers of any length, a csv whatever somebody types."""
    folder = make_run(tmp_path / "a")
    huge = "9" * 400
    for file, old, new in (
        ("metrics.jsonl", '"clients": 10', f'"clients": {huge}'),
        ("run.json", '"counts": [', '"counts": [NaN, '),
        ("clients.csv", "1,global,validation,0,0,", "1,global,validation,0,0,1e999,"),
    ):
        path = folder / file
        path.write_text(path.read_text().replace(old, new, 1))
    assert f'"clients": {huge}' in (folder / "metrics.jsonl").read_text()
    assert read_run(folder).points[0].clients == 0 and read_run(folder).population[0].counts[0] == 0
