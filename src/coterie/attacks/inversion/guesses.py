"""What an attacker varies, and which gradient that would have given: one class per attacker of the specification's section 4.

Every guess has variables (always the pictures "x") and a gradient of them with a graph, so that it can be moved towards the
observed one. Each level can give every gradient that the one before it can:

    L0 DummyDecoder    x', y', h'                      FABLE's own attacker (6): a decoder on z, no anchors
    L1 DummyAnchors    x', y', h', m anchor pictures   the search that the paper calls infeasible
    L3 DummyDecoder    on z / ||z||: logits = M zh + b, which is FABLE exactly (FB identities)
    L4 FreeCotangent   x', v'                          J_g(x')^T v', which is every split model's gradient exactly

A net is a function of named weights and pictures; nothing here knows how it is built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from coterie.attacks.inversion.observed import Observed
from coterie.tensors import Tensors

Forward: TypeAlias = Callable[[Tensors, Tensor], Tensor]
"""(weights, pictures) -> logits, or features where only the encoder is exchanged."""

_SMALLEST_NORM = 1e-8


class Guess(Protocol):
    """Variables, and the gradient that they would have given."""

    def start(self, generator: Generator) -> Tensors: ...

    def gradient(self, variables: Tensors) -> Tensors: ...


@dataclass(frozen=True, eq=False)
class _Base:
    """A function of weights, and what was observed of it."""

    forward: Forward
    observed: Observed

    def tracked(self) -> Tensors:
        """The weights, ready to be differentiated by."""
        return {name: value.detach().requires_grad_() for name, value in self.observed.params.items()}

    def by_weights(self, loss: Tensor, weights: Tensors, cotangent: Tensor | None = None) -> Tensors:
        names = self.observed.names()
        found = torch.autograd.grad(loss, [weights[name] for name in names], grad_outputs=cotangent, create_graph=True)
        return dict(zip(names, found, strict=True))

    def normal(self, generator: Generator, *shape: int) -> Tensor:
        like = next(iter(self.observed.params.values()))
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(like.device)

    def pictures(self, generator: Generator) -> Tensor:
        return self.normal(generator, *self.observed.shape)

    def labels(self, generator: Generator) -> Tensor:
        return self.normal(generator, self.observed.pictures, self.observed.classes)


@dataclass(frozen=True, eq=False)
class WholeNet(_Base):
    """All parameters are exchanged: x', and y' unless the labels are known."""

    known: Tensor | None = None  # labels, read from the message or given

    def start(self, generator: Generator) -> Tensors:
        found = {"x": self.pictures(generator)}
        return found if self.known is not None else {**found, "y": self.labels(generator)}

    def gradient(self, variables: Tensors) -> Tensors:
        weights = self.tracked()
        target = self.known if self.known is not None else variables["y"].softmax(1)
        return self.by_weights(F.cross_entropy(self.forward(weights, variables["x"]), target), weights)


@dataclass(frozen=True, eq=False)
class DummyDecoder(_Base):
    """L0 and L3: the head is secret, so one is made up and varied too. `forward` gives features."""

    features: int
    normalise: bool = False  # the head reads z / ||z||, as FABLE's does

    def start(self, generator: Generator) -> Tensors:
        classes = self.observed.classes
        head = self.normal(generator, classes, self.features) / self.features**0.5
        return {"x": self.pictures(generator), "y": self.labels(generator), "weight": head, "bias": torch.zeros_like(head[:, 0])}

    def gradient(self, variables: Tensors) -> Tensors:
        weights = self.tracked()
        z = self.forward(weights, variables["x"])
        logits = F.linear(direction(z) if self.normalise else z, variables["weight"], variables["bias"])
        return self.by_weights(F.cross_entropy(logits, variables["y"].softmax(1)), weights)


@dataclass(frozen=True, eq=False)
class DummyAnchors(_Base):
    """L1: anchors are pictures that are varied as well; the decoder reads cosines to them (FABLE, eq. 2 and 3).

    Their embeddings have no gradient into the encoder's weights, as on the client, but one into the anchor pictures.
    """

    anchors: int

    def start(self, generator: Generator) -> Tensors:
        classes = self.observed.classes
        head = self.normal(generator, classes, self.anchors) / self.anchors**0.5
        pictures = self.normal(generator, self.anchors, *self.observed.picture)
        variables = {"x": self.pictures(generator), "y": self.labels(generator), "anchors": pictures}
        return {**variables, "weight": head, "bias": torch.zeros_like(head[:, 0])}

    def gradient(self, variables: Tensors) -> Tensors:
        weights = self.tracked()
        embedded = direction(self.forward(self.observed.params, variables["anchors"]))
        r = direction(self.forward(weights, variables["x"])) @ embedded.T
        logits = F.linear(r, variables["weight"], variables["bias"])
        return self.by_weights(F.cross_entropy(logits, variables["y"].softmax(1)), weights)


@dataclass(frozen=True, eq=False)
class KnownAnchors(_Base):
    """The oracle: somebody betrayed the anchors, and only decoder and label are unknown. An upper bound of L1."""

    embedded: Tensor  # of the true anchors, [m, d], rows of length 1

    def start(self, generator: Generator) -> Tensors:
        classes, anchors = self.observed.classes, len(self.embedded)
        head = self.normal(generator, classes, anchors) / anchors**0.5
        return {"x": self.pictures(generator), "y": self.labels(generator), "weight": head, "bias": torch.zeros_like(head[:, 0])}

    def gradient(self, variables: Tensors) -> Tensors:
        weights = self.tracked()
        r = direction(self.forward(weights, variables["x"])) @ self.embedded.T
        logits = F.linear(r, variables["weight"], variables["bias"])
        return self.by_weights(F.cross_entropy(logits, variables["y"].softmax(1)), weights)


@dataclass(frozen=True, eq=False)
class FreeCotangent(_Base):
    """L4: whatever head and anchors there are, they enter only through v = dL/dz (FB-D10): so v' itself is varied.

    v' is counted in units of `unit`, with which a random start has a gradient as long as the observed one: v' and x' then move on one
    scale, whatever head there is (at first FABLE's v is some hundred times shorter than FedPer's).

    With `orthogonal` the part of v' along z' is taken out, because FABLE's v is orthogonal to z for every sample.
    """

    features: int
    orthogonal: bool = False
    unit: float = 1.0

    def start(self, generator: Generator) -> Tensors:
        return {"x": self.pictures(generator), "v": self.normal(generator, self.observed.pictures, self.features)}

    def gradient(self, variables: Tensors) -> Tensors:
        weights = self.tracked()
        z = self.forward(weights, variables["x"])
        v = self.unit * variables["v"]
        if self.orthogonal:
            along = direction(self.forward(self.observed.params, variables["x"]))  # of z', but with no slope in the weights
            v = v - (v * along).sum(1, keepdim=True) * along
        # the gradient of a batch is the mean over its pictures, as the loss is
        return self.by_weights(z, weights, v / self.observed.pictures)


def direction(z: Tensor) -> Tensor:
    """z / ||z||, row by row."""
    unit: Tensor = z / z.norm(dim=1, keepdim=True).clamp(min=_SMALLEST_NORM)
    return unit
