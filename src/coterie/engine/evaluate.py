"""Evaluation: sweep a Predictor over a part and score it. It never trains, draws or writes anything."""

from __future__ import annotations

from coterie.engine.answers import Asking, Context, Question, conduct, place_of
from coterie.message import Message
from coterie.method import Examples, Method, Predictor, Site, Sweep, as_run
from coterie.metrics.metric import Metric
from coterie.randomness import Key
from coterie.tensors import Groups, clone_groups, equal_groups

_ON_CPU, _ON_ACCELERATOR = 128, 1024  # rows of a batch: what fits a CPU's caches, and what fills an accelerator


def score_predictor(predictor: Predictor, examples: Examples, context: Context, metric: Metric) -> Asking:
    """The score of one predictor on one part. Its noise depends on the key only: the same in every round."""
    device, _ = place_of(predictor.params, context.net)
    size = _ON_CPU if device.type == "cpu" else _ON_ACCELERATOR
    ask = Sweep(
        fn=predictor.fn, params=predictor.params, buffers=predictor.buffers, refs=predictor.refs,
        streams={"local": examples}, gather="rows", batch_size=size, noise=predictor.noise, name="evaluate",
    )  # fmt: skip
    predictions = yield Question(ask, context)
    return metric(predictions, examples.all_rows())


def evaluate_client(method: Method, row: Groups, down: Message, site: Site, metric: Metric) -> Asking:
    """Split -> metrics of what this client would deploy with this row and download ({} where it has no model)."""
    predictor = yield from own_predictor(method, row, down, site)
    return {} if predictor is None else (yield from evaluate_parts(predictor, site, metric))


def own_predictor(method: Method, row: Groups, down: Message, site: Site) -> Asking:
    """The method gets copies: an evaluation that writes into what it was given must not reach what is kept."""
    asking = as_run(method.personal(clone_groups(row), down.copied(), site))
    return (yield from conduct(asking, Context(site.net, site.round, site.key.fold("personal")), (Sweep,), []))


def evaluate_models(
    method: Method, shared: Predictor | None, row: Groups, down: Message, site: Site, metric: Metric
) -> Asking:
    """Model -> split -> metrics, of the server's model where there is one and of what this client would deploy.

    Where both are the same model, as in FedAvg, it is evaluated once.
    """
    scores = {}
    if shared is not None:
        scores["global"] = yield from evaluate_parts(shared, site, metric)
    own = yield from own_predictor(method, row, down, site)
    if own is not None:
        equal = shared is not None and same(own, shared)
        scores["personal"] = scores["global"] if equal else (yield from evaluate_parts(own, site, metric))
    return scores


def same(one: Predictor, other: Predictor) -> bool:
    """Whether two predictors compute the same, to the bit."""
    groups = [(p.params, p.buffers, p.refs) for p in (one, other)]
    return _equal_values((one.fn, one.noise), (other.fn, other.noise)) and all(equal_groups(a, b) for a, b in zip(*groups, strict=True))


def _equal_values(one: object, other: object) -> bool:
    try:
        return one == other
    except (RuntimeError, ValueError):  # functions that hold tensors or arrays, whose equality is no single truth
        return False


def evaluate_parts(predictor: Predictor, site: Site, metric: Metric) -> Asking:
    """Split -> metrics of a given predictor on this client's parts."""
    key = Key(site.key.seed, ("evaluate", site.client))
    parts: dict[str, Examples] = {"validation": site.data.validation, "test": site.data.test}
    if (triggered := getattr(site.data, "triggered", None)) is not None:
        parts["triggered"] = triggered
    scores = {}
    for split, part in parts.items():
        if len(part):
            scores[split] = yield from score_predictor(predictor, part, Context(site.net, site.round, key.fold(split)), metric)
    return scores
