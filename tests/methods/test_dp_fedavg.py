"""DP-FedAvg is FedAvg under guards: Poisson sampling, clipped changes, equal weights, a fixed denominator, noise on the sum.

McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018, arXiv 1710.06963, Algorithm 1 with
equal weights:   theta <- theta + (sum over the drawn clients of Delta_k min(1, C / ||Delta_k||) + N(0, z^2 C^2 I)) / (q K).
"""

import json

import pytest
import torch
import toy
from by_hand import batches, descend, farthest
from cases import Toy, clients_of, weights_of

from coterie import methods
from coterie.engine.run import run
from coterie.engine.settings import Settings
from coterie.method import SGD, Everyone, Poisson
from coterie.methods.fedavg import Training
from coterie.privacy.guards import Guards
from coterie.randomness import Key

K, Q, C = 4, 0.75, 0.4
TRAINING = Training(optim=SGD(lr=0.1, momentum=0.9), epochs=2, batch_size=8)


def flat(w):
    return torch.cat([v.flatten() for v in w.values()])


def guarded(plan, out, net=toy.net, seed=0, **guards):
    settings = Settings(backend="loop", quiet=True, precision="fp64", seed=seed)
    guards = Guards(clip=C, kappa=0.0, n_max=1.0, audit_seed=3, **guards)
    return run(plan, toy.population(), net=net(), metric=Toy().metric, out=out, guards=guards, settings=settings)


def test_dp_fedavg_equals_plain_loops(tmp_path):
    """Three rounds whose cohorts have other sizes than expected, with noise too small to be seen."""
    cohort = Poisson(Q)

    def drawn(seed):
        return [cohort.draw(K, Key(seed, ("cohort", t))) for t in range(3)]

    seed = next(s for s in range(1000) if [len(present) for present in drawn(s)] == [2, 4, 1])
    w, clients = weights_of(toy.net()), clients_of(toy.population())
    clipped = 0
    for t, present in enumerate(drawn(seed)):
        total = {name: torch.zeros_like(value) for name, value in w.items()}
        for k in present:
            x, y = clients[k]
            v, _ = descend(w, x, y, batches(t, k, len(y), 8, epochs=2, seed=seed), 0.1, momentum=0.9)
            length = float(flat({n: v[n] - w[n] for n in w}).norm())
            clipped += length > C
            total = {n: total[n] + (v[n] - w[n]) * min(1.0, C / length) for n in w}
        w = {n: w[n] + total[n] / (Q * K) for n in w}
    finish = guarded(methods.fedavg(rounds=3, training=TRAINING, cohort=cohort), tmp_path / "run", seed=seed, noise=1e-13)
    assert farthest(finish.state.shared["shared"], w) < 1e-10 and clipped >= 5


def test_the_sum_carries_noise_of_z_times_c_and_nothing_else_is_sent(tmp_path):
    """Nobody learns (a rate of 0), so one round moves the model by the noise over q K alone. Wire 3: bP each way."""
    plan = methods.fedavg(rounds=1, training=Training(optim=SGD(lr=0.0)), cohort=Everyone())

    def wide():
        return toy.net(hidden=400)

    finish = guarded(plan, tmp_path / "run", net=wide, noise=1.5, split="share", min_cohort=K)
    moved = flat(finish.state.shared["shared"]) - flat(weights_of(wide()))
    assert len(moved) > 4000 and float(moved.std()) == pytest.approx(1.5 * C / K, rel=0.05)
    assert abs(float(moved.mean())) < 4 * 1.5 * C / K / len(moved) ** 0.5
    ledger = [json.loads(line) for line in (finish.path / "wire.jsonl").read_text().splitlines()]
    sent = sorted((line["direction"], line["slot"], line["bytes"]) for line in ledger)
    assert sent == [(way, "shared", K * 8 * len(moved)) for way in ("down", "up")]
