"""The reference answers to `Train` and `Sweep`: one client, one step after another."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from coterie.data.examples import whole
from coterie.engine.optim import Stepper, rate
from coterie.engine.step import optimizer, take_step
from coterie.method import Batch, Examples, Exchange, Net, Round, Sweep, Train, Trained
from coterie.randomness import Draw, Key, draw
from coterie.tensors import Groups, Tensors, clone_groups


@dataclass(frozen=True, eq=False)
class Context:
    """Where an ask is answered: the net, the round and the key of this client in this round."""

    net: Net
    round: Round
    key: Key


@dataclass(frozen=True, eq=False)
class Question:
    """An ask with all that its answer depends on; the key is of this one ask."""

    ask: Train | Sweep
    context: Context


Asking: TypeAlias = Generator[Question | Exchange, Any, Any]
Reply: TypeAlias = Callable[[Question], Trained | Tensors]


def conduct(
    run: Generator[Any, Any, Any], context: Context, kinds: tuple[type, ...], told: list[tuple[str, Mapping[str, float]]]
) -> Asking:
    """Drive a run to its result, handing its Trains and Sweeps out as Questions, and its Exchanges as they are.

    `kinds` are the asks that this hook may make; `told` collects what each training says of itself. An error while
    answering is thrown into the run, so that the traceback names the method's own line.
    """
    asked: Counter[str] = Counter()
    reply: Any = None
    error: Exception | None = None
    while True:
        try:
            ask = run.throw(error) if error is not None else run.send(reply)
        except StopIteration as stop:
            return stop.value
        error = None
        try:
            _permit(ask, kinds)
            reply = yield ask if isinstance(ask, Exchange) else question(ask, context, asked[ask.name])
        except Exception as raised:
            error = raised
            continue
        asked[ask.name] += 1
        if isinstance(reply, Trained):
            told.append((ask.name, reply.metrics))


def _permit(ask: object, kinds: tuple[type, ...]) -> None:
    if not isinstance(ask, kinds):
        allowed = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"A {allowed} can be asked here, found {type(ask).__name__}. Ask with: yield from {kinds[0].__name__}(...)")


def answering(run: Asking, reply_to: Reply) -> Generator[Exchange, Any, Any]:
    """The same run with its Questions answered here, one after another; only Exchanges are handed out."""
    reply: Any = None
    error: Exception | None = None
    while True:
        try:
            asked = run.throw(error) if error is not None else run.send(reply)
        except StopIteration as stop:
            return stop.value
        error = None
        try:
            reply = (yield asked) if isinstance(asked, Exchange) else reply_to(asked)
        except Exception as raised:
            error = raised


def question(ask: Train | Sweep, context: Context, ordinal: int = 0) -> Question:
    """`ordinal` counts asks of the same name, so that each has random numbers of its own."""
    return Question(ask, replace(context, key=context.key.fold(ask.name, ordinal)))


def reference(asked: Question) -> Trained | Tensors:
    """The reference's answer."""
    ask, context = asked.ask, asked.context
    with own_generator(context.key, place_of(ask.params, context.net)[0]):
        if isinstance(ask, Train):
            return train(ask, context.net, context.round, context.key)
        return sweep(ask, context.net, context.key)


def conclude(run: Asking, reply_to: Reply = reference) -> Any:
    """The result of a run that asks the server nothing."""
    try:
        next(answering(run, reply_to))
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a run that may not ask an Exchange handed one out")


def answer(ask: Train | Sweep, context: Context, ordinal: int = 0) -> Trained | Tensors:
    """The reference's answer to one ask by itself."""
    return reference(question(ask, context, ordinal))


@contextlib.contextmanager
def own_generator(key: Key, device: torch.device) -> Iterator[None]:
    """What a net draws by itself (dropout) depends on the ask alone, not on who was computed before in this process.

    Not by torch.manual_seed: without an accelerator it writes down the stack of every call, for a day when there is one.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index])
    before = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(key.fold("torch").torch_seed())
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def train(ask: Train, net: Net, round: Round, key: Key) -> Trained:
    streams = {name: as_examples(stream) for name, stream in ask.streams.items()}
    num_steps = count_steps(ask, streams)
    params, buffers = laid_out(clone_groups(ask.params), net), clone_groups(ask.buffers)
    ask = replace(ask, refs=laid_out(ask.refs, net))
    net = net.freezing(ask.frozen) if ask.frozen is not None else net
    steppers = {group: Stepper(group, values, optimizer(ask, group), ask.memory) for group, values in params.items()}
    lr_sum = dict.fromkeys(params, 0.0)
    totals: Tensors = {}
    batches = _batches(ask, streams, key, params)
    for step in range(num_steps):
        rates = {group: rate(optimizer(ask, group), round, step, num_steps) for group in params}
        taken = take_step(ask, net, params, buffers, next(batches), steppers, rates)
        buffers = taken.buffers
        for group in taken.moved:
            lr_sum[group] += rates[group]
        for name, value in taken.told.items():
            total = value.double()  # stays on its device: reading it here would wait for every step
            totals[name] = totals[name] + total if name in totals else total
    metrics = {name: float(value) / max(num_steps, 1) for name, value in totals.items()}
    memory = {name: values for stepper in steppers.values() for name, values in stepper.memory().items()}
    return Trained(contiguous(params), buffers, contiguous(memory), num_steps, lr_sum, metrics)


def sweep(ask: Sweep, net: Net, key: Key) -> Tensors:
    streams = {name: as_examples(stream) for name, stream in ask.streams.items()}
    total = common_length(streams)
    device, dtype = place_of(ask.params or ask.refs or ask.buffers, net)
    # drawn for all rows at once: an example's noise must not depend on the batch it falls into
    noise = {n: draw(key.fold("noise", n), 0, spec, total, device, dtype) for n, spec in ask.noise.items()}
    params, refs = laid_out(ask.params, net), laid_out(ask.refs, net)
    gathered: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for start in range(0, total, ask.batch_size):
            positions = torch.arange(start, min(start + ask.batch_size, total))
            batch = {name: with_mask(stream.rows(positions)) for name, stream in streams.items()}
            batch["noise"] = {
                n: value[start : start + len(positions)] if per_example(ask.noise[n]) else value for n, value in noise.items()
            }
            out = ask.fn(params, ask.buffers, refs, batch, net)
            factor = len(positions) / total if ask.gather == "mean" else 1.0
            for name, value in out.items():
                value = value.detach()
                if ask.gather == "rows":
                    gathered.setdefault(name, []).append(value)
                else:
                    before = gathered[name][0] if name in gathered else torch.zeros_like(value)
                    gathered[name] = [before + value * factor]
    return {name: torch.cat(values) if ask.gather == "rows" else values[0] for name, values in gathered.items()}


def laid_out(groups: Groups, net: Net) -> Groups:
    """Convolution weights with their channels last in memory, which is how CPUs and tensor cores compute them fastest."""

    def place(name: str, value: Tensor) -> Tensor:
        fits = value.dim() == 4 and value.dtype == torch.float32 and name in net.params and _channels_last_pays(value.device, net)
        # not value.contiguous(...): with one channel in it would change nothing, and the layers behind would stay as they are
        return torch.empty_like(value, memory_format=torch.channels_last).copy_(value) if fits else value

    return {group: {name: place(name, value) for name, value in values.items()} for group, values in groups.items()}


def _channels_last_pays(device: torch.device, net: Net) -> bool:
    return device.type == "cpu" or net.lower_precision is not None or torch.backends.cudnn.allow_tf32


def contiguous(groups: Groups) -> Groups:
    """As it would arrive over a wire: sums must not depend on how a tensor lies in memory."""
    return {group: {name: value.contiguous() for name, value in values.items()} for group, values in groups.items()}


def as_examples(stream: Examples | Tensors) -> Examples:
    return whole(stream) if isinstance(stream, dict) else stream


def with_mask(columns: Tensors) -> Tensors:
    """A batch of the reference has no padding, so every row is real."""
    first = next(iter(columns.values()))
    return {**columns, "mask": torch.ones(len(first), dtype=torch.bool, device=first.device)}


def count_steps(ask: Train, streams: Mapping[str, Examples]) -> int:
    if ask.steps is not None:
        return ask.steps
    assert ask.epochs is not None
    main = next(iter(streams.values()))
    return ask.epochs * -(-len(main) // ask.batch_size)


def _batches(ask: Train, streams: Mapping[str, Examples], key: Key, params: Groups) -> Iterator[Batch]:
    device, dtype = place_of(params)
    positions = {name: positions_of(len(stream), ask.batch_size, key.fold("order", name)) for name, stream in streams.items()}
    step = 0
    while True:
        batch = {name: with_mask(stream.rows(next(positions[name]))) for name, stream in streams.items()}
        size = len(next(iter(batch.values()))["mask"]) if batch else ask.batch_size
        batch["noise"] = {n: draw(key.fold("noise", n), step, s, size, device, dtype) for n, s in ask.noise.items()}
        yield batch
        step += 1


def positions_of(total: int, batch_size: int, key: Key) -> Iterator[Tensor]:
    """Shuffled passes without end; the last batch of a pass may be short, none is dropped."""
    if total == 0:
        raise ValueError("A Train was given a stream without examples. Leave this client out, or give it data.")
    epoch = 0
    while True:
        order = torch.from_numpy(key.fold(epoch).numpy().permutation(total))
        yield from torch.split(order, batch_size)
        epoch += 1


def place_of(groups: Groups, net: Net | None = None) -> tuple[torch.device, torch.dtype]:
    for values in (*groups.values(), net.params if net is not None else {}):
        for value in values.values():
            if value.is_floating_point():
                return value.device, value.dtype
    return torch.device("cpu"), torch.get_default_dtype()


def per_example(spec: Draw) -> bool:
    return bool(spec.shape) and spec.shape[0] == "batch"


def common_length(streams: Mapping[str, Examples]) -> int:
    sizes = {name: len(stream) for name, stream in streams.items()}
    total = next(iter(sizes.values()))
    if total == 0:
        raise ValueError("A Sweep was given a stream without examples. Leave this client out, or sweep over another part.")
    if any(size != total for size in sizes.values()):
        raise ValueError(f"The streams of a Sweep go side by side, found the lengths {sizes}. Sweep over one after the other.")
    return total
