"""FL-GAP against plain loops, and what travels and what stands still."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from cases import COMMON_CHANGES, Case, Rota, Toy
from torch import nn

from coterie.data.examples import ClientParts, Population, whole
from coterie.engine.answers import Context, answer
from coterie.engine.run import run
from coterie.engine.settings import Settings
from coterie.message import Message
from coterie.method import SGD, Adam, Hub, Named, Phase, Round, Site, Train
from coterie.methods.fedavg import Training, fedavg
from coterie.methods.fl_gap import FineTune, FlGap, Policy, Pretrain, Probe, Upload, fl_gap
from coterie.methods.fl_gap.phases import validation_score
from coterie.metrics import BinaryDetection
from coterie.models.losses import CrossEntropy
from coterie.models.net import EncoderHead, Net
from coterie.models.nets import GlobalPool
from coterie.randomness import Key
from coterie.states import ServerState

CLIENTS, SIZES = 5, (9, 7, 12, 8, 10)
SHAPE = (1, 6, 6)
GROUPS = ("conv1", "conv2", "conv3", "head")
LR, PROX = 0.1, 0.05
POLICY = Policy(open_at_start=2, open_patience=1, close_patience=1, max_open=3, eps_imp=0.02, eps_gap=0.3)
METHOD = FlGap(
    training=Training(optim=SGD(lr=LR, momentum=0.9), epochs=3, batch_size=50), probe=Probe(input_shape=SHAPE),
    policy=POLICY, lambda_prox=PROX, knn=2,
)  # fmt: skip


class Detector(nn.Module):
    """The same net as `net()`, as an ordinary module for the oracle."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.conv2, self.norm2 = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.conv3, self.norm3 = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)

    def features(self, x):
        for conv, norm in ((self.conv1, self.norm1), (self.conv2, self.norm2), (self.conv3, self.norm3)):
            x = torch.relu(norm(conv(x)))
        return x.mean((2, 3))

    def forward(self, x):
        return self.head(self.features(x))


def net():
    torch.manual_seed(3)
    made = Detector()
    layers = OrderedDict(
        conv1=nn.Sequential(made.conv1, made.norm1, nn.ReLU()),
        conv2=nn.Sequential(made.conv2, made.norm2, nn.ReLU()),
        conv3=nn.Sequential(made.conv3, made.norm3, nn.ReLU()),
        pool=GlobalPool(),
    )
    return Net(EncoderHead(nn.Sequential(layers), made.head, 4), CrossEntropy()).to("cpu", torch.float64)


def oracle_name(name):
    """encoder.conv2.1.running_mean -> norm2.running_mean"""
    _, group, layer, leaf = ("", "head", "", name.split(".")[-1]) if name.startswith("head") else name.split(".")
    return f"{group}.{leaf}" if layer in ("", "0") else f"norm{group[-1]}.{leaf}"


def examples(seed, count, shift):
    numbers = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 2
    x = torch.randn(count, *SHAPE, generator=numbers, dtype=torch.float64)
    x[:, :, shift] += 1.2 * y[:, None, None]  # fakes are bright in one row, another one for each client
    return {"x": x, "y": y}


def data(client):
    train, validation = examples(client, SIZES[client], client % 5), examples(50 + client, 4, client % 5)
    return train, validation, examples(90 + client, 6, client % 5)


def population():
    parts = [ClientParts(*map(whole, data(client))) for client in range(CLIENTS)]
    names = tuple(f"c{client}" for client in range(CLIENTS))
    return Population("rows", names, parts, num_classes=2, public={"public": whole(examples(7, 30, 0))})


def go(plan, path):
    settings = Settings(precision="fp64", backend="loop", quiet=True)
    return run(plan, population(), net=net(), metric=BinaryDetection(), out=path, settings=settings)


# --- the oracle: section 3b of the method's box as plain loops -----------------------------------------------------------


class OracleClient:
    def __init__(self):
        self.best, self.opens, self.closes, self.tried = float("inf"), 0, 0, False
        self.open, self.lock, self.scores = [2, 3], [0, 0, 0, 0], None

    def step(self, val, train, scores):
        first = self.scores is None
        self.scores = scores if first else [0.5 * old + 0.5 * new for old, new in zip(self.scores, scores, strict=True)]
        free = [place for place in range(4) if self.lock[place] == 0]
        self.lock = [max(rounds - 1, 0) for rounds in self.lock]
        better, self.best = self.best - val > 0.02, min(self.best, val)
        if better:
            self.opens = self.closes = 0
            self.tried = False
        elif val - train > 0.3 or self.tried or len(self.open) == 3:
            self.closes, self.opens = self.closes + 1, 0
            candidates = [place for place in self.open if place != 3 and place in free]
            if candidates and len(self.open) > 1:
                place = min(candidates, key=lambda p: self.scores[p])
                self.open.remove(place)
                self.lock[place], self.closes = 1, 0
        else:
            self.opens, self.closes = self.opens + 1, 0
            for _ in range(2):
                candidates = [place for place in range(4) if place not in self.open and place in free]
                if candidates and len(self.open) < 3:
                    place = max(candidates, key=lambda p: self.scores[p])
                    self.open.append(place)
                    self.lock[place], self.opens, self.tried = 1, 0, True


def group_of(name):
    return 3 if name.startswith("head") else int(name.split(".")[0][-1]) - 1


def set_mode(model, moving):
    model.train()
    for place, norm in enumerate((model.norm1, model.norm2, model.norm3)):
        norm.train(place in moving)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(group_of(name) in moving)


def oracle_train(weights, moving, rows, *, lr, prox, epochs):
    """Full-batch SGD with momentum 0.9; weights by name, statistics included."""
    model = Detector().double()
    model.load_state_dict(weights, strict=False)
    set_mode(model, moving)
    reference = {n: v.clone() for n, v in weights.items()}
    velocity = {}
    for _ in range(epochs):
        loss = F.cross_entropy(model(rows["x"]), rows["y"])
        moved = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        loss = loss + prox / 2 * sum(((p - reference[n]) ** 2).sum() for n, p in moved)
        grads = torch.autograd.grad(loss, [p for _, p in moved])
        with torch.no_grad():
            for (name, parameter), grad in zip(moved, grads, strict=True):
                velocity[name] = 0.9 * velocity.get(name, 0.0) + grad
                parameter -= lr * velocity[name]
    set_mode(model, {0, 1, 2, 3})
    model.eval()
    return model, {n: v.detach().clone() for n, v in model.state_dict().items() if "num_batches" not in n}


def oracle(cohorts, start):
    references = {}
    clients = {c: OracleClient() for c in range(CLIENTS)}
    trained_log, changed_log = [], []
    for cohort in cohorts:
        models, signatures, trained = {}, {}, {}
        for c in cohort:
            rows, validation, _ = data(c)
            trained[c] = sorted(clients[c].open)
            before = references.get(c, start)
            model, models[c] = oracle_train(before, set(trained[c]), rows, lr=LR, prox=PROX, epochs=3)
            loss = F.cross_entropy(model(validation["x"]), validation["y"])
            parameters = dict(model.named_parameters())
            grads = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
            scores = []
            for place in range(4):
                own = [g for n, g in grads.items() if group_of(n) == place]
                scores.append(float(sum((g**2).sum() for g in own)) / (32 * sum(g.numel() for g in own)))
            with torch.no_grad():
                clients[c].step(loss.item(), F.cross_entropy(model(rows["x"]), rows["y"]).item(), scores)
                signatures[c] = model.features(torch.zeros(1, *SHAPE, dtype=torch.float64))[0]
        new, changed = {}, {}
        for i in cohort:
            others = [j for j in cohort if j != i]
            near = sorted(others, key=lambda j, i=i: (float((signatures[i] - signatures[j]).norm()), j))[:2]
            new[i] = {}
            for name in start:
                used = [i, *[j for j in near if group_of(name) in trained[j]]]
                new[i][name] = sum(models[j][name] for j in used) / len(used)
            before = references.get(i, start)
            changed[i] = sorted({group_of(n) for n in start if not torch.equal(before[n], new[i][n])})
        references.update(new)
        trained_log.append(trained)
        changed_log.append(changed)
    return references, clients, trained_log, changed_log


COHORTS = ((0, 1, 2, 4), (0, 2, 3, 4), (0, 1, 3, 4), (1, 2, 3, 4), (0, 1, 2, 3, 4))


def size_of(start, places):
    return sum(v.numel() * 8 for n, v in start.items() if group_of(n) in places)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    model = net()
    start = {oracle_name(n): v for n, v in {**model.params, **model.buffers}.items()}
    plan = tuple(Phase(f"round{i}", 1, METHOD, Named(cohort)) for i, cohort in enumerate(COHORTS))
    return go(plan, tmp_path_factory.mktemp("run")), oracle(COHORTS, start), start


def test_engine_equals_the_oracle(both):
    finish, (references, clients, trained, _), _ = both
    model = net()
    assert len({tuple(t[c]) for t in trained for c in t}) >= 4  # the policy was really at work
    for c in range(CLIENTS):
        found = METHOD.reference(finish.state, c)
        for name, value in found.items():
            torch.testing.assert_close(value, references[c][oracle_name(name)], rtol=0, atol=1e-10)
        policy = finish.clients[c]["policy"]
        assert policy["unfrozen"].nonzero().flatten().tolist() == sorted(clients[c].open)
        torch.testing.assert_close(policy["scores"].tolist(), clients[c].scores, rtol=1e-8, atol=1e-12)
    weights = [SIZES[c] / sum(SIZES) for c in range(CLIENTS)]
    predictor = METHOD.global_model(finish.state, Hub(Round(5, 5, "x", 0, 1, (), CLIENTS), model, Key(0)))
    for name, value in predictor.params["shared"].items():  # (D.15)
        mean = sum(w * references[c][oracle_name(name)] for c, w in enumerate(weights))
        torch.testing.assert_close(value, mean, rtol=0, atol=1e-10)


def test_bytes_are_the_formula(both):
    finish, (_, _, trained, changed), start = both
    lines = [json.loads(line) for line in (finish.path / "wire.jsonl").read_text().splitlines()]
    last_change = {}
    for index, cohort in enumerate(COHORTS):
        up = sum(size_of(start, trained[index][c]) + 1 + 8 for c in cohort)  # groups, bitmap of 4 flags, m_i
        down = sum(size_of(start, last_change[c]) + 1 if c in last_change else size_of(start, range(4)) for c in cohort)
        for direction, expected in (("up", up), ("down", down)):
            found = [x for x in lines if x["round"] == index + 1 and x["direction"] == direction]
            assert sum(x["bytes"] for x in found) == expected, (index, direction)
            assert {x["slot"] for x in found} <= {"shared", "buffers", "open", "weight", "changed"}
        last_change |= changed[index]


def test_an_absent_client_keeps_its_reference_and_row(tmp_path):
    two = tuple(Phase(f"r{i}", 1, METHOD, Named(c)) for i, c in enumerate(((0, 1, 2, 3), (1, 2, 3))))
    short, long = go(two[:1], tmp_path / "short"), go(two, tmp_path / "long")
    for table in ("state", "clients"):
        old, new = getattr(short, table), getattr(long, table)
        old, new = (old.rows[0], new.rows[0]) if table == "state" else (old[0], new[0])
        assert old.keys() == new.keys()
        assert all(torch.equal(old[g][n], new[g][n]) for g in old for n in old[g])
    assert 4 not in long.state.rows and 4 not in long.clients


def test_all_open_and_all_near_is_fedavg_without_weights(tmp_path):
    always = Policy(open_at_start=4, max_open=4, close_patience=99)
    method = replace(METHOD, policy=always, lambda_prox=0.0, knn=CLIENTS - 1, self_weight=1 / CLIENTS)
    def same_size(client):
        return ClientParts(whole(examples(client, 8, client)), *map(whole, data(client)[1:]))

    equal = replace(population(), parts=[same_size(c) for c in range(CLIENTS)])
    finish = {
        name: run(plan, equal, net=net(), metric=BinaryDetection(), out=tmp_path / name, settings=Settings(precision="fp64"))
        for name, plan in (
            ("gap", (Phase("train", 2, method),)),
            ("avg", fedavg(rounds=2, training=METHOD.training)),
        )
    }
    average = finish["avg"].state.shared
    for client in range(CLIENTS):
        for name, value in method.reference(finish["gap"].state, client).items():
            torch.testing.assert_close(value, {**average["shared"], **average["buffers"]}[name], rtol=0, atol=1e-12)
    up = {name: f.summary["bytes"]["up"] for name, f in finish.items()}
    assert up["gap"] == up["avg"] + 2 * CLIENTS * 1  # W6: FedAvg's bytes plus the bitmap


# --- one client's round ------------------------------------------------------------------------------------------------


def site_of(client=0):
    return Site(client, Round(0, 1, "train", 0, 1, (0,), 1), ClientParts(*map(whole, data(client))), net(), Key(0))


def hub_of(model, returned=()):
    return Hub(Round(0, 1, "train", 0, 1, (0,), 1), model, Key(0), {}, returned)


def one_round(method, mine=None, down=None):
    """(row, message, the answer to Train) of client 0."""
    site = site_of()
    run_, reply, trained = method.client(mine or method.client_row(site), down or everything(), site), None, None
    while True:
        try:
            ask = run_.send(reply)
        except StopIteration as stop:
            return *stop.value, trained
        reply = answer(ask, Context(site.net, site.round, site.key))
        trained = reply if isinstance(ask, Train) else trained


def everything():
    return Message({"shared": net().params, "buffers": net().buffers})


@pytest.mark.parametrize("optim", [SGD(lr=0.1, momentum=0.9, weight_decay=0.1), Adam(lr=0.1, weight_decay=0.1)])
def test_a_frozen_group_is_bit_identical_with_its_statistics(optim):
    method = replace(METHOD, training=Training(optim=optim, epochs=3, batch_size=4))
    _, message, trained = one_round(method)
    model = net()
    for name, value in {**trained.params["shared"], **trained.buffers["buffers"]}.items():
        is_frozen = name.startswith(("encoder.conv1", "encoder.conv2"))
        assert torch.equal(value, {**model.params, **model.buffers}[name]) == is_frozen, name
    assert {n.split(".")[-3] for n in message["buffers"]} == {"conv3"}
    assert {n.rsplit(".", 2)[0].split(".")[0] for n in message["shared"]} == {"encoder", "head"}
    assert message["open"]["groups"].tolist() == [False, False, True, True]
    assert float(message.weight) == SIZES[0]
    assert set(message.groups) == {"shared", "buffers", "open"} and not message.scalars


def test_bytes_of_the_head_alone():
    """A 2048 -> 2 head of 17 groups: 4098 floats, a bitmap of 3 bytes, m_i."""
    layers = OrderedDict((f"g{i}", nn.Linear(4, 4) if i else nn.Flatten()) for i in range(16))
    layers["g16"] = nn.Linear(4, 2048)
    wide = Net(EncoderHead(nn.Sequential(layers), nn.Linear(2048, 2), 2048), CrossEntropy())
    assert len(wide.groups) == 17
    method = replace(METHOD, probe=Probe(input_shape=(4,)), policy=Policy(open_at_start=1))
    rows = {"x": torch.randn(6, 4), "y": torch.arange(6) % 2}
    site = replace(site_of(), net=wide, data=ClientParts(*[whole(rows)] * 3))
    run_, reply = method.client(method.client_row(site), Message({"shared": wide.params}), site), None
    while True:
        try:
            reply = answer(run_.send(reply), Context(wide, site.round, site.key))
        except StopIteration as stop:
            _, message = stop.value
            break
    assert sum(message.bytes_by_slot().values()) == 4098 * 4 + 3 + 8


def test_a_group_that_is_not_uploaded_stays_as_the_client_trained_it():
    method = replace(METHOD, upload=Upload(top=1))
    row, message, trained = one_round(method)
    sent = set(message["shared"])
    (left,) = {"conv3", "head"} - {n.removeprefix("encoder.").split(".")[0] for n in sent}
    held = {n for n in {**trained.params["shared"], **trained.buffers["buffers"]} if left in n}
    assert set(row["held"]) == held and row["policy"]["unfrozen"].tolist() == [False, False, True, True]
    nothing = Message({"changed": {"groups": torch.zeros(4, dtype=torch.bool)}})
    predictor = method.personal(row, nothing, site_of())
    for name in sent | held & set(net().params):
        expected = trained.params["shared"] if name in held else net().params
        assert torch.equal(predictor.params["shared"][name], expected[name])
    overruled = method.personal(row, everything(), site_of())  # the server sent that group: it counts
    assert all(torch.equal(overruled.params["shared"][n], net().params[n]) for n in net().params)


def test_a_held_group_that_the_server_replaced_stays_replaced_while_tuning():
    row, _, _ = one_round(replace(METHOD, upload=Upload(top=1)))
    assert row["held"]
    tune = FineTune(METHOD, Training(optim=SGD(lr=1e4), epochs=1))  # ruins the model: what came down is deployed
    row, _, _ = one_round(tune, row, everything())
    deployed = tune.personal(row, Message({"changed": {"groups": torch.zeros(4, dtype=torch.bool)}}), site_of())
    assert all(torch.equal(deployed.params["shared"][n], net().params[n]) for n in net().params)


def test_clipping_at_the_server():
    model = net()
    hub = hub_of(model)
    names = [n for n in model.params if n.startswith("head")]
    still = {n: model.params[n] for n in names}
    far = {n: value + 3.0 for n, value in still.items()}
    flags = {"groups": torch.tensor([False, False, False, True])}
    each = {0: Message({"shared": far, "open": flags}), 1: Message({"shared": still, "open": flags})}
    state = ServerState(METHOD.server_state(hub))
    clipped = replace(METHOD, clip=2.0, knn=1).absorb(state, None, each, hub)
    step = 3.0 * 2.0 / (3.0 * 10**0.5)  # ten numbers moved by 3, scaled to norm 2
    for name in names:
        expected = model.params[name] + step / 2  # half of it, because the neighbour did not move
        torch.testing.assert_close(clipped.rows[0]["model"][name], expected)
        torch.testing.assert_close(clipped.rows[1]["model"][name], expected)
    assert set(clipped.rows[0]["model"]) == set(names)
    assert clipped.rows[0]["link"]["neighbours"].tolist() == [1]


# --- the other phases -----------------------------------------------------------------------------------------------------


def test_personal_phase_moves_frozen_groups_and_head_and_sends_nothing(tmp_path):
    plan = fl_gap(
        rounds=2, input_shape=SHAPE, training=METHOD.training, policy=POLICY, knn=2, pretrain_rounds=2, personal_rounds=2
    )
    assert [phase.name for phase in plan] == ["pretrain", "train", "personal"]
    assert plan[2].method.training.optim.lr == pytest.approx(LR / 10)
    finish = go(plan, tmp_path / "all")
    before = go(plan[:2], tmp_path / "train")
    lines = [json.loads(line) for line in (finish.path / "wire.jsonl").read_text().splitlines()]
    assert not [x for x in lines if x["phase"] == "pretrain"]
    assert not [x for x in lines if x["phase"] == "personal" and x["direction"] == "up"]
    second = [x for x in lines if x["round"] == 6 and x["slot"] != "changed"]
    assert not second  # after the last changes nothing is sent again but the empty bitmap
    for client in range(CLIENTS):
        reference = METHOD.reference(before.state, client)
        row = finish.clients[client]
        assert all(torch.equal(row["reference"][n], reference[n]) for n in reference)
        unfrozen = row["policy"]["unfrozen"].tolist()
        moved = {group_of(oracle_name(n)) for n, v in row["tuned"].items() if not torch.equal(v, reference[n])}
        assert moved == {place for place in range(4) if not unfrozen[place] or place == 3}
    assert before.state.shared["shared"].keys() == net().params.keys()


def test_pretraining_equals_plain_sgd(tmp_path):
    training = Training(optim=SGD(lr=LR, momentum=0.9), epochs=3, batch_size=50)
    finish = go(fl_gap(rounds=1, input_shape=SHAPE, training=training, pretrain_rounds=1, personal_rounds=0), tmp_path)
    start = {oracle_name(n): v for n, v in {**net().params, **net().buffers}.items()}
    _, expected = oracle_train(start, {0, 1, 2, 3}, examples(7, 30, 0), lr=LR, prox=0.0, epochs=3)
    for name, value in {**finish.state.shared["shared"], **finish.state.shared["buffers"]}.items():
        torch.testing.assert_close(value, expected[oracle_name(name)], rtol=0, atol=1e-10)


def test_what_is_deployed_is_best_on_validation():
    y = torch.tensor([0, 0, 1, 1])
    ordered = torch.tensor([[0.0, -2.0], [0.0, -1.0], [0.0, 1.0], [0.0, 2.0]])
    swapped = ordered[[0, 2, 1, 3]]  # three of four pairs in order
    assert validation_score(ordered, y)[0] == 1.0 and validation_score(swapped, y)[0] == 0.75
    assert tuple(validation_score(ordered, y).tolist()) > tuple(validation_score(ordered / 10, y).tolist())  # tie: loss
    assert validation_score(ordered, torch.ones(4, dtype=torch.int64))[0] == 0.5
    tune = FineTune(METHOD, Training(optim=SGD(lr=1e4), epochs=1))  # ruins the model
    row, _, _ = one_round(METHOD)
    row, message, _ = one_round(tune, row)
    assert not message.groups and message.weight is None
    best = tune.personal(row, everything(), site_of())
    assert all(torch.equal(best.params["shared"][n], net().params[n]) for n in net().params)


def test_bad_input():
    with pytest.raises(ValueError, match=r"score must be mu_val or s, found 'fisher'"):
        replace(METHOD, score="fisher")
    with pytest.raises(ValueError, match=r"knn must be at least 1, found 0"):
        replace(METHOD, knn=0)
    with pytest.raises(ValueError, match=r"clip must be a norm greater than 0, 'median' or None, found -1"):
        replace(METHOD, clip=-1)
    with pytest.raises(ValueError, match=r"self_weight must be at least 0, found -0.5"):
        replace(METHOD, self_weight=-0.5)
    with pytest.raises(ValueError, match=r"needs the server's set 'public', found \[\]. Give public data"):
        Pretrain().server_state(hub_of(net()))
    bare = Net(EncoderHead(nn.Linear(4, 3), nn.Linear(3, 2), 3), CrossEntropy())
    with pytest.raises(ValueError, match=r"but this net has 1\. Use a net whose encoder has named children"):
        METHOD.slots(hub_of(bare))


# --- the shared checks ---------------------------------------------------------------------------------------------------


def single(column):
    return column.float() if column.is_floating_point() else column


def formulas(f):
    """Section 2.1 of spec/wire.md: flags say which groups cross; a newcomer gets b (P + B), a full uploader everything."""
    model, found = net(), {}
    for t, direction, message in f.crossed:
        if not message.groups:
            continue  # fine-tuning sends nothing
        flags = {"up": "open", "down": "changed"}[direction]
        if flags in message.groups:
            places = [place for place, crosses in enumerate(message[flags]["groups"].tolist()) if crosses]
            sizes = {flags: 1, "weight": 8 if direction == "up" else 0}  # 4 flags in one byte, m_i
        else:
            places, sizes = range(4), {}
            assert direction == "down", "an upload without its flags"
        for slot, tensors in (("shared", model.params), ("buffers", model.buffers)):
            sizes[slot] = f.b * sum(v.numel() for n, v in tensors.items() if group_of(oracle_name(n)) in places)
        for slot, size in sizes.items():
            if size:
                total, clients = found.get((t, direction, slot), (0, 0))
                found[t, direction, slot] = total + size, clients + 1
    return [(*where, *amount) for where, amount in found.items()]


STALLED = {"policy.open_at_start": 1, "policy.max_open": 4, "policy.eps_imp": 100.0, "policy.eps_gap": 100.0}  # opens at once
CASES = {
    "fl_gap": Case(
        changes={
            **COMMON_CHANGES,
            "input_shape": "the shape of one example, nothing to choose",
            "score": ("s", {}), "score_memory": (0.0, {}), "lambda_prox": (1.0, {}), "knn": (1, {}), "metric": ("cosine", {"knn": 1, "probe_std": 1.0}),
            "self_weight": (0.9, {}), "clip": (0.01, {}), "probe_value": (1.0, {}), "probe_std": (1.0, {}), "probe_dim": (2, {}),
            "pretrain_rounds": (2, {}), "personal_rounds": (2, {}),
            "pretraining": (Training(optim=SGD(lr=0.01)), {}), "personal_training": (Training(optim=SGD(lr=0.2)), {}),
            "policy.rule": ("literal", {}), "policy.eps_imp": (-100.0, {}), "policy.eps_gap": (-1.0, {}), "policy.open_patience": (3, {}),
            "policy.close_patience": (2, {}), "policy.open_at_start": (1, {}), "policy.max_open": (2, {}),
            "policy.max_open_per_round": (1, STALLED),
            "upload.top": (1, {}), "upload.max_bytes": (200, {}), "upload.rank": ("mu", {"upload.top": 1}),
            "upload.select": ("greedy", {"upload.max_bytes": 1000}),
        },
        knobs={
            "input_shape": SHAPE, "policy": POLICY, "lambda_prox": PROX, "knn": 2, "cohort": Rota(COHORTS[:3]),
            "pretrain_rounds": 1, "personal_rounds": 1,
        },
        secret=("policy", "best_score"), told=("reference", "held", "tuned", "best"),  # tuned: a dead filter stays as it came
        toy=Toy(net, lambda: population().moved(single), BinaryDetection()), wire=formulas,
    )
}  # fmt: skip
