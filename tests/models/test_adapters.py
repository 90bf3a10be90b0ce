"""Nets of others as encoder and head, a linear scaling in front of a head, and the stem for large pictures."""

import sys
from types import SimpleNamespace

import pytest
import torch
import toy
from torch import nn

from coterie import methods
from coterie.engine.run import run
from coterie.engine.settings import Settings
from coterie.metrics.classification import Classification
from coterie.models import CrossEntropy, Net, cut_head, from_timm, with_linear
from coterie.models.nets import mlp, resnet18


class Classifier(nn.Module):
    """As torchvision writes them."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU())
        self.fc = nn.Linear(5, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc(self.body(x))
        return out


class LikeTimm(Classifier):
    """A stand-in with what timm's models have in common: timm itself is not needed here."""

    num_features = 5

    def get_classifier(self) -> nn.Module:
        return self.fc

    def reset_classifier(self, num_classes: int) -> None:
        self.fc = nn.Linear(5, num_classes) if num_classes else nn.Identity()


X = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))


def test_a_named_layer_becomes_the_head() -> None:
    whole = Classifier().eval()
    net = Net(cut_head(whole, "fc"), CrossEntropy())
    assert net.head_names == ("head.weight", "head.bias") and net.num_features == 5 and net.num_outputs == 3
    found, _ = net.apply(net.params, net.buffers, {"x": X}, train=False)
    assert torch.equal(found, whole(X)) and isinstance(whole.fc, nn.Linear)  # the given module stays whole
    z, _ = net.encode(net.params, net.buffers, {"x": X}, train=False)
    assert torch.equal(z, whole.body(X))


def test_a_layer_inside_a_sequence_can_be_the_head() -> None:
    whole = nn.Sequential(nn.Linear(6, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    net = Net(cut_head(whole, "1.1"), CrossEntropy())
    assert torch.equal(net.apply(net.params, {}, {"x": X}, train=False)[0], whole(X)) and net.num_features == 4


def test_no_head_is_one_clear_sentence() -> None:
    with pytest.raises(ValueError, match=r"head of a Classifier must be its last linear layer, but 'top' is no such layer\. Use one of \['body\.0', 'fc'\]"):
        cut_head(Classifier(), "top")
    with pytest.raises(ValueError, match=r"but 'body' is Sequential\. Use one of"):
        cut_head(Classifier(), "body")
    with pytest.raises(ValueError, match=r"A ReLU has no linear layer to be its head\. Build EncoderHead"):
        cut_head(nn.ReLU(), "fc")


def test_a_model_of_timm_is_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[LikeTimm] = []

    def create_model(name: str, *, num_classes: int, in_chans: int) -> LikeTimm:
        assert (name, in_chans) == ("some_net", 1)
        made.append(LikeTimm(num_classes).eval())
        return made[-1]

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    net = from_timm("some_net", 4, in_chans=1)
    assert net.num_outputs == 4 and net.num_features == 5 and isinstance(made[0].fc, nn.Identity)
    found, _ = net.apply(net.params, net.buffers, {"x": X}, train=False)
    assert torch.allclose(found, made[0].body(X) @ net.params["head.weight"].T + net.params["head.bias"])


def test_timms_absence_and_headless_models_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match=r"Models by name need timm\. Install it with: pip install timm"):
        from_timm("some_net", 4)
    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=lambda *a, **k: nn.Linear(2, 2)))
    with pytest.raises(ValueError, match=r"encoder and linear head, but the head of Linear is none\. Choose a classifier"):
        from_timm("some_net", 4)


def test_a_foreign_net_runs_in_fable(tmp_path: object) -> None:
    torch.manual_seed(0)
    net = Net(cut_head(Classifier(toy.CLASSES), "fc"), CrossEntropy())
    settings = Settings(backend="loop", quiet=True)
    plan = methods.fable(rounds=1, anchors=4)
    finish = run(plan, toy.population(), net=net, metric=Classification(toy.CLASSES), out=f"{tmp_path}/run", settings=settings)
    assert set(finish.state.shared["shared"]) == set(net.encoder_names)


def test_a_linear_scaling_starts_as_the_identity_and_belongs_to_the_head() -> None:
    torch.manual_seed(0)
    plain = mlp(6, 3, hidden=(5,))
    net = with_linear(plain)
    assert torch.equal(net.params["head.linear.weight"], torch.eye(5)) and "head.linear.bias" not in net.params
    assert torch.equal(net.params["head.classifier.weight"], plain.params["head.weight"]) and net.num_outputs == 3
    assert torch.allclose(net.apply(net.params, {}, {"x": X}, train=False)[0], plain.apply(plain.params, {}, {"x": X}, train=False)[0])
    W = torch.randn(5, 5, generator=torch.Generator().manual_seed(1))
    z, _ = plain.encode(plain.params, {}, {"x": X}, train=False)
    expected = z @ W.T @ plain.params["head.weight"].T + plain.params["head.bias"]
    found, _ = net.apply({**net.params, "head.linear.weight": W}, {}, {"x": X}, train=False)
    assert torch.allclose(found, expected, atol=1e-6)


def test_fedavg_shares_the_scaling_and_fedper_keeps_it(tmp_path: object) -> None:
    """Table 6: W is trained in both."""
    settings = Settings(backend="loop", quiet=True)
    for name, plan in (("fedavg", methods.fedavg(rounds=1)), ("fedper", methods.fedper(rounds=1))):
        net = with_linear(toy.net())
        finish = run(plan, toy.population(), net=net, metric=Classification(toy.CLASSES), out=f"{tmp_path}/{name}", settings=settings)
        kept = finish.state.shared["shared"] if name == "fedavg" else finish.clients[0]["private"]
        assert not torch.equal(kept["head.linear.weight"], torch.eye(5))
        assert ("head.linear.weight" in finish.state.shared["shared"]) == (name == "fedavg")


def test_the_stem_for_large_pictures() -> None:
    torch.manual_seed(0)
    net = resnet18(3, 10, stem="tv")
    module = net.bind(net.params, net.buffers)
    x = torch.randn(2, 3, 64, 64)
    found = module.encoder.stem(x)
    by_hand = torch.relu(nn.functional.conv2d(x, net.params["encoder.stem.0.weight"], stride=2, padding=3) / (1 + 1e-5) ** 0.5)
    assert torch.allclose(found, nn.functional.max_pool2d(by_hand, 3, 2, 1), atol=1e-5) and found.shape == (2, 64, 16, 16)
    with pytest.raises(ValueError, match=r"stem must be cifar or tv, found 'big'"):
        resnet18(3, 10, stem="big")
