"""One audit from start to finish: run it, and hold what it shows against what is claimed."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coterie.privacy.accountant import Budget, Scheme, ViewName, planned
from coterie.privacy.audit.bounds import Scores, bounds_of, check_levels
from coterie.privacy.audit.broken import Fault
from coterie.privacy.audit.finding import Claim, Finding
from coterie.privacy.audit.isfa import literal_isfa_scores, naive_mu
from coterie.privacy.audit.mechanism import mechanism_scores
from coterie.privacy.audit.one_run import one_run_bounds
from coterie.privacy.gaussian import gaussian_eps
from coterie.recipes.audit_training import AuditedTraining, Observed

Kind = Literal["mechanism", "canary", "one-run"]
Audited = Literal["guards", "discrete", "isfa-literal"]


_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e3
_FEWEST_CANARIES = 20


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What is audited and how; `clients` are honest ones. Fields that a kind does not know must be left at None."""

    kind: Kind = "mechanism"
    mechanism: Audited | None = None
    noise: float = 1.0
    clip: float = 1.0
    clients: int | None = None
    rate: float | None = None
    rounds: int | None = None
    delta: float = 1e-5
    canaries: int | None = None
    runs: int | None = None
    observed: Observed | None = None
    secure_sum: bool | None = None
    fault: Fault = "none"
    confidence: float = 0.95
    seed: int | None = None

    def __post_init__(self) -> None:
        check_levels(self.delta, self.confidence)
        others = ("rate", "rounds", "canaries", "observed", "secure_sum") if self.kind == "mechanism" else ("mechanism", "runs")
        for name in others:
            if getattr(self, name) is not None:
                raise ValueError(f"An audit of kind {self.kind} knows no {name}, found {getattr(self, name)}. Leave it out, or choose another kind.")
        if self.mechanism == "isfa-literal" and self.fault != "none":
            raise ValueError(f"isfa-literal needs no fault to be found out, found '{self.fault}'. Leave it out.")
        if not _LEAST_NOISE <= self.noise <= _MOST_NOISE:
            raise ValueError(
                f"An audit needs a claim to hold against it: noise must lie in [{_LEAST_NOISE:g}, {_MOST_NOISE:g}], found {self.noise:g}. "
                "Use for example 1."
            )
        if self.clients is not None and self.clients < 0:
            raise ValueError(f"clients must be at least 0, found {self.clients}. Use for example 20.")
        if self.canaries is not None and self.canaries < _FEWEST_CANARIES:
            raise ValueError(f"An audit needs at least {_FEWEST_CANARIES} canaries, found {self.canaries}. Use for example 300.")
        if self.seed is not None and self.seed < 0:
            raise ValueError(f"A seed must be at least 0, found {self.seed}. Use for example 0.")


def perform(audit: Audit) -> Finding:
    """Run the audit. Without a seed everything comes from the operating system, and no two audits are alike."""
    kinds: dict[Kind, Callable[[Audit], Finding]] = {"mechanism": of_a_mechanism, "canary": of_a_training, "one-run": of_a_training}
    if audit.kind not in kinds:
        raise ValueError(f"An audit is of kind {', '.join(kinds)}, found '{audit.kind}'. Use one of those.")
    return kinds[audit.kind](audit)


def of_a_mechanism(audit: Audit) -> Finding:
    """Many runs of one release."""
    runs = 10_000 if audit.runs is None else audit.runs
    if audit.mechanism == "isfa-literal":
        honest = 19 if audit.clients is None else audit.clients
        scores = literal_isfa_scores(noise=audit.noise, clients=honest + 1, runs=runs, seed=audit.seed)
        claim = gaussian_claim(naive_mu(audit.noise, honest + 1), audit.delta, f"naive central view of {honest + 1} clients")
    else:
        honest = 1 if audit.clients is None else audit.clients
        scores = mechanism_scores(
            noise=audit.noise, clip=audit.clip, clients=honest + 1, runs=runs, fault=audit.fault, seed=audit.seed,
            mechanism="discrete" if audit.mechanism == "discrete" else "gaussian",
        )  # fmt: skip
        claim = claim_of(audit.noise, 1, 1.0, audit.delta)
    about = {"clients": honest, "runs": runs, "mechanism": audit.mechanism or "guards"}
    return finding(audit, claim, *scores, about)


def of_a_training(audit: Audit) -> Finding:
    """One training with canaries in it."""
    training = AuditedTraining(
        noise=audit.noise, clip=audit.clip, fault=audit.fault,
        **{name: value for name in ("clients", "rate", "rounds", "observed", "secure_sum") if (value := getattr(audit, name)) is not None},
    )  # fmt: skip
    claim = claim_of(audit.noise, training.rounds, training.rate, audit.delta)
    one_run = audit.kind == "one-run"
    canaries = audit.canaries if audit.canaries is not None else 600 if one_run else 300
    seed = secrets.randbits(62) if audit.seed is None else audit.seed
    fixed: dict[str, Any] = {"seed": seed, "repeatable": audit.seed is not None}
    about = {
        "clients": training.clients, "canaries": canaries, "rounds": training.rounds, "rate": training.rate,
        "observed": training.observed, "secure_sum": training.secure_sum,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        if not one_run:
            without, with_canary, accuracy = training.canary_scores(canaries, **fixed, out=Path(folder) / "run")
            return finding(audit, claim, without, with_canary, {**about, "accuracy": accuracy})
        found, included, accuracy = training.one_run_scores(canaries, **fixed, out=Path(folder) / "run")
    return Finding(
        claim=claim, bounds=one_run_bounds(found, included, delta=audit.delta, confidence=audit.confidence),
        without=found[~included], with_canary=found[included], seed=audit.seed,
        about=described(audit, {**about, "accuracy": accuracy}),
    )  # fmt: skip


def finding(audit: Audit, claim: Claim, without: Scores, with_canary: Scores, about: dict[str, Any]) -> Finding:
    bounds = bounds_of(without, with_canary, delta=audit.delta, confidence=audit.confidence)
    return Finding(claim=claim, bounds=bounds, without=without, with_canary=with_canary, seed=audit.seed, about=described(audit, about))


def described(audit: Audit, about: dict[str, Any]) -> dict[str, Any]:
    return {"kind": audit.kind, "noise": audit.noise, "clip": audit.clip, "break": audit.fault, **about}


def claim_of(noise: float, rounds: int, rate: float, delta: float) -> Claim:
    """The accountant's upper bound for one client's presence, seen through sums that carry noise * clip.

    Where clients are sampled, the attacker does not know who took part, so the amplified view is what it refutes.
    """
    view: ViewName = "central" if rate == 1.0 else "amplified"
    spent = planned(Scheme(rate=rate, split="share", secure=True), noise, rounds, Budget(delta=delta, view=view)).view(view)
    if spent.epsilon is None:
        raise ValueError(f"There is no claim to audit: {spent.reason}")
    mu = rounds**0.5 / noise if rate == 1.0 else None
    told = f": mu = {mu:.4g}" if mu is not None else ""
    return Claim(epsilon=spent.epsilon, delta=delta, mu=mu, words=f"{view} view, {spent.accountant}{told}")


def gaussian_claim(mu: float, delta: float, words: str) -> Claim:
    return Claim(epsilon=gaussian_eps(mu, delta), delta=delta, mu=mu, words=f"{words}: mu = {mu:.4g}")
