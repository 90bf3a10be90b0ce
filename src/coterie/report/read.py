"""From a run folder to values: finished, still going, or killed half-way."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from coterie.metrics import Direction, better, over_clients
from coterie.report.records import (
    Record,
    as_number,
    number,
    numbers,
    read_lines,
    read_record,
    record,
    records,
    strings,
    text,
    whole,
)
from coterie.report.run import ClientResult, ClientSizes, Cost, Event, Point, Result, Run, Wire

POINT_KEYS = {"round", "clients", "seconds"}  # numbers of a metrics line that are no metric


def read_run(folder: Path | str) -> Run:
    """One run folder; a sentence if it is none."""
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(f"'{path}' does not exist or is no folder. Give a folder made by coterie run.")
    if not (path / "run.json").exists():
        raise ValueError(f"'{path}' is no run folder: it has no run.json. Give a folder made by coterie run.")
    info = read_record(path / "run.json")
    summary = read_record(path / "summary.json") if (path / "summary.json").exists() else None
    lines, broken = read_lines(path / "metrics.jsonl")
    wire_lines, broken_wire = read_lines(path / "wire.jsonl")
    rows, broken_rows = _read_clients(path / "clients.csv")
    events = [_event(line) for line in lines if "event" in line and line["event"] != "round"]
    for name, count in [("metrics.jsonl", broken), ("wire.jsonl", broken_wire), ("clients.csv", broken_rows)]:
        if count:
            events.append(Event("warning", f"{count} unreadable line(s) of {name} are left out here."))
    directions = _directions(info)
    main = text(record(info, "metrics"), "main", "accuracy")
    points = [_point(line) for line in lines if "event" not in line]
    population = [_sizes(client) for client in records(record(info, "population"), "clients")]
    results = _summary_results(summary) if summary is not None else _results(points, rows, main, directions)
    return Run(
        path=path,
        info=info,
        summary=summary,
        points=points,
        costs=[_cost(line) for line in lines if line.get("event") == "round"],
        events=events,
        wire=[_wire(line) for line in wire_lines],
        clients=rows,
        population=population,
        results=results,
        directions=directions,
        main=main,
    )


def find_runs(folder: Path | str) -> list[Path]:
    """The run folders in a folder: itself, those its summary lists, or (still going) those that lie in it."""
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(f"'{path}' does not exist or is no folder. Give a folder made by coterie run.")
    if (path / "run.json").exists():
        return [path]
    listed = strings(read_record(path / "summary.json"), "runs") if (path / "summary.json").exists() else []
    for name in listed:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"'{path / 'summary.json'}' lists the run '{name}' outside its own folder. Restore the file.")
    found = [path / name for name in listed if (path / name / "run.json").exists()]
    found = found or [entry.parent for pattern in ("*/run.json", "*/seed-*/run.json") for entry in sorted(path.glob(pattern))]
    if not found:
        raise ValueError(f"'{path}' is no run folder: it has no run.json. Give a folder made by coterie run.")
    return found


def read_runs(folder: Path | str) -> list[Run]:
    """Every run in a folder."""
    return [read_run(path) for path in find_runs(folder)]


def _directions(info: Record) -> dict[str, Direction]:
    found = record(record(info, "metrics"), "directions")
    return {name: "min" if value == "min" else "max" for name, value in found.items()}


def _point(line: Record) -> Point:
    found = {key: as_number(value) for key, value in line.items() if key not in POINT_KEYS}
    values = {key: value for key, value in found.items() if value is not None}
    return Point(
        round=whole(line, "round"),
        phase=text(line, "phase"),
        split=text(line, "split", "test"),
        model=text(line, "model", "global"),
        clients=whole(line, "clients"),
        values=values,
        std=numbers(line, "std"),
        worst10=numbers(line, "worst10"),
    )


def _cost(line: Record) -> Cost:
    return Cost(
        round=whole(line, "round"),
        phase=text(line, "phase"),
        seconds=number(line, "seconds"),
        bytes_up=number(line, "bytes_up", 0.0),
        bytes_down=number(line, "bytes_down", 0.0),
        cohort=whole(line, "cohort"),
        returned=whole(line, "returned"),
        train_loss=number(line, "train_loss", number(record(line, "train"), "loss")),
        epsilon=numbers(line, "epsilon"),
    )


def _event(line: Record) -> Event:
    client = text(line, "name") or text(line, "client")
    known = ("event", "round", "client", "name", "phase")
    other = ", ".join(f"{key} {text(line, key)}" for key in line if key not in known)
    return Event(
        kind=text(line, "event"),
        text=text(line, "reason") or text(line, "text") or other,
        round=whole(line, "round") if "round" in line else None,
        client=client or None,
    )


def _wire(line: Record) -> Wire:
    return Wire(
        round=whole(line, "round"),
        phase=text(line, "phase"),
        exchange=text(line, "exchange") or None,
        direction=text(line, "direction"),
        slot=text(line, "slot"),
        bytes=number(line, "bytes", 0.0),
        clients=whole(line, "clients"),
        once=line.get("once") is True,
    )


def _sizes(client: Record) -> ClientSizes:
    counts = client.get("counts")
    return ClientSizes(
        name=text(client, "name") or text(client, "client"),
        train=whole(client, "train"),
        validation=whole(client, "validation"),
        test=whole(client, "test"),
        counts=tuple(whole({"count": count}, "count") for count in counts) if isinstance(counts, list) else (),
    )


def _read_clients(path: Path) -> tuple[list[ClientResult], int]:
    """The rows of clients.csv; an empty or nan cell is a number that this client does not have."""
    if not path.exists():
        return [], 0
    rows, broken = [], 0
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            try:
                rows.append(_client_row(line))
            except (KeyError, TypeError, ValueError, OverflowError):
                broken += 1
    return rows, broken


def _client_row(line: dict[str, str]) -> ClientResult:
    fixed = ("round", "model", "split", "client", "name", "examples")
    if None in line.values() or None in line:
        raise ValueError("cut short")
    return ClientResult(
        round=int(line["round"]),
        model=line["model"],
        split=line["split"],
        client=line["client"],
        name=line["name"] or line["client"],
        examples=int(float(line["examples"] or 0)),
        values={key: float(value) for key, value in line.items() if key not in fixed and value != ""},
    )


def _summary_results(summary: Record) -> dict[str, dict[str, Result]]:
    results = record(summary, "results")
    return {
        model: {metric: _result(record(record(results, model), metric)) for metric in record(results, model)}
        for model in results
    }


def _result(entry: Record) -> Result:
    return Result(
        last=number(entry, "last"),
        best=number(entry, "best"),
        best_round=whole(entry, "best_round") if entry.get("best_round") is not None else None,
        mean=number(entry, "mean"),
        std=number(entry, "std"),
        worst10=number(entry, "worst10"),
    )


def _results(
    points: list[Point], rows: list[ClientResult], main: str, directions: dict[str, Direction]
) -> dict[str, dict[str, Result]]:
    """What summary.json will say, from the log of a run that has none yet."""
    results: dict[str, dict[str, Result]] = {}
    for model in dict.fromkeys(point.model for point in points if point.split == "test"):
        test = {point.round: point for point in points if (point.model, point.split) == (model, "test")}
        last = test[max(test)]
        chosen = _chosen_round(points, model, main, directions.get(main, "max"))
        at_best = test[chosen].values if chosen in test else {}
        at_last = [row for row in rows if (row.round, row.model, row.split) == (last.round, model, "test")]
        results[model] = {}
        for metric, value in last.values.items():
            spread = over_clients([row.values.get(metric, math.nan) for row in at_last], directions.get(metric))
            results[model][metric] = Result(
                last=value,
                best=at_best.get(metric, math.nan),
                best_round=chosen,
                mean=value,
                std=last.std.get(metric, spread.std),
                worst10=last.worst10.get(metric, spread.worst10),
            )
    return results


def _chosen_round(points: list[Point], model: str, main: str, direction: Direction) -> int | None:
    """The round whose main metric is best on validation data; the earliest of equals."""
    best: Point | None = None
    for point in points:
        if (point.model, point.split) != (model, "validation") or main not in point.values:
            continue
        if best is None or better(point.values[main], best.values[main], direction):
            best = point
    return None if best is None else best.round
