"""Every bad input ends with one clear line (what, found, what to do), and leaves no half-made folder behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from commands import SMALL, refused, succeed

from coterie.data import Assignment, Table, load, make_population
from coterie.randomness import Key

NEW = ("--out", "parent/new")

# words after `coterie`, and what the line must say: the value found, and what to do about it
CALLS = {
    "frobnicate": ["Unknown command 'frobnicate'", "Use one of: attack, compare, data, list, privacy, report, run, sweep"],
    "lst": ["Unknown command 'lst'", "Did you mean 'list'?"],
    "list --all": ["Unknown option '--all'", "There are none"],
    "run quickstrat": ["Unknown recipe 'quickstrat'", "Did you mean 'quickstart'?"],
    "run xyz": ["Unknown recipe 'xyz'", "Use one of: compare_cifar10, compare_digits"],
    "run --rounds 3": ["recipe is missing", "'--rounds'", "coterie run RECIPE"],
    "run quickstart 3": ["Expected an option", "'3'", "coterie run quickstart --help"],
    "run quickstart --round 3": ["Unknown option '--round'", "Did you mean '--rounds'?"],
    "run quickstart --rounds": ["'--rounds' has no value", "for example --rounds 10"],
    "run quickstart --rounds --quiet": ["'--rounds' has no value"],
    "run quickstart --rounds 2 --rounds 3": ["'--rounds' is given twice", "Give it once"],
    "run quickstart --rounds x": ["--rounds must be a whole number, found 'x'", "for example 10"],
    "run quickstart --rounds 1.5": ["--rounds must be a whole number, found '1.5'"],
    "run quickstart --rounds 0": ["rounds must be at least 1, found 0", "Use 1 or more"],
    "run quickstart --rounds -2": ["rounds must be at least 1, found -2"],
    "run quickstart --clients 0": ["clients must be at least 1, found 0"],
    "run quickstart --clients -1": ["clients must be at least 1, found -1"],
    "run quickstart --clients 5000": ["5000 clients", "found 1797", "Use at most 1797 clients"],
    "run quickstart --beta 0": ["beta must be above 0 and finite, found 0.0", "Use 0.1"],
    "run quickstart --beta -0.5": ["beta must be above 0 and finite, found -0.5"],
    "run quickstart --beta inf": ["--beta must be a finite number, found 'inf'"],
    "run quickstart --lr nan": ["--lr must be a finite number, found 'nan'", "for example 0.1"],
    "run quickstart --lr 1e999": ["--lr must be a finite number, found '1e999'"],
    "run quickstart --lr -1": ["learning rate must be a number >= 0, found -1.0"],
    "run quickstart --epochs 0": ["epochs must be at least 1, found 0"],
    "run quickstart --anchors 0": ["at least 1 anchor, found 0"],
    "run quickstart --quiet maybe": ["--quiet must be yes or no, found 'maybe'"],
    "run quickstart --no-quiet=yes": ["'--no-quiet' takes no value, found 'yes'"],
    "run quickstart --seed x": ["--seed must be a whole number, found 'x'"],
    "run quickstart --workers 0": ["workers must be at least 1, found 0"],
    "run quickstart --threads 0": ["threads must be at least 1, found 0"],
    "run quickstart --eval-every 0": ["eval_every must be at least 1, found 0"],
    "run quickstart --eval-clients x": ["eval_clients must be all, cohort or a number, found 'x'"],
    "run quickstart --checkpoint-every 0": ["checkpoint_every must be at least 1, found 0"],
    "run quickstart --row-memory-mb 0": ["row_memory_mb must be greater than 0, found 0.0"],
    "run quickstart --norm-ratio 0": ["norm_ratio must be greater than 0, found 0.0"],
    "run quickstart --min-cohort 11": ["min_cohort is 11", "10 clients", "Use --min-cohort 10 or less"],
    "run quickstart --precision nope": ["--precision must be one of fp32, tf32, bf16, fp64, found 'nope'", "Use one of these"],
    "run quickstart --backend lop": ["--backend must be one of auto, loop, pool, graph, stacked, found 'lop'", "Did you mean 'loop'?"],
    "run quickstart --devices tpu": ["Unknown device 'tpu'", "Use cpu, cuda or cuda:0"],
    "run quickstart --devices mps": ["Unknown device 'mps'"],
    "run quickstart --devices cuda:63": ["no device 'cuda:63' here", "Use --devices"],
    "run compare_digits --methods fedavgg": ["Unknown method 'fedavgg'", "Did you mean 'fedavg'?"],
    "run compare_digits --methods=": ["--methods needs at least one value, found ''"],
    "run compare_digits --methods fedavg,ditto,fedavg": ["'fedavg' is given 2 times", "Give every method once"],
    "run compare_digits --cohort 11": ["cohort (11) is larger than the population (10)", "Use --cohort 10 or less"],
    "run compare_digits --cohort 0": ["cohort needs at least 1 client, found 0"],
    "run compare_digits --batch-size 0": ["batch_size must be at least 1, found 0"],
    "run compare_digits --momentum 1": ["momentum must lie in [0, 1), found 1.0"],
    "run compare_digits --buffers mine": ["--buffers must be one of average, local, server, found 'mine'"],
    "run compare_digits --knobs fedavg.mu": ["method.key=value, found 'fedavg.mu'", "for example fedprox.mu=0.1"],
    "run compare_digits --knobs ditto.lam=1": ["'ditto.lam=1' is for a method that does not run"],
    "run compare_digits --knobs fable.anchor=3": ["fable has no knob 'anchor'", "Did you mean 'anchors'?"],
    "run compare_digits --knobs fable.anchors=many": ["fable.anchors must be a whole number, found 'many'"],
    "run compare_digits --knobs fable.anchors=3,fable.anchors=4": ["fable.anchors is given twice"],
    "run compare_digits --knobs fedavg.rounds=9": ["'fedavg.rounds=9' would give fedavg other conditions than the rest"],
    # found only by asking the last method of several: nothing of the first may have trained
    "run compare_digits --methods fedavg,fedbn --net mlp": ["FedBN keeps the norm", "this net has none", "Use a net with such layers"],
    "run compare_digits --methods fedavg,privfedtalk": ["Adapters need linear layers", "found none called"],
    "run compare_digits --methods fedavg,scaffold --momentum 0.9": ["SCAFFOLD", "found SGD", "without momentum"],
    "run compare_cifar10 --data-dir nowhere": ["Data folder 'nowhere' does not exist", "give --data-dir DIR"],
    "run walk_fedxds --data cifar10": ["COTERIE_DATA is not set", "Set COTERIE_DATA or give --data-dir DIR"],
    "sweep quickstrat": ["Unknown recipe 'quickstrat'", "Did you mean 'quickstart'?"],
    "sweep --lr 0.1,0.3": ["recipe is missing", "coterie sweep RECIPE"],
    "sweep quickstart --lr 0.1,x": ["--lr must be a number, found 'x'"],
    "sweep quickstart --lr 0.1,0.1": ["'--lr' has the value 0.1 twice"],
    "sweep quickstart --lrs 0.1,0.3": ["Unknown option '--lrs'", "Did you mean '--lr'?"],
    "sweep quickstart --beta 0.1,-1": ["beta must be above 0 and finite, found -1.0"],
    "sweep quickstart --seeds 2-0": ["--seeds must be whole numbers or ranges, found '2-0'", "for example 0-2"],
    "sweep quickstart --seeds 0-1,1": ["names a seed twice, found '0-1,1'"],
    "sweep quickstart --seed 1": ["repeats over seeds, found --seed", "--seeds 0-2"],
    "sweep quickstart --select test": ["--select must be val, found 'test'", "Use --select val"],
    "sweep quickstart --precision fp32,fp64": ["Only keys of the recipe can be swept", "2 values of --precision"],
}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COTERIE_DATA", raising=False)


@pytest.mark.parametrize("words", CALLS)
def test_one_line_says_what_was_found_and_what_to_do(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    takes_out = words.split()[0] in ("run", "sweep")
    line = refused(capsys, *words.split(), *(NEW if takes_out else ()))
    for part in CALLS[words]:
        assert part in line
    assert not any(Path().iterdir())  # no folder, nor the one above it


@pytest.mark.skipif(os.environ.get("CUDA_VISIBLE_DEVICES", "") != "" or Path("/dev/nvidia0").exists(), reason="there is a CUDA device")
def test_cuda_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "run", "quickstart", "--devices", "cuda", *NEW)
    assert line == "There is no device 'cuda' here, found 0 CUDA devices. Use --devices cpu."


def test_a_true_process_says_it_too() -> None:
    command = [sys.executable, "-m", "coterie", "run", "quickstart", "--beta", "0", *NEW]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "coterie: beta must be above 0 and finite, found 0.0. Use 0.1 for strong label skew, 100 for nearly none.\n"
    assert not any(Path().iterdir())


# --- folders


def test_out_that_is_not_empty_names_the_two_ways_on(capsys: pytest.CaptureFixture[str]) -> None:
    Path("full").mkdir()
    Path("full/note.txt").write_text("mine")
    line = refused(capsys, "run", "quickstart", "--out", "full")
    assert line == "The folder 'full' is not empty. Choose another --out, or go on with: coterie run --resume full"
    assert refused(capsys, "sweep", "quickstart", "--out", "full").endswith("coterie sweep --resume full")
    assert [path.name for path in Path("full").iterdir()] == ["note.txt"]


def test_out_that_is_a_file_or_below_one(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("mine")
    assert refused(capsys, "run", "quickstart", "--out", "file") == "--out must be a folder, but 'file' is a file. Choose another --out."
    line = refused(capsys, "run", "quickstart", "--out", "file/below/it")
    assert line == "Can't write to 'file/below/it' (Not a directory). Choose another --out."
    assert Path("file").read_text() == "mine"


def test_out_that_may_not_be_written(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:  # root may write everywhere: let the system's answer be no
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    Path("theirs").mkdir(mode=0o555)
    for command in ("run", "sweep"):
        line = refused(capsys, command, "quickstart", "--out", "theirs")
        assert line == "Can't write to 'theirs' (Permission denied). Choose another --out."
    assert not any(Path("theirs").iterdir())


def test_a_folder_that_was_there_and_empty_stays(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine").mkdir()
    refused(capsys, "run", "quickstart", "--beta", "0", "--out", "mine")
    assert Path("mine").is_dir() and not any(Path("mine").iterdir())


@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_folder_that_is_no_run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert "'empty' is no run folder: it has no run.json. Give a folder made by coterie run." in refused(capsys, command, "empty")
    assert "'nowhere' does not exist or is no folder" in refused(capsys, command, "nowhere")
    assert "needs at least one run folder, found none" in refused(capsys, command)
    Path("broken").mkdir()
    Path("broken/run.json").write_text("{")
    assert "is not JSON" in refused(capsys, command, "broken")


# --- resume


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from coterie.cli import main

    out = tmp_path_factory.mktemp("finished") / "run"
    assert main(["run", "quickstart", *SMALL, "--quiet", "--out", str(out)]) == 0
    return out


def test_resume_refuses_what_is_not_the_same_run(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert "holds the recipe 'quickstart', not 'walk_fable'" in refused(capsys, "run", "walk_fable", "--resume", finished)
    line = refused(capsys, "run", "--resume", finished, "--lr", "0.5")
    assert line == "--lr was 0.3 when this run began, found 0.5. Leave it out to resume, or start a new run."
    assert "--seed was 0 when this run began, found 1" in refused(capsys, "run", "--resume", finished, "--seed", "1")
    line = refused(capsys, "run", "quickstart", "--resume", finished, "--rounds", "1")
    assert line == "--rounds can only grow when a run is resumed: it was 2, found 1. Use 2 or more."
    assert "Unknown option '--out'" in refused(capsys, "run", "--resume", finished, "--out", "new")
    part = refused(capsys, "run", "--resume", finished / "fedavg")
    assert part.endswith(f"It belongs to a run; go on with: coterie run --resume {finished}")
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_resume_of_what_is_no_run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert "There is no folder 'nowhere' to resume. Give the --out" in refused(capsys, command, "--resume", "nowhere")
    assert f"'empty' is no {command} folder: it has no" in refused(capsys, command, "--resume", "empty")
    assert "'--resume' has no folder" in refused(capsys, command, "--resume")
    assert "'--resume' has no folder" in refused(capsys, command, "--resume=")
    assert "'--resume' is given twice" in refused(capsys, command, "--resume", "empty", "--resume", "empty")
    assert not any(Path("empty").iterdir())


def test_resume_of_a_run_whose_request_is_damaged_or_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    Path("old").mkdir()
    file = Path("old/recipe.json")
    for text in ("{", "[]", "{}", '{"recipe": "quickstart", "values": 3, "settings": {}}'):
        file.write_text(text)
        assert "'old/recipe.json' is damaged" in refused(capsys, "run", "--resume", "old")
    file.write_text(json.dumps({"recipe": "fast_start", "values": {}, "settings": {}}))
    assert "holds the recipe 'fast_start', which does not exist here" in refused(capsys, "run", "--resume", "old")
    file.write_text(json.dumps({"recipe": "quickstart", "values": {"speed": 1}, "settings": {}}))
    assert "begun with the key 'speed', which does not exist here" in refused(capsys, "run", "--resume", "old")
    file.write_text(json.dumps({"recipe": "quickstart", "values": {}, "settings": {"colour": 1}}))
    assert "begun with the key 'colour'" in refused(capsys, "run", "--resume", "old")


def test_a_comparison_of_what_the_runs_do_not_have(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "The baseline 'fedavgg' is not among the methods. Found: local" in refused(capsys, "compare", finished, "--baseline", "fedavgg")
    assert "No run has the metric 'speed'" in refused(capsys, "compare", finished, "--metric", "speed")
    assert "--test must be one of paired, welch, found 'z'" in refused(capsys, "compare", finished, "--test", "z")
    assert "cannot be written to 'no/where.json'" in refused(capsys, "compare", finished, "--json", "no/where.json")


# --- data


def test_data_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Data folder 'nowhere' does not exist" in refused(capsys, "data", "inspect", "cifar10", "--data-dir", "nowhere")
    assert "COTERIE_DATA is not set" in refused(capsys, "data", "inspect", "mnist")
    assert "no data set and no folder 'digit'. Did you mean 'digits'?" in refused(capsys, "data", "inspect", "digit")
    assert "Unknown command 'data inspekt'. Did you mean 'inspect'?" in refused(capsys, "data", "inspekt")
    assert "found 'diriclet'. Did you mean 'dirichlet'?" in refused(capsys, "data", "inspect", "--partition", "diriclet")
    assert "has no column 'writer', only ['label']. Use" in refused(capsys, "data", "check", "--partition", "column")
    assert "Can't write the picture to 'no/where.svg'" in refused(capsys, "data", "inspect", "--out", "no/where.svg")
    Path("folder").mkdir()
    assert "'folder' is no known kind of data, found nothing" in refused(capsys, "data", "inspect", "folder")
    assert "Give one of them" in refused(capsys, "data", "inspect", "folder", "--data-dir", "folder")


def test_a_leaf_file_with_a_user_who_has_no_data(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine").mkdir()
    content = {"users": ["ann", "bob"], "num_samples": [1, 1], "user_data": {"ann": {"x": [[0.0]], "y": [1]}}}
    Path("mine/all.json").write_text(json.dumps(content))
    line = refused(capsys, "data", "inspect", "mine")
    assert line == (
        "LEAF file 'mine/all.json' lists user 'bob' (1 of 2 users) without an entry in 'user_data'. "
        "Remove such users from 'users', or add their data."
    )


def test_a_path_in_an_index_that_leaves_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine").mkdir()
    Path("mine/index.csv").write_text("path,label\n../../secret.png,1\n")
    line = refused(capsys, "data", "inspect", "mine")
    assert "leave the data folder" in line and "'../../secret.png'" in line


def test_an_empty_client() -> None:
    table: Table = load("digits")
    clients = Assignment((table.labels.nonzero()[0], table.labels[:0]), ("ann", "bob"), "by hand")
    with pytest.raises(ValueError, match=r"Client 'bob' has no samples\. Use fewer clients, a larger beta, or min_size\."):
        make_population(table, clients, key=Key(0))


# --- what works stays possible


def test_more_clients_than_classes_and_a_seed_below_zero_are_no_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--clients", "40", "--rounds", "1", "--epochs", "1", "--seed", "-3", "--quiet")
    assert "fedavg" in succeed(capsys, "run", "quickstart", *words, *NEW)
