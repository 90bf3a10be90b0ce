"""Who poisoned a run and how, what they gained, and how updates were reduced."""

from __future__ import annotations

from coterie.report import markup
from coterie.report.records import Record, as_number, knob_words, number, numbers, record, strings, text
from coterie.report.run import Run
from coterie.report.wording import count, metric_name, show

_WHO = ("share", "clients", "from_round", "seed")  # fields that say who and when; the rest says how


def attack_words(run: Run) -> str:
    """Nothing where nobody attacks and updates are averaged as usual."""
    attack, reduce = record(run.info, "attack"), record(run.info, "reduce")
    robust = text(reduce, "is") not in ("", "Mean")
    reduced = f"Updates were reduced by {knob_words(dict(reduce)).removesuffix('()')}." if robust else ""
    if not attack:
        return markup.paragraph(reduced) if reduced else ""
    who, since = strings(attack, "attackers"), text(attack, "from_round", "1")
    how = knob_words({name: value for name, value in attack.items() if name not in (*_WHO, "attackers")}).removesuffix("()")
    names = [size.name for size in run.population]
    listed = ", ".join(names[int(client)] if client.isdecimal() and int(client) < len(names) else client for client in who)
    begins = "" if since == "1" else f" from round {since} on"
    return markup.box(
        f"{count(len(who), 'client')} of {run.num_clients} attacked this run{begins} with {how}: {listed}. "
        "A run with an attack is not private: attackers run no guard. All means on this page are over the honest clients.",
        reduced or "Updates were reduced by the weighted mean, which bounds no attacker.",
    ) + _gains(run, record(run.summary or {}, "attack"))


def _gains(run: Run, told: Record) -> str:
    """What the attackers reached, as far as it is one number."""
    pairs = [
        (f"backdoor success rate ({model})", show(value, run.main)) for model, value in numbers(told, "backdoor_success").items()
    ]
    gain = as_number(told.get("weight_gain"))
    if gain is not None and gain != 1.0:
        bound = number(told, "weight_gain_bound")
        pairs.append(("largest gain in weight", f"{gain:.3g} times" + (f", bounded by {bound:.3g}" if bound == bound else "")))
    words = f"Backdoor success: {metric_name(run.main, inside=True)} on test pictures of other classes with the trigger, counted as the target."
    return markup.pairs(pairs) + (markup.paragraph(words, "note") if "backdoor_success" in told else "")
