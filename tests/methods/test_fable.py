"""FABLE against plain loops, alone and inside SCAFFOLD, and the identities of spec/fable.md section 12 (FB-T1 ... FB-T10)."""

import numpy as np
import pytest
import torch
import toy
from by_hand import B1, W1, batches, cross_entropy, descend, farthest, features, gradient, mean
from cases import BUFFER_CHANGES, COMMON_CHANGES, ROTA, Case, Rota, clients_of, every_round, norm_net, weights_of

from coterie import methods
from coterie.engine.answers import Context, answer
from coterie.message import Message
from coterie.method import SGD, Everyone, Phase, Round, Site, Sweep, Train
from coterie.methods.fable import Fable, FableLoss, coordinates, decode, normalised
from coterie.methods.fedavg import Training
from coterie.methods.scaffold import Scaffold
from coterie.randomness import Key

EVERYBODY = {"cohort": Everyone()}

CASES = {
    "fable": Case(
        changes={
            **COMMON_CHANGES, **BUFFER_CHANGES, "anchors": (7, {}), "linear": (False, {}), "selection": ("fps", {}),
            "refresh": ("step", {}), "fill": "needs pictures: tested in test_fable_anchors.py", "exclude_anchors": (True, {}),
            "private_optim": (SGD(lr=0.02), {}), "joining": ((3,), EVERYBODY), "joining_rounds": (2, {"joining": (3,), **EVERYBODY}),
            "joining_encoder": ("trained", {"joining": (3,), **EVERYBODY}),
        },
        knobs={"anchors": 11, "buffers": "average"}, secret=("anchors", "private", "chosen", "embedded"),
        wire=lambda f: every_round(
            f, up={"shared": f.b * f.P_e, "buffers": f.b * f.B, "weight": 8}, down={"shared": f.b * f.P_e, "buffers": f.b * f.B}
        ),
    )
}  # fmt: skip

H, BIAS, W = "decoder.weight", "decoder.bias", "linear.weight"
PRIVATE = (H, BIAS, W)
TRAINING = Training(optim=SGD(lr=0.1, momentum=0.9, weight_decay=0.01), epochs=2, batch_size=8)
PLAIN = Training(optim=SGD(lr=0.1), epochs=2, batch_size=8)
MANY = 12  # more anchors than client 2 has examples (9)


def site_of(client, net=toy.net, method=None):
    round = Round(0, 1, "train", 0, 1, (client,), 4)
    return Site(client, round, toy.population().moved(doubled).parts[client], net().to("cpu", torch.float64), Key(0, ("row", client)))


def doubled(column):
    return column.double() if column.is_floating_point() else column


def first_rows(method):
    """Every client's anchors and first decoder: where the oracles start."""
    return [method.client_row(site_of(k)) for k in range(4)]


def unit(z):
    return z / z.square().sum(1, keepdim=True).sqrt().clamp(min=1e-8)


def oracle_loss(anchors):
    """CE(H W r + b) with r_i = cos(g(x), g(a_i)); the anchors' embeddings are constants (FB-D1). Without W, W = 1."""

    def loss(w, x, y):
        r = unit(features(w, x)) @ anchors.T
        return cross_entropy((r @ w[W].T if W in w else r) @ w[H].T + w[BIAS], y)

    return loss


def narrowed(private, m):
    """The decoder of a client with only m anchors (FB-D4)."""
    cut = {H: private[H][:, :m], BIAS: private[BIAS]}
    return {**cut, W: private[W][:m, :m]} if W in private else cut


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("m", [5, MANY])
def test_fable_equals_plain_loops(m, linear, go64):
    """With m = 12 client 2 has fewer samples than anchors: the oracle's decoder is narrow, ours is padded (FB-T10)."""
    method = Fable(training=TRAINING, anchors=m, linear=linear)
    rows, clients = first_rows(method), clients_of(toy.population())
    anchors = [row["anchors"]["x"] for row in rows]
    own = [narrowed(row["private"], len(a)) for row, a in zip(rows, anchors, strict=True)]
    w = {name: weights_of(toy.net())[name] for name in (W1, B1)}
    for t, cohort in enumerate(ROTA.rounds):
        found = []
        for k in cohort:
            x, y = clients[k]
            loss = oracle_loss(unit(features(w, anchors[k])))
            v, _ = descend({**w, **own[k]}, x, y, batches(t, k, len(y), 8, epochs=2), 0.1, loss, momentum=0.9, weight_decay=0.01)
            own[k] = {name: v.pop(name) for name in own[k]}
            found.append(v)
        w = mean(found, [len(clients[k][1]) for k in cohort])
    finish = go64((Phase("train", 3, method, ROTA),))
    assert farthest(finish.state.shared["shared"], w) < 1e-10
    for k, private in enumerate(own):
        assert farthest(narrowed(finish.clients[k]["private"], len(anchors[k])), private) < 1e-10
    assert len(anchors[2]) == min(m, 9)


def test_fewer_samples_than_anchors_is_a_narrower_decoder(go64):
    """FB-D4: one round of client 2 alone, padded from 9 to 12 anchors, to 1e-12."""
    method = Fable(training=TRAINING, anchors=MANY)
    row, (x, y) = first_rows(method)[2], clients_of(toy.population())[2]
    w = {name: weights_of(toy.net())[name] for name in (W1, B1)}
    loss = oracle_loss(unit(features(w, row["anchors"]["x"])))
    v, _ = descend({**w, **narrowed(row["private"], 9)}, x, y, batches(0, 2, 9, 8, epochs=2), 0.1, loss, momentum=0.9, weight_decay=0.01)
    finish = go64((Phase("train", 1, method, Rota(((2,),))),))
    found = {**finish.state.shared["shared"], **narrowed(finish.clients[2]["private"], 9)}
    assert farthest(found, v) < 1e-12


def test_scaffold_around_fable_equals_plain_loops(go64):
    """Control variates on the encoder only; decoder and W take plain SGD; all clients count the same."""
    method = Fable(training=PLAIN, anchors=MANY)
    rows, clients = first_rows(method), clients_of(toy.population())
    anchors = [row["anchors"]["x"] for row in rows]
    own = [narrowed(row["private"], len(a)) for row, a in zip(rows, anchors, strict=True)]
    x = {name: weights_of(toy.net())[name] for name in (W1, B1)}
    c = {name: torch.zeros_like(value) for name, value in x.items()}
    controls = [c] * 4
    for t, cohort in enumerate(ROTA.rounds):
        found, changes = [], []
        for k in cohort:
            data, labels = clients[k]
            loss, y, private, steps = oracle_loss(unit(features(x, anchors[k]))), x, own[k], 0
            for chosen in batches(t, k, len(labels), 8, epochs=2):
                g = gradient(loss, {**y, **private}, data[chosen], labels[chosen])
                y = {n: y[n] - 0.1 * (g[n] + c[n] - controls[k][n]) for n in y}
                private = {n: private[n] - 0.1 * g[n] for n in private}
                steps += 1
            new = {n: controls[k][n] - c[n] + (x[n] - y[n]) / (steps * 0.1) for n in y}
            found.append(y)
            changes.append({n: new[n] - controls[k][n] for n in new})
            controls[k], own[k] = new, private
        x = mean(found, [1.0] * len(cohort))
        c = {n: c[n] + sum(change[n] for change in changes) / 4 for n in c}
    finish = go64((Phase("train", 3, Scaffold(method), ROTA),))
    assert farthest(finish.state.shared["shared"], x) < 1e-10
    assert farthest(finish.state.shared["control"], c) < 1e-10
    for k in range(4):
        assert farthest(finish.clients[k]["control"], controls[k]) < 1e-10
        assert farthest(narrowed(finish.clients[k]["private"], len(anchors[k])), own[k]) < 1e-10


def test_what_is_deployed_is_new_encoder_own_decoder_and_anchors_encoded_anew(go64):
    finish = go64(methods.fable(rounds=2, training=TRAINING, anchors=5))
    encoder, losses = finish.state.shared["shared"], []
    for k, parts in enumerate(toy.population().parts):
        row, test = finish.clients[k], parts.test.all_rows()
        loss = oracle_loss(unit(features(encoder, row["anchors"]["x"])))
        losses.append(float(loss({**encoder, **row["private"]}, test["x"].double(), test["y"])))
    assert finish.summary["results"]["personal"]["loss"]["last"] == pytest.approx(sum(losses) / 4, abs=1e-12)
    assert "global" not in finish.summary["results"]  # without a decoder the server can't predict


# --- identities --------------------------------------------------------------------------------------------------------


def random_parts(m=5, d=4, classes=3, count=6):
    g = torch.Generator().manual_seed(7)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    private = {H: normal(classes, m), BIAS: normal(classes), W: normal(m, m)}
    embedded = {"anchors": unit(normal(m, d)), "real": torch.ones(m, dtype=torch.float64)}
    return private, embedded, normal(count, d), torch.arange(count) % classes


def test_t1_logits_are_linear_in_the_normalised_feature():
    private, embedded, z, _ = random_parts()
    M = private[H] @ private[W] @ embedded["anchors"]
    assert (decode(private, z, embedded) - (unit(z) @ M.T + private[BIAS])).abs().max() < 1e-12


def test_t2_the_gradient_at_the_feature_is_orthogonal_to_it():
    """v = (1/||z||) (I - zh zh^T) M^T (p - y), so v . z = 0 for every sample."""
    private, embedded, z, y = random_parts()
    leaf = z.clone().requires_grad_()
    (v,) = torch.autograd.grad(cross_entropy(decode(private, leaf, embedded), y) * len(y), leaf)
    M = private[H] @ private[W] @ embedded["anchors"]
    for i in range(len(y)):
        zh, length = z[i] / z[i].norm(), z[i].norm()
        p = torch.softmax(M @ zh + private[BIAS], 0) - torch.nn.functional.one_hot(y[i], 3)
        expected = (torch.eye(4) - torch.outer(zh, zh)) @ M.T @ p / length
        assert (v[i] - expected).abs().max() < 1e-12
        assert abs(float(v[i] @ z[i])) < 1e-5 * float(v[i].norm() * length)


def test_t3_no_gradient_reaches_the_anchors_and_they_stand_still_within_a_round():
    """The run by hand: one Sweep over the anchors, then one Train in which their embeddings are a constant."""
    method, site = Fable(training=TRAINING, anchors=5, buffers="average"), site_of(0, net=norm_net)
    row, down = method.client_row(site), Message({"shared": start_of(site, method), "buffers": site.net.buffers})
    run = method.client(row, down, site)
    ask = next(run)
    assert isinstance(ask, Sweep) and ask.streams["local"] is row["anchors"]
    ask = run.send(answer(ask, Context(site.net, site.round, site.key)))
    assert isinstance(ask, Train) and set(ask.params) == {"shared", "private"}
    before = {name: value.clone() for name, value in ask.refs["embedded"].items()}
    assert not any(value.requires_grad for value in before.values())
    answer(ask, Context(site.net, site.round, site.key))
    assert all(torch.equal(value, before[name]) for name, value in ask.refs["embedded"].items())
    module = site.net.bind(site.net.params, site.net.buffers)  # in evaluation mode (FB-D5)
    assert (before["anchors"] - unit(module.encoder(row["anchors"]["x"])).detach()).abs().max() < 1e-12


def start_of(site, method):
    return method.first_shared(site.net, site.key)


def test_t5_anchors_are_fixed_own_training_samples(go64):
    one, three = (go64(methods.fable(rounds=rounds, training=PLAIN, anchors=5)) for rounds in (1, 3))
    for k, parts in enumerate(toy.population().parts):
        anchors = three.clients[k]["anchors"]["x"]
        assert set(three.clients[k]["anchors"]) == {"x"} and torch.equal(anchors, one.clients[k]["anchors"]["x"])
        own, elsewhere = parts.train.all_rows()["x"].double(), torch.cat([parts.test.all_rows()["x"], parts.validation.all_rows()["x"]])
        places = [(own == anchor).all(1).nonzero().flatten().tolist() for anchor in anchors]
        assert all(len(place) == 1 for place in places) and len({place[0] for place in places}) == 5
        assert not any((elsewhere.double() == anchor).all(1).any() for anchor in anchors)


def test_t6_the_encoders_scale_does_not_matter():
    private, embedded, z, _ = random_parts()
    assert (decode(private, 3.7 * z, embedded) - decode(private, z, embedded)).abs().max() < 1e-12
    assert (normalised(0.01 * z) - normalised(z)).abs().max() < 1e-12
    assert torch.equal(normalised(torch.zeros(2, 3)), torch.zeros(2, 3))  # a dead feature stays 0


def test_t7_w_starts_as_the_identity():
    with_w, without = Fable(anchors=5).client_row(site_of(1)), Fable(anchors=5, linear=False).client_row(site_of(1))
    assert torch.equal(with_w["private"][W], torch.eye(5, dtype=torch.float64)) and W not in without["private"]
    _, embedded, z, _ = random_parts()
    assert torch.equal(decode(with_w["private"], z, embedded), decode(without["private"], z, embedded))


def test_t8_anchors_and_columns_belong_together(go64):
    private, embedded, z, _ = random_parts()
    order = torch.tensor([3, 0, 4, 1, 2])
    shuffled = {**embedded, "anchors": embedded["anchors"][order]}
    moved = {**private, W: private[W][:, order]}
    assert (decode(moved, z, shuffled) - decode(private, z, embedded)).abs().max() < 1e-12
    plain, moved = ({H: h, BIAS: private[BIAS]} for h in (private[H], private[H][:, order]))
    assert (decode(moved, z, shuffled) - decode(plain, z, embedded)).abs().max() < 1e-12


def test_t8_the_wrong_order_of_anchors_destroys_a_trained_model(go64):
    finish = go64(methods.fable(rounds=30, training=TRAINING, anchors=9), eval_every=30, checkpoint_every=30)
    encoder, right, wrong, total = finish.state.shared["shared"], 0, 0, 0
    for k, (x, y) in enumerate(clients_of(toy.population())):
        private, anchors = finish.clients[k]["private"], unit(features(encoder, finish.clients[k]["anchors"]["x"]))
        r = unit(features(encoder, x))
        for order, correct in ((torch.arange(9), "right"), (torch.arange(8, -1, -1), "wrong")):
            hits = int(((r @ anchors[order].T @ private[W].T @ private[H].T + private[BIAS]).argmax(1) == y).sum())
            right, wrong = (right + hits, wrong) if correct == "right" else (right, wrong + hits)
        total += len(y)
    assert right / total > 0.8 and wrong / total < right / total - 0.2


def test_t9_a_free_cotangent_is_recovered_exactly_where_the_input_is_right():
    """The encoder's gradient of one sample is J_g(x)^T v: linear in v, so least squares over v finds FABLE's own v, and v . z = 0."""
    private, embedded, _, _ = random_parts(m=5, d=5)
    g = torch.Generator().manual_seed(11)
    encoder = {n: torch.randn(v.shape, generator=g, dtype=torch.float64) for n, v in weights_of(toy.net()).items() if n in (W1, B1)}
    x, y = torch.randn(1, toy.FEATURES, generator=g, dtype=torch.float64), torch.tensor([1])
    private = {**private, H: torch.randn(3, 5, generator=g, dtype=torch.float64)}
    leaves = {n: v.clone().requires_grad_() for n, v in encoder.items()}
    z = features(leaves, x)
    value = cross_entropy(decode(private, z, embedded), y)
    (v,) = torch.autograd.grad(value, z, retain_graph=True)
    seen = torch.cat([grad.flatten() for grad in torch.autograd.grad(value, list(leaves.values()))])
    jacobian = torch.func.jacrev(lambda w: features(w, x)[0])(encoder)
    J = torch.cat([jacobian[n].flatten(1) for n in encoder], 1).numpy()  # d x |theta|
    found = np.linalg.lstsq(J.T, seen.numpy(), rcond=None)[0]
    assert np.linalg.norm(J.T @ found - seen.numpy()) < 1e-6
    alive = (z > 0)[0].numpy()  # a dead feature has no gradient, so nothing is known of its v
    assert alive.sum() >= 2 and np.abs(found - v[0].numpy())[alive].max() < 1e-6


def test_coordinates_are_cosines():
    z, a = torch.tensor([[3.0, 4.0]], dtype=torch.float64), torch.tensor([[1.0, 0.0], [0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64)
    assert coordinates(z, a).tolist() == [pytest.approx([0.6, 1.0, 0.0])]


def test_first_decoder_is_torchs_uniform():
    """Within +-1/sqrt(m), of variance 1/(3 m)."""
    private = Fable(anchors=64).client_row(site_of(0))["private"]
    assert private[H].abs().max() <= 1 / 8 and private[BIAS].abs().max() <= 1 / 8
    assert float(private[H].var()) == pytest.approx(1 / (3 * 64), rel=0.2)


def test_frozen_statistics_are_used_in_training_too():
    """buffers='server': what a batch looks like does not matter to its neighbours, and nothing is written."""
    method = Fable(training=TRAINING, anchors=5, buffers="server")
    site = site_of(0, net=norm_net)
    row, down = method.client_row(site), Message({"shared": start_of(site, method), "buffers": site.net.buffers})
    run = method.client(row, down, site)
    ask = run.send(answer(next(run), Context(site.net, site.round, site.key)))
    assert ask.loss == FableLoss(running_statistics=True)
    columns = {**site.data.train.rows(torch.arange(8)), "mask": torch.ones(8, dtype=torch.bool)}
    losses = [ask.loss(ask.params, ask.buffers, ask.refs, {"local": {n: v[i : i + 1] for n, v in columns.items()}}, site.net) for i in range(8)]
    whole = ask.loss(ask.params, ask.buffers, ask.refs, {"local": columns}, site.net)
    assert float(whole.value) == pytest.approx(sum(float(loss.value) for loss in losses) / 8, abs=1e-12)
    assert all(torch.equal(v, site.net.buffers[n]) for n, v in whole.buffers["buffers"].items())


def test_bad_values_are_refused_with_a_cure():
    with pytest.raises(ValueError, match=r"FABLE needs at least 1 anchor, found 0\."):
        methods.fable(rounds=1, anchors=0)
