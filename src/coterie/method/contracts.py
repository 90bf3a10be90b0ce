"""What every room speaks of: batches, data and nets. `data`, `models` and `engine` implement them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from coterie.tensors import Tensors

Batch: TypeAlias = dict[str, Tensors]
"""One step's data: stream name -> columns ("x", "y", ..., and "mask", 1 for a real example); "noise" -> draws."""


class Examples(Protocol):
    """Rows of a data set, by index: nothing is copied until a batch is gathered."""

    def __len__(self) -> int: ...
    def rows(self, positions: Tensor) -> Tensors: ...
    def all_rows(self) -> Tensors: ...


class Parts(Protocol):
    """A client's own train, validation and test part; they never overlap."""

    @property
    def train(self) -> Examples: ...
    @property
    def validation(self) -> Examples: ...
    @property
    def test(self) -> Examples: ...


class Net(Protocol):
    """A module as a pure function of named parameters and buffers."""

    @property
    def params(self) -> Tensors: ...  # initial values, all names
    @property
    def buffers(self) -> Tensors: ...  # what changes without a gradient (batch-norm statistics)
    @property
    def head_names(self) -> tuple[str, ...]: ...
    @property
    def encoder_names(self) -> tuple[str, ...]: ...
    @property
    def norm_names(self) -> tuple[str, ...]: ...  # affine parameters of batch norms
    @property
    def num_features(self) -> int: ...
    @property
    def num_outputs(self) -> int: ...
    @property
    def groups(self) -> Mapping[str, tuple[str, ...]]: ...  # layer groups, input to output
    @property
    def lower_precision(self) -> torch.dtype | None: ...  # what it computes in, where that is not its parameters' dtype
    @property
    def buffer_groups(self) -> Mapping[str, tuple[str, ...]]: ...  # the buffers of the same groups

    def apply(self, params: Tensors, buffers: Tensors, columns: Tensors, *, train: bool) -> tuple[Tensor, Tensors]: ...
    def encode(self, params: Tensors, buffers: Tensors, columns: Tensors, *, train: bool) -> tuple[Tensor, Tensors]: ...
    def head(self, params: Tensors, features: Tensor) -> Tensor: ...
    def call(
        self, params: Tensors, buffers: Tensors, *inputs: Tensor, train: bool, part: str = ""
    ) -> tuple[Any, Tensors]: ...  # one part of the module by name, for nets that are no classifier
    def loss(self, outputs: Tensor, columns: Tensors) -> tuple[Tensor, Tensors]: ...
    def freezing(self, frozen: Tensors) -> Net: ...
    def with_running_statistics(self) -> Net: ...
    def masked(self) -> Net: ...  # for padded batches: rows whose column "mask" is false count for nothing
    def bind(self, params: Tensors, buffers: Tensors) -> nn.Module: ...
