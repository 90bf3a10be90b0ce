"""`coterie privacy audit`: what can be shown against a claimed epsilon."""

from __future__ import annotations

import json as json_module
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from coterie.cli.show import console, print_doc, wants_help
from coterie.options import Option, options_of, parse, table_of
from coterie.privacy.audit.bounds import auc, tpr_at
from coterie.privacy.audit.broken import Fault
from coterie.privacy.audit.finding import Finding
from coterie.privacy.audit.mechanism import Theory
from coterie.recipes.audit import Audit, Audited, Kind, perform
from coterie.recipes.audit_training import Observed
from coterie.report.audit_picture import audit_svg

_BEYOND = 1e4  # an epsilon above it says only that nothing is hidden
_NOT_BROKEN = "none"


def privacy_audit(
    *, kind: Kind = "mechanism", mechanism: Audited | None = None, noise: float = 1.0, clip: float = 1.0,
    clients: int | None = None, rate: float | None = None, rounds: int | None = None, delta: float = 1e-5,
    canaries: int | None = None, runs: int | None = None, observed: Observed | None = None, secure_sum: bool = False, fault: Fault = "none",
    confidence: float = 0.95, seed: int | None = None, json: Path | None = None, picture: Path | None = None,
) -> int:  # fmt: skip
    """A lower bound on epsilon, from attacks by somebody who knows everything but one client, beside the claimed upper bound.

    A bound above the claim proves the claim or the code wrong: VIOLATION, and the command ends with code 1 (0 when
    consistent, 2 for bad input), so that a test pipeline can stop on it. A bound below the claim proves nothing: it shows
    only that this attack found no more. A sound mechanism is called a violation in at most one audit of twenty, or as rarely
    as --confidence says.

    Kind "mechanism" runs clip, noise and sum of one release many times on small vectors. Kind "canary" trains once, on
    handwritten digits through the whole engine, with clients in it that push a direction of their own, and looks for these
    directions in what the server saw; it takes the canaries' scores for independent. Kind "one-run" includes each canary by
    the toss of a coin and guesses the coins, which holds without that.

    Two bounds are given. The first takes nothing for granted. The second refutes the whole curve that a Gaussian
    mechanism claims, not only its point at delta, and is much nearer to the truth; it is given where the claim is such a
    curve (all clients in every round).

    --kind          what is attacked
    --mechanism     one release of the guards, of the guards with discrete noise, or PrivFedTalk's mean as printed, which claims naively (default: guards)
    --noise         sigma: noise of one client's guarantee, in units of the clip
    --clip          norm that updates are cut to
    --clients       honest clients beside the canaries (default: 1, 19 for isfa-literal, 20 in a training)
    --rate          chance to take part in a round of a training (default: 1, everybody)
    --rounds        of a training (default: 2)
    --delta         at which epsilon is stated
    --canaries      clients that push a direction (default: 300, one-run 600); beyond 325, one-run 650, the net grows with them
    --runs          releases of either kind (default: 10000)
    --observed      what an attacker on a training sees: the sum of every round, or only the final model (default: sums)
    --secure-sum    a training's server learns sums only, through the real protocol
    --confidence    with which both bounds hold together
    --seed          makes the audit repeatable, its noise as well (default: from the operating system)
    --json FILE     all numbers
    --picture FILE  scores and trade-off as SVG
    """
    audit = Audit(
        kind=kind, mechanism=mechanism, noise=noise, clip=clip, clients=clients, rate=rate,
        rounds=rounds, delta=delta, canaries=canaries, runs=runs, observed=observed, secure_sum=secure_sum or None, fault=fault,
        confidence=confidence, seed=seed,
    )  # fmt: skip
    found = perform(audit)
    if json is not None:
        json.write_text(json_module.dumps(found.to_json(), indent=2) + "\n", encoding="utf-8")
    if picture is not None:
        picture.write_text(picture_of(found), encoding="utf-8")
    show(found)
    return 1 if found.verdict == "VIOLATION" else 0


def audit_options() -> dict[str, Option]:
    """The keys of the command; what is broken on purpose is called `--break`, which Python can't call a parameter."""
    options = options_of(privacy_audit)
    fault = options.pop("fault")
    meaning = "audit a mechanism that is broken on purpose, which must be found"
    return {**options, "break": replace(fault, name="break", help=meaning)}


def audit_command(words: list[str]) -> int:
    options = audit_options()
    if wants_help(words):
        print_doc("coterie privacy audit", privacy_audit)
        console.print(table_of(options.values()))
        return 0
    given = parse(words, options, "privacy audit")
    if "break" in given:
        given["fault"] = given.pop("break")
    return privacy_audit(**given)


def show(found: Finding) -> None:
    bounds, claim, about = found.bounds, found.claim, found.about
    words = {key: value for key, value in about.items() if key not in ("kind", "break", "accuracy")}
    console.print(Text(f"Audit of kind {about['kind']}: " + ", ".join(f"{key} {_plain(value)}" for key, value in words.items())))
    if about["break"] != _NOT_BROKEN:
        console.print(Text(f"Broken on purpose: {about['break']}. The claim is that of the sound mechanism."))
    where = "from the operating system" if found.seed is None else f"repeatable (seed {found.seed}), so it protects nobody"
    console.print(Text(f"Noise {where}.\n"))
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_row("", "epsilon", "", style="dim")
    sure = f"{bounds.confidence:.0%} sure"
    table.add_row("at least", _epsilon(bounds.epsilon), f"{sure}, whatever the mechanism is")
    if claim.mu is not None:
        table.add_row("at least, against a Gaussian claim", _epsilon(bounds.gaussian_epsilon), f"{sure}: mu >= {bounds.mu:.3f}")
    table.add_row("likely", _epsilon(bounds.estimate), f"two normal distributions fitted: mu = {bounds.estimate_mu:.4g}")
    table.add_row("claimed at most", _epsilon(claim.epsilon), f"delta {claim.delta:g}; {claim.words}")
    ceilings = [bounds.ceiling] + ([bounds.gaussian_ceiling] if claim.mu is not None else [])
    table.add_row("could be shown at most", " / ".join(_epsilon(value) for value in ceilings), "if every score told the truth")
    console.print(table)
    console.print()
    expected = f" (of a Gaussian mechanism {Theory(claim.mu).auc:.4f})" if claim.mu is not None else ""
    console.print(Text(f"AUC {auc(found.without, found.with_canary):.4f}{expected}"))
    tpr = f" (of a Gaussian mechanism {Theory(claim.mu).tpr(0.05):.4f})" if claim.mu is not None else ""
    console.print(Text(f"TPR at FPR 0.05: {tpr_at(0.05, found.without, found.with_canary):.4f}{tpr}"))
    if "accuracy" in about:
        console.print(Text(f"Accuracy of the trained model: {about['accuracy']:.3f}"))
    if not found.could_tell:
        console.print(Text("An audit of this size can't refute this claim, whatever is broken: use more canaries, fewer rounds or more noise."))
    console.print(Text(f"\nVerdict: {found.verdict}", style="bold red" if found.verdict == "VIOLATION" else "bold"))


def picture_of(found: Finding) -> str:
    fpr = np.linspace(0.0, 1.0, 201)
    if found.claim.mu is None:
        tpr = np.minimum(1.0, math.exp(min(found.claim.epsilon, 500.0)) * fpr + found.claim.delta)
    else:
        theory = Theory(found.claim.mu)
        tpr = np.array([0.0, *(theory.tpr(float(rate)) for rate in fpr[1:-1]), 1.0])
    broken = "" if found.about["break"] == _NOT_BROKEN else f", broken on purpose: {found.about['break']}"
    lower = found.bounds.epsilon if found.claim.mu is None else max(found.bounds.epsilon, found.bounds.gaussian_epsilon)
    return audit_svg(
        found.without, found.with_canary, list(zip(fpr.tolist(), tpr.tolist(), strict=True)),
        title=f"Audit of kind {found.about['kind']}{broken}: {found.verdict}",
        subtitle=f"epsilon at least {_epsilon(lower)} ({found.bounds.confidence:.0%} sure), claimed at most {_epsilon(found.claim.epsilon)} "
        f"(noise {found.about['noise']:g}, delta {found.claim.delta:g})",
    )  # fmt: skip


def _epsilon(value: float) -> str:
    return f"{value:.3f}" if value < _BEYOND else f"> {_BEYOND:,.0f}"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
