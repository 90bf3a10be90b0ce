"""Evaluation: sweep a Predictor over a part and score it. It never trains, draws or writes anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.engine.answers import Context, conclude, conduct, sweep
from coterie.message import Message
from coterie.method import Examples, Method, Net, Predictor, Site, Sweep, as_run
from coterie.metrics.metric import Metric
from coterie.randomness import Key
from coterie.tensors import Groups, clone_groups

BATCH = 1024


def score_predictor(predictor: Predictor, examples: Examples, net: Net, metric: Metric, key: Key) -> dict[str, float]:
    """The score of one predictor on one part. Its noise depends on `key` only: the same in every round."""
    ask = Sweep(
        fn=predictor.fn, params=predictor.params, buffers=predictor.buffers, refs=predictor.refs,
        streams={"local": examples}, gather="rows", batch_size=BATCH, noise=predictor.noise, name="evaluate",
    )  # fmt: skip
    predictions = sweep(ask, net, key)
    return metric(predictions, examples.all_rows())


def evaluate_client(
    method: Method, row: Groups, down: Message, site: Site, metric: Metric
) -> dict[str, dict[str, float]]:
    """Split -> metrics of what this client would deploy with this row and download ({} where it has no model).

    The method gets copies: an evaluation that writes into what it was given must not reach what is kept.
    """
    predictor = _finish(method.personal(clone_groups(row), down.copied(), site), site)
    return {} if predictor is None else evaluate_parts(predictor, site, metric)


def evaluate_parts(predictor: Predictor, site: Site, metric: Metric) -> dict[str, dict[str, float]]:
    key = Key(site.key.seed, ("evaluate", site.client))
    parts: Mapping[str, Examples] = {"validation": site.data.validation, "test": site.data.test}
    return {
        split: score_predictor(predictor, part, site.net, metric, key.fold(split)) for split, part in parts.items() if len(part)
    }


def _finish(result: Any, site: Site) -> Predictor | None:
    context = Context(site.net, site.round, site.key.fold("personal"))
    found: Predictor | None = conclude(conduct(as_run(result), context, (Sweep,), []))
    return found
