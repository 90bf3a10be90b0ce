"""A module as a pure function of named parameters and buffers; no federated word in here.

The module itself is kept on the `meta` device, so a call that forgets a parameter fails instead of
silently using an old one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map_only

from coterie.models.norm import BatchNorm, own_batch_norms
from coterie.tensors import Tensors, clone


class TaskLoss(Protocol):
    """The loss of a task: masked mean over a batch, and numbers for the log."""

    def __call__(self, outputs: Tensor, columns: Tensors) -> tuple[Tensor, Tensors]: ...


class EncoderHead(nn.Module):
    """A net in two parts: an encoder to features, and a head (usually one linear layer) on them."""

    def __init__(self, encoder: nn.Module, head: nn.Module, num_features: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.num_features = num_features

    def forward(self, *inputs: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(*inputs))
        return out


class Net:
    """See `coterie.method.Net`, the contract that this class fulfils."""

    def __init__(self, module: nn.Module, loss: TaskLoss, *, inputs: tuple[str, ...] = ("x",)) -> None:
        module = own_batch_norms(copy.deepcopy(module))
        self._loss = loss
        self._inputs = inputs
        self.params: Tensors = clone(dict(module.named_parameters()))
        self._ties = _ties_of(module)
        persistent = set(module.state_dict())
        buffers = dict(module.named_buffers())
        self.buffers: Tensors = clone({n: b for n, b in buffers.items() if n in persistent})
        self._constants: Tensors = clone({n: b for n, b in buffers.items() if n not in persistent})
        self._norms = {name: part for name, part in module.named_modules() if isinstance(part, BatchNorm)}
        skeleton = copy.deepcopy(module).to("meta")
        self._modes = {True: copy.deepcopy(skeleton).train(), False: skeleton.eval()}
        self._plain = self._modes[True]
        self._variants: dict[tuple[bool, bool], nn.Module] = {}  # training modules whose norms look at their flags or at the mask
        self._flags = (False, False)  # selective, masked
        self._lower: torch.dtype | None = None  # what the module computes in, where that is not its parameters' dtype

    @property
    def lower_precision(self) -> torch.dtype | None:
        """What the module computes in, where that is not its parameters' own dtype."""
        return self._lower

    @property
    def head_names(self) -> tuple[str, ...]:
        return tuple(n for n in self.params if n.startswith("head."))

    @property
    def encoder_names(self) -> tuple[str, ...]:
        return tuple(n for n in self.params if not n.startswith("head."))

    @property
    def norm_names(self) -> tuple[str, ...]:
        owners = tuple(f"{name}." for name in self._norms)
        return tuple(n for n in self.params if n.startswith(owners)) if owners else ()

    @property
    def num_features(self) -> int:
        return int(self._split().num_features)

    @property
    def num_outputs(self) -> int:
        return int(self.params[self.head_names[-1]].shape[0])  # of the last layer, in a head of several

    @property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        """Layer groups from input to output: the encoder's children, then the head."""
        stages = [f"encoder.{name}" for name, _ in self._split().encoder.named_children()] + ["head"]
        found = {stage: tuple(n for n in self.params if n.startswith(f"{stage}.")) for stage in stages}
        return {stage: names for stage, names in found.items() if names}

    @property
    def buffer_groups(self) -> Mapping[str, tuple[str, ...]]:
        return {stage: tuple(n for n in self.buffers if n.startswith(f"{stage}.")) for stage in self.groups}

    def apply(self, params: Tensors, buffers: Tensors, columns: Tensors, *, train: bool) -> tuple[Tensor, Tensors]:
        """Outputs for a batch, and the buffers afterwards."""
        return self._on(columns)._call(self._modes[train], "", params, buffers, tuple(columns[name] for name in self._inputs))

    def encode(self, params: Tensors, buffers: Tensors, columns: Tensors, *, train: bool) -> tuple[Tensor, Tensors]:
        """Features only; parameters of the head need not be there."""
        inputs = tuple(columns[name] for name in self._inputs)
        return self._on(columns)._call(self._split(train).encoder, "encoder.", params, buffers, inputs)

    def head(self, params: Tensors, features: Tensor) -> Tensor:
        outputs: Tensor = self._call(self._split().head, "head.", params, {}, (features,))[0]
        return outputs

    def call(
        self, params: Tensors, buffers: Tensors, *inputs: Tensor, train: bool, part: str = ""
    ) -> tuple[Any, Tensors]:
        """Call the module, or the part of this name, with these inputs (for nets that are no classifier)."""
        module = self._modes[train].get_submodule(part)
        if train and self._flags[1] and any(isinstance(inner, BatchNorm) for inner in module.modules()):
            raise ValueError(f"A padded batch reached the batch norms of part '{part}', which can't tell real rows. Use apply or encode.")
        return self._call(module, f"{part}." if part else "", params, buffers, inputs)

    def loss(self, outputs: Tensor, columns: Tensors) -> tuple[Tensor, Tensors]:
        return self._loss(outputs, columns)

    def freezing(self, frozen: Tensors) -> Net:
        """The net whose batch norms use running statistics wherever their scale is frozen (may differ per client)."""
        live = {f"{name}.live": ~frozen[f"{name}.weight"] for name in self._norms if f"{name}.weight" in frozen}
        return self._with_live(live)

    def with_running_statistics(self) -> Net:
        """The net whose batch norms always use (and keep) their running statistics."""
        device = next(iter(self.params.values())).device
        return self._with_live({f"{name}.live": torch.full((), False, device=device) for name in self._norms})

    def masked(self) -> Net:
        """The net for padded batches: its batch norms count only rows whose column "mask" is true."""
        return self._flagged(self._flags[0], True) if self._norms else self

    def bind(self, params: Tensors, buffers: Tensors) -> nn.Module:
        """An ordinary module with these values, in evaluation mode, for hooks (relevance, perceptual losses)."""
        module = copy.deepcopy(self._modes[False])
        values = self._with_ties({**self._constants, **self.buffers, **self.params, **buffers, **params})
        for name, value in values.items():
            owner_name, _, leaf = name.rpartition(".")
            owner = module.get_submodule(owner_name)
            value = value.detach().clone()
            if leaf in owner._parameters:
                owner._parameters[leaf] = nn.Parameter(value)
            else:
                owner._buffers[leaf] = value
        return module

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Net:
        """The same net with initial values on a device, floats in another precision."""

        def move(value: Tensor) -> Tensor:
            return value.to(device, dtype if value.is_floating_point() else None)

        other = copy.copy(self)
        other.params = {n: move(v) for n, v in self.params.items()}
        other.buffers = {n: move(v) for n, v in self.buffers.items()}
        other._constants = {n: move(v) for n, v in self._constants.items()}
        return other

    def computing_in(self, dtype: torch.dtype) -> Net:
        """The net that computes in a lower precision from parameters, and to outputs, that stay as they are.

        Batch norms keep parameters and statistics as they are. Casts by hand, because autocast has none under vmap's backward.
        """
        other = copy.copy(self)
        other._lower = dtype
        return other

    def with_parts(self, **modules: nn.Module) -> Net:
        """The net with further modules of a method's own, reached by `call(part=name)`."""
        grown = nn.ModuleDict(modules)
        other = copy.copy(self)
        other.params = {**self.params, **clone(dict(grown.named_parameters()))}
        other._modes, other._variants = {}, {}
        for mode, module in self._modes.items():
            module = copy.deepcopy(module)
            for name, part in modules.items():
                module.add_module(name, copy.deepcopy(part).to("meta").train(mode))
            other._modes[mode] = module
        other._plain = other._modes[True]
        other._ties = {**self._ties, **_ties_of(grown)}
        return other

    def with_head(self, change: Callable[[nn.Module], nn.Module]) -> Net:
        """The same encoder under another head, which `change` makes of this one."""
        module = self.bind(self.params, self.buffers)
        assert isinstance(self._split(), EncoderHead) and isinstance(module, EncoderHead)
        return Net(EncoderHead(module.encoder, change(module.head), self.num_features), self._loss, inputs=self._inputs)

    def _split(self, train: bool = False) -> EncoderHead:
        module = self._modes[train]
        if not isinstance(module, EncoderHead):
            raise ValueError(
                f"This method needs a net with encoder and head, found {type(module).__name__}. "
                "Build it as coterie.models.EncoderHead(encoder, head, num_features)."
            )
        return module

    def _with_live(self, live: Tensors) -> Net:
        if not live:
            return self
        other = self._flagged(True, self._flags[1])
        device = next(iter(self.params.values())).device
        other._constants = {**self._constants, **{name: flag.to(device) for name, flag in live.items()}}
        return other

    def _flagged(self, selective: bool, masked: bool) -> Net:
        flags = (selective, masked)
        if flags not in self._variants:
            module = copy.deepcopy(self._plain)
            for part in module.modules():
                if isinstance(part, BatchNorm):
                    part.selective, part.masked = flags
            self._variants[flags] = module
        other = copy.copy(self)
        other._flags = flags
        other._modes = {True: self._variants[flags], False: self._modes[False]}
        return other

    def _on(self, columns: Tensors) -> Net:
        """With masked norms: the net that knows which rows of this batch are real."""
        if not self._flags[1]:
            return self
        other = copy.copy(self)
        other._constants = {**self._constants, **{f"{name}.rows": columns["mask"] for name in self._norms}}
        return other

    def _call(
        self, module: nn.Module, prefix: str, params: Tensors, buffers: Tensors, inputs: tuple[Tensor, ...]
    ) -> tuple[Any, Tensors]:
        # cloned because batch norm writes its statistics in place, and the caller's must stay as they are
        after = {name: value.clone() for name, value in buffers.items()} if module.training else buffers
        given = self._with_ties(self._lowered({**self._constants, **after, **params}))
        inside = {name[len(prefix) :]: value for name, value in given.items() if name.startswith(prefix)}
        if self._lower is not None:
            inputs = tree_map_only(Tensor, self._cast_down, inputs)
        out = functional_call(module, inside, inputs, strict=False, tie_weights=False)  # looking for ties would cost every call
        return out if self._lower is None else tree_map_only(Tensor, _cast_up, out), after

    def _lowered(self, given: Tensors) -> Tensors:
        if self._lower is None:
            return given
        norms = tuple(f"{name}." for name in self._norms)
        return {name: value if norms and name.startswith(norms) else self._cast_down(value) for name, value in given.items()}

    def _cast_down(self, value: Tensor) -> Tensor:
        return value.to(self._lower) if value.is_floating_point() else value

    def _with_ties(self, given: Tensors) -> Tensors:
        return {**given, **{other: given[name] for other, name in self._ties.items() if name in given}}


def _cast_up(value: Tensor) -> Tensor:
    return value.float() if value.is_floating_point() else value


def _ties_of(module: nn.Module) -> dict[str, str]:
    """Further names of parameters that are used in several places -> the name that they have in `params`."""
    first: dict[int, str] = {}
    names = [(name, first.setdefault(id(value), name)) for name, value in module.named_parameters(remove_duplicate=False)]
    return {name: known for name, known in names if name != known}
