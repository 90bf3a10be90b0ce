"""What is done for speed alone: how tensors lie in memory, how memory is kept, who comes first. No number depends on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from cases import ROTA, TRAINING, Toy
from play import assert_same
from torch import nn

from coterie.data.examples import ClientParts, Population, View
from coterie.engine import loop
from coterie.engine.answers import laid_out, train
from coterie.engine.backend import World
from coterie.engine.pool import Pool
from coterie.method import SGD, Adam, Phase, Round, Train
from coterie.methods.fable import Fable
from coterie.methods.fedavg import FedAvg, Supervised, Training
from coterie.methods.scaffold import Scaffold
from coterie.models.losses import CrossEntropy
from coterie.models.net import EncoderHead, Net
from coterie.randomness import Key

ROUND = Round(0, 1, "train", 0, 1, (0,), 1)


def pictures() -> Population:
    generator = torch.Generator().manual_seed(0)
    table = {"x": torch.randn(88, 3, 9, 9, generator=generator), "y": torch.randint(0, 3, (88,), generator=generator)}
    parts = [ClientParts(*(View(table, torch.arange(a, b)) for a, b in ((22 * c, 22 * c + 12), (22 * c + 12, 22 * c + 16), (22 * c + 16, 22 * c + 22))))
             for c in range(4)]  # fmt: skip
    return Population("pictures", ("a", "b", "c", "d"), parts, num_classes=3)


def conv_net() -> Net:
    torch.manual_seed(1)
    layers = OrderedDict(
        conv1=nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        conv2=nn.Sequential(nn.Conv2d(8, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
    )
    return Net(EncoderHead(nn.Sequential(layers), nn.Linear(24, 3), 24), CrossEntropy())


def test_a_convolutional_net_gives_the_same_bits_in_any_order_and_in_workers(tmp_path: Path) -> None:
    """In float32, where convolution weights lie with their channels last while they are trained."""
    momentum = Training(optim={"shared": SGD(lr=0.05), "private": SGD(lr=0.05, momentum=0.9)}, keep_memory=True, clip_norm=1.0)  # type: ignore[arg-type]
    plan = (
        Phase("fable", 2, Scaffold(Fable(training=momentum, anchors=8)), ROTA),
        Phase("more", 1, Fable(training=TRAINING, anchors=8), ROTA),
    )
    toy = Toy(net=conv_net, population=pictures)
    reference = toy.run(plan, tmp_path / "loop")
    for name, settings in (("reversed", {"order": "reversed"}), ("pool", {"backend": "pool", "workers": 2})):
        assert_same(reference, toy.run(plan, tmp_path / name, **settings))


@pytest.mark.parametrize("optim", [SGD(lr=0.05, momentum=0.9), Adam(lr=0.01)])
def test_what_a_training_gives_lies_as_if_it_had_crossed_a_wire(optim: SGD | Adam) -> None:
    net, data = conv_net(), pictures().parts[0].train
    ask = Train(params={"shared": net.params}, buffers={"buffers": net.buffers}, loss=Supervised(), streams={"local": data}, optim=optim, steps=2)
    first = train(ask, net, ROUND, Key(0))
    again = train(Train(**{**vars(ask), "params": first.params, "buffers": first.buffers, "memory": first.memory}), net, ROUND, Key(1))
    for got in (first, again):
        assert all(value.is_contiguous() for groups in (got.params, got.memory) for group in groups.values() for value in group.values())


def test_only_convolution_weights_of_the_net_are_laid_out() -> None:
    net = conv_net()
    pictures_ = torch.zeros(2, 3, 9, 9)
    found = laid_out({"shared": net.params, "refs": {"pictures": pictures_}}, net)
    assert found["refs"]["pictures"] is pictures_
    moved = {name for name, value in found["shared"].items() if not value.is_contiguous()}
    assert moved == {"encoder.conv1.0.weight", "encoder.conv2.0.weight"}
    assert all(torch.equal(found["shared"][name], value) for name, value in net.params.items())
    doubles = {"shared": {name: value.double() for name, value in net.params.items()}}
    assert all(value.is_contiguous() for value in laid_out(doubles, net)["shared"].values())


@pytest.mark.skipif(sys.platform != "linux" or "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""), reason="only glibc has these knobs")
def test_freed_memory_stays_with_the_process_and_is_used_again() -> None:
    """A hundred times 40 MB, more than glibc keeps by itself: fresh pages from the kernel each time, or the same ones."""
    faults = [
        int(subprocess.run([sys.executable, "-c", FAULTS.format(first=first)], check=True, capture_output=True, text=True).stdout)
        for first in ("pass", "keep_freed_memory()")
    ]
    assert faults[1] < 0.1 * faults[0]


FAULTS = """
import resource
from coterie.engine.allocator import keep_freed_memory
import torch
{first}
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    torch.ones(40_000_000, dtype=torch.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_clients_are_worked_on_longest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes 20, 13, 9 and 24: a worker that gets the largest last would keep all others waiting."""
    begun: list[int] = []
    start = loop.start
    monkeypatch.setattr(loop, "start", lambda world, job, reply_to: (begun.append(job.client), start(world, job, reply_to))[1])
    Toy().run((Phase("train", 1, FedAvg(training=TRAINING)),), tmp_path / "run")
    assert begun == [3, 0, 1, 2]


def test_a_worker_whose_parent_died_before_reading_goes_without_a_word() -> None:
    toy = Toy()
    pool = Pool(World((Phase("train", 1, FedAvg()),), toy.population(), toy.net(), toy.metric, seed=0), workers=1)
    (worker,) = pool._workers
    worker.connection.send(("unknown order", None, b"", b""))
    assert worker.connection.poll(20)
    worker.connection.close()
    worker.process.join(20)
    assert worker.process.exitcode == 0
