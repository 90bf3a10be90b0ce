"""FABLE's options against plain loops, and every one of them on every backend."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import test_every_ask
import torch
import toy
from by_hand import B1, W1, batches, farthest, features, generator, gradient, mean
from cases import ROTA, Case, Toy, case_of, clients_of, norm_net, weights_of
from play import Play, assert_same, record
from test_every_method import assert_nearly_same
from test_fable import H, W, doubled, first_rows, narrowed, oracle_loss, unit

from coterie import methods
from coterie.data.examples import ClientParts, Population, View
from coterie.engine.recording import track as tracks
from coterie.method import SGD, AllBut, Everyone, Fixed, Named, Nobody, Phase, Poisson
from coterie.methods.fable import Fable, FableLoss, Join
from coterie.methods.fedavg import Training
from coterie.methods.scaffold import Scaffold
from coterie.models.losses import CrossEntropy
from coterie.models.net import Net
from coterie.randomness import Key

ENCODER = (W1, B1)
TRAINING = Training(optim=SGD(lr=0.1, momentum=0.9, weight_decay=0.01), epochs=2, batch_size=8)
OPTIONS = {
    "epoch": {"refresh": "epoch", "training": replace(TRAINING, epochs=2)},
    "steps": {"refresh": "epoch", "training": replace(TRAINING, epochs=None, steps=5)},
    "step": {"refresh": "step"},
    "init": {"refresh": "init"},
    "fps": {"selection": "fps"},
    "kmeans": {"selection": "kmeans", "linear": False},
    "exclude": {"exclude_anchors": True},
    "momentum": {"private_optim": SGD(lr=0.05, momentum=0.9)},
    "joining": {"joining": (3,), "cohort": Everyone(), "rounds": 2},
    "local joining": {"joining": (1, 3), "cohort": Everyone(), "rounds": 2, "buffers": "local", "joining_rounds": 2},
}


# --- against plain loops ---------------------------------------------------------------------------------------------------


def chosen_rows(ask_counts, t, k, total, size, epochs):
    """Batches when every epoch is a training of its own: the shuffle is keyed by how many there were before."""
    for ordinal in range(ask_counts if ask_counts else 1):
        for epoch in range(1 if ask_counts else epochs):
            order = torch.from_numpy(generator(0, "round", t, "client", k, "train", ordinal, "order", "local", epoch).permutation(total))
            for start in range(0, total, size):
                yield ordinal, order[start : start + size]


def still(w, raw):
    return unit(features({n: w[n].detach() for n in ENCODER}, raw))


@pytest.mark.parametrize("refresh", ["epoch", "step", "init"])
@pytest.mark.parametrize("m", [5, 12])
def test_refresh_equals_plain_loops(m, refresh, go64):
    """Anchors are encoded at the start of each epoch, in each step, or once by the run's first encoder."""
    method = Fable(training=TRAINING, anchors=m, refresh=refresh)
    rows, clients = first_rows(method), clients_of(toy.population())
    raw = [row["anchors"]["x"] for row in rows]
    own = [narrowed(row["private"], len(a)) for row, a in zip(rows, raw, strict=True)]
    first = w = {name: weights_of(toy.net())[name] for name in ENCODER}
    for t, cohort in enumerate(ROTA.rounds):
        found = []
        for k in cohort:
            x, y = clients[k]
            v, velocity, seen = {**w, **own[k]}, {}, -1
            for epoch, rows_now in chosen_rows(2 if refresh == "epoch" else 0, t, k, len(y), 8, 2):
                if refresh == "step" or epoch != seen:
                    embedded, seen = still(first if refresh == "init" else v, raw[k]), epoch
                g = gradient(oracle_loss(embedded), v, x[rows_now], y[rows_now])
                for n in g:
                    velocity[n] = 0.9 * velocity.get(n, 0.0) + g[n] + 0.01 * v[n]
                    v[n] = v[n] - 0.1 * velocity[n]
            own[k] = {name: v.pop(name) for name in own[k]}
            found.append(v)
        w = mean(found, [len(clients[k][1]) for k in cohort])
    finish = go64((Phase("train", 3, method, ROTA),))
    assert farthest(finish.state.shared["shared"], w) < 1e-10
    for k, private in enumerate(own):
        assert farthest(narrowed(finish.clients[k]["private"], len(raw[k])), private) < 1e-10


def test_excluded_anchors_are_trained_on_by_nobody_and_count_for_nothing(go64):
    """Client 2 has 9 samples: at most half of them, 4, become anchors. n_k is what is left."""
    method = Fable(training=replace(TRAINING, epochs=1), anchors=5, exclude_anchors=True)
    rows, w = first_rows(method), {name: weights_of(toy.net())[name] for name in ENCODER}
    found, counts, own = [], [], []
    for k, ((x, y), row) in enumerate(zip(clients_of(toy.population()), rows, strict=True)):
        raw = row["anchors"]["x"]
        left = torch.tensor([i for i in range(len(y)) if not any(bool((x[i] == a).all()) for a in raw)])
        assert len(raw) == (4 if k == 2 else 5) and len(left) == len(y) - len(raw)
        loss, v, velocity = oracle_loss(still(w, raw)), {**w, **narrowed(row["private"], len(raw))}, {}
        for chosen in batches(0, k, len(left), 8, epochs=1):
            g = gradient(loss, v, x[left[chosen]], y[left[chosen]])
            for n in g:
                velocity[n] = 0.9 * velocity.get(n, 0.0) + g[n] + 0.01 * v[n]
                v[n] = v[n] - 0.1 * velocity[n]
        own.append({n: v.pop(n) for n in list(v) if n not in ENCODER})
        found.append(v)
        counts.append(len(left))
    finish = go64((Phase("train", 1, method),))
    assert farthest(finish.state.shared["shared"], mean(found, counts)) < 1e-10
    for k, private in enumerate(own):
        assert farthest(narrowed(finish.clients[k]["private"], len(rows[k]["anchors"]["x"])), private) < 1e-10


def test_scaffold_with_momentum_for_what_is_private_equals_plain_loops(go64):
    """Spec 3b: plain corrected SGD on the encoder, momentum 0.9 on h and W, no weights; refreshed each epoch."""
    training = Training(optim=SGD(lr=0.1), epochs=2, batch_size=8)
    method = Fable(training=training, anchors=5, refresh="epoch", private_optim=SGD(lr=0.05, momentum=0.9))
    rows, clients = first_rows(method), clients_of(toy.population())
    raw, own = [row["anchors"]["x"] for row in rows], [dict(row["private"]) for row in rows]
    x = {name: weights_of(toy.net())[name] for name in ENCODER}
    c = {name: torch.zeros_like(value) for name, value in x.items()}
    controls = [c] * 4
    for t in range(2):
        found, changes = [], []
        for k in range(4):
            data, labels = clients[k]
            y, private, velocity, steps, seen = dict(x), own[k], {}, 0, -1
            for epoch, chosen in chosen_rows(2, t, k, len(labels), 8, 2):
                if epoch != seen:
                    loss, seen = oracle_loss(still(y, raw[k])), epoch
                g = gradient(loss, {**y, **private}, data[chosen], labels[chosen])
                y = {n: y[n] - 0.1 * (g[n] + c[n] - controls[k][n]) for n in y}
                velocity = {n: 0.9 * velocity.get(n, 0.0) + g[n] for n in private}
                private = {n: private[n] - 0.05 * velocity[n] for n in private}
                steps += 1
            new = {n: controls[k][n] - c[n] + (x[n] - y[n]) / (steps * 0.1) for n in y}
            changes.append({n: new[n] - controls[k][n] for n in new})
            found.append(y)
            controls[k], own[k] = new, private
        x = mean(found, [1.0] * 4)
        c = {n: c[n] + sum(change[n] for change in changes) / 4 for n in c}
    finish = go64((Phase("train", 2, Scaffold(method)),))
    assert farthest(finish.state.shared["shared"], x) < 1e-10 and farthest(finish.state.shared["control"], c) < 1e-10
    for k in range(4):
        assert farthest(finish.clients[k]["private"], own[k]) < 1e-10


def test_a_step_encodes_anchors_in_evaluation_mode_without_gradient():
    """With batch norm: the running statistics of the moment, and autograd sees constants."""
    net, g = norm_net().to("cpu", torch.float64), torch.Generator().manual_seed(0)
    anchors = {"x": torch.randn(4, toy.FEATURES, generator=g, dtype=torch.float64), "real": torch.tensor([1.0, 1, 1, 0]).double()}
    columns = {"x": torch.randn(6, toy.FEATURES, generator=g, dtype=torch.float64), "y": torch.arange(6) % 3, "mask": torch.ones(6) > 0}
    buffers = {n: v + 0.3 for n, v in net.buffers.items()}
    private = {H: torch.randn(3, 4, generator=g, dtype=torch.float64), "decoder.bias": torch.zeros(3).double()}
    encoder = {n: net.params[n] for n in net.encoder_names}
    with torch.no_grad():
        z, _ = net.encode(encoder, buffers, {"x": anchors["x"]}, train=False)
        embedded = {"anchors": unit(z) * anchors["real"][:, None], "real": anchors["real"]}
    grads = []
    for loss, refs in ((FableLoss(every_step=True), {"anchors": anchors}), (FableLoss(), {"embedded": embedded})):
        leaves = {n: v.clone().requires_grad_() for n, v in encoder.items()}
        value = loss({"shared": leaves, "private": private}, {"buffers": buffers}, refs, {"local": columns}, net).value
        grads.append(dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True)))
    assert farthest(grads[0], grads[1]) < 1e-12


# --- new clients -----------------------------------------------------------------------------------------------------------


def test_new_clients_fit_what_is_private_to_a_finished_encoder(go64):
    """The encoder ends as it would without them; their h and W are plain SGD on a constant encoder."""
    training = replace(TRAINING, epochs=2)
    plan = methods.fable(rounds=2, training=training, anchors=5, joining=(1, 3), joining_rounds=2)
    finish = go64(plan)
    without = go64((Phase("train", 2, Fable(training=training, anchors=5), Named((0, 2))),))
    assert all(torch.equal(v, finish.state.shared["shared"][n]) for n, v in without.state.shared["shared"].items())
    assert [phase.cohort.draw(4, Key(0)) for phase in plan] == [(0, 2), (1, 3)]
    rows, w = first_rows(Fable(training=training, anchors=5)), finish.state.shared["shared"]
    for k in (1, 3):
        (x, y), raw, private = clients_of(toy.population())[k], rows[k]["anchors"]["x"], dict(rows[k]["private"])
        loss = oracle_loss(still(w, raw))
        for t in (2, 3):
            velocity = {}
            for e in range(2):
                order = torch.from_numpy(generator(0, "round", t, "client", k, "join", 0, "order", "local", e).permutation(len(y)))
                for chosen in order.split(8):
                    g = gradient(loss, {**w, **private}, x[chosen], y[chosen], tuple(private))
                    for n in g:
                        velocity[n] = 0.9 * velocity.get(n, 0.0) + g[n] + 0.01 * private[n]
                        private[n] = private[n] - 0.1 * velocity[n]
        assert farthest(finish.clients[k]["private"], private) < 1e-10
    assert not [line for line in (finish.path / "wire.jsonl").read_text().splitlines() if '"join"' in line and '"up"' in line]


def test_with_a_trained_encoder_new_clients_take_part_from_then_on(go64):
    first, second = methods.fable(rounds=2, cohort=Everyone(), joining=(3,), joining_rounds=1, joining_encoder="trained")
    assert (first.cohort.draw(4, Key(0)), second.cohort.draw(4, Key(0))) == ((0, 1, 2), (0, 1, 2, 3)) and first.method == second.method
    finish = go64((first, second))
    before = go64((first,))
    assert any(not torch.equal(v, finish.state.shared["shared"][n]) for n, v in before.state.shared["shared"].items())


def test_new_clients_gather_batch_statistics_of_their_own(go64):
    finish = go64(methods.fable(rounds=1, training=TRAINING, anchors=5, joining=(3,), joining_rounds=3), Toy(net=norm_net))
    moved, still_there = finish.clients[3]["buffers"], norm_net().buffers
    assert all(not torch.allclose(v.float(), still_there[n]) for n, v in moved.items())


@pytest.mark.parametrize("cohort", [Everyone(), Fixed(2), Poisson(0.5), Named((0, 1)), Nobody()])
def test_all_but_some_draws_among_the_others(cohort):
    for seed in range(20):
        drawn = AllBut((1, 3), cohort).draw(6, Key(seed))
        assert not {1, 3} & set(drawn) and list(drawn) == sorted(set(drawn)) and set(drawn) <= set(range(6))
        assert [(0, 2, 4, 5).index(c) for c in drawn] == list(cohort.draw(4, Key(seed)))


def test_all_but_everybody_is_refused():
    with pytest.raises(ValueError, match=r"All 2 clients are left out of a cohort"):
        AllBut((0, 1)).draw(2, Key(0))
    with pytest.raises(ValueError, match=r"Clients \[7\] do not exist"):
        AllBut((7,)).draw(2, Key(0))


# --- every option on every backend ---------------------------------------------------------------------------------------------


def case_with(option: str) -> Case:
    knobs = dict(OPTIONS[option])
    case = case_of("fable")
    return replace(case, rounds=knobs.pop("rounds", 3), knobs={**case.knobs, "anchors": 11, "training": replace(TRAINING, epochs=1), **knobs})


@pytest.fixture(scope="module", params=sorted(OPTIONS))
def option_play(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Play]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    case = case_with(request.param)
    play = record(case, "fable", tmp_path_factory.mktemp("option") / "run")
    torch.set_num_threads(before)
    return case, play


def replay(case: Case, out: Path, **settings: object) -> object:
    return case.toy.run(case.plan("fable"), out, precision="fp64", **settings)


def test_options_do_not_depend_on_order_or_backend(
    option_play: tuple[Case, Play], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, play = option_play
    monkeypatch.setattr(tracks, "PAYS_AFTER", 1)
    assert_same(play.finish, replay(case, tmp_path / "reversed", order="reversed"))
    assert_nearly_same(play.finish, replay(case, tmp_path / "stacked", backend="stacked", width=3))
    assert_nearly_same(play.finish, replay(case, tmp_path / "graph", backend="graph"))


def test_options_can_be_stacked_and_recorded(option_play: tuple[Case, Play]) -> None:
    _, play = option_play
    given: Callable[[str], Play] = lambda name: play  # noqa: E731
    test_every_ask.test_two_clients_at_once_equal_one_at_a_time("fable", given)
    test_every_ask.test_every_step_stays_on_its_device("fable", given)


def test_options_send_the_encoder_and_nothing_else(option_play: tuple[Case, Play]) -> None:
    """FB-T4: names and shapes of the encoder, nothing with a size of m, and no number of anything secret."""
    case, play = option_play
    net = case.toy.net()
    for way, message in play.crossed:
        if way != "up" or not message.groups:
            continue
        names = {n: tuple(v.shape) for n, v in message["shared"].items()}
        assert names == {n: tuple(net.params[n].shape) for n in net.encoder_names}
        assert set(message.groups) <= {"shared", "buffers"}
        assert not any(11 in v.shape for tensors in message.groups.values() for v in tensors.values())
    crossed = {x for _, m in play.crossed for t in m.groups.values() for v in t.values() for x in v.double().flatten().tolist()}
    secret = [v for row in play.rows for g in case.secret for v in row.get(g, {}).values() if v.is_floating_point()]
    kept = {x for v in secret for x in v.double().flatten().tolist() if x != round(x)}
    assert kept and not crossed & kept


def test_a_pool_gives_the_loops_numbers(tmp_path: Path) -> None:
    """One plan of several options, so that only one pool must start."""
    own = {"training": TRAINING, "anchors": 11}
    last = Fable(**own, refresh="init", buffers="average")
    plan = (
        Phase("epoch", 1, Fable(**own, refresh="epoch", selection="kmeans"), ROTA),
        Phase("step", 1, Fable(**own, refresh="step", exclude_anchors=True, private_optim=SGD(lr=0.05)), AllBut((2,))),
        Phase("init", 1, last, AllBut((2,))),
        Phase("join", 1, Join(last), Named((2,))),
    )
    world = Toy(net=norm_net)
    loop = world.run(plan, tmp_path / "loop", precision="fp64")
    assert_same(loop, world.run(plan, tmp_path / "pool", precision="fp64", backend="pool", workers=2))


# --- bad input -------------------------------------------------------------------------------------------------------------


def test_a_net_without_a_head_is_refused(go64):
    bare = Toy(net=lambda: Net(torch.nn.Linear(toy.FEATURES, toy.CLASSES), CrossEntropy()))
    with pytest.raises(ValueError, match=r"this net has no encoder and head\. Build it as coterie\.models\.EncoderHead"):
        go64(methods.fable(rounds=1), bare)


def test_a_client_of_one_class_trains_like_any_other(go64):
    """Nothing divides by a spread of labels: finite numbers, and its own class is learned."""
    whole = toy.population()
    first = whole.parts[0].train
    columns = {**first.columns, "y": first.columns["y"].clone()}
    columns["y"][first.index] = 2
    same = View({n: v.clone() for n, v in columns.items()}, first.index)
    parts = [ClientParts(same, same, same), *whole.parts[1:]]
    lonely = Population("toy", whole.names, parts, num_classes=toy.CLASSES)
    finish = go64(methods.fable(rounds=5, training=TRAINING, anchors=6), Toy(population=lambda: lonely))
    assert all(torch.isfinite(v).all() for v in finish.clients[0]["private"].values())
    rows = [line.split(",") for line in (finish.path / "clients.csv").read_text().splitlines()]
    accuracy = rows[0].index("accuracy")
    found = [row for row in rows[1:] if row[rows[0].index("client")] == "0" and row[rows[0].index("split")] == "test"]
    assert float([row for row in found if row[rows[0].index("model")] == "personal"][-1][accuracy]) == 1.0


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"selection": "best"}, r"selection must be one of random, fps, kmeans, found 'best'"),
        ({"refresh": "never"}, r"refresh must be one of round, epoch, step, init, found 'never'"),
        ({"fill": "zeros"}, r"fill must be one of fewer, augment, found 'zeros'"),
        ({"joining": (1,), "joining_encoder": "moved"}, r"joining_encoder must be frozen or trained, found 'moved'"),
        ({"refresh": "epoch", "training": Training(optim=SGD(lr=0.1, schedule="cosine_step"))}, r"'cosine_step' would begin anew in each"),
    ],
)
def test_bad_values_are_refused_with_a_cure(knobs, message):
    with pytest.raises(ValueError, match=message):
        methods.fable(rounds=1, **knobs)


def test_one_sample_cant_be_excluded_and_trained_on():
    tiny = toy.population((1, 20)).moved(doubled).parts[0]
    from test_fable import site_of

    site = replace(site_of(0), data=tiny)
    with pytest.raises(ValueError, match=r"Client 0 has 1 training sample, which can't be an anchor and left to train on"):
        Fable(exclude_anchors=True).client_row(site)
    assert W in Fable(anchors=3).client_row(site)["private"]
