"""`coterie privacy ...`: how much noise a promise needs, and what a run has promised."""

from __future__ import annotations

import json as json_module
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from coterie.cli.show import console, function_help, wants_help
from coterie.options import options_of, parse
from coterie.privacy.accountant import Accountant, Budget, Scheme, View, ViewName, noise_for, planned
from coterie.privacy.release import Sampling, Split

Trade = dict[float, dict[int, float | None]]
"""noise -> rounds -> epsilon"""

_OF_THE_ROUNDS = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
_SHOWN = (0.25, 0.5, 1.0, 1.5, 2.0)


def plan_command(words: list[str]) -> int:
    if wants_help(words):
        return function_help("privacy plan", plan_privacy)
    return plan_privacy(**parse(words, options_of(plan_privacy), "privacy plan"))


def account_command(words: list[str]) -> int:
    if wants_help(words):
        return function_help("privacy account [RUN...]", account_privacy)
    folders: list[str] = []
    given = parse(words, options_of(account_privacy), "privacy account", folders)
    return account_privacy([Path(folder) for folder in folders], **given)


def plan_privacy(
    *, epsilon: float | None = None, delta: float = 1e-5, rounds: int | None = None, rate: float | None = None,
    clients: int | None = None, view: ViewName = "amplified", sampling: Sampling = "poisson", split: Split = "full", min_cohort: int = 1,
    secure: bool = False, participations: int | None = None, accountant: Accountant | None = None, json: Path | None = None,
    picture: Path | None = None,
) -> int:  # fmt: skip
    """How much noise keeps so many rounds within an epsilon; with what more or less noise, or other numbers of rounds, would cost.

    For example: coterie privacy plan --epsilon 8 --delta 1e-5 --rounds 100 --rate 0.1 --clients 300

    The noise multiplier is what --noise of a recipe wants: the standard deviation that one client adds, in units of the clip.
    The unit of all promises is one client's whole data set. All three views are always told; --view says which one must keep the
    epsilon. It is the server that needs to be trusted in the central and the amplified view, unless a secure sum hides messages.

    --epsilon         what may be spent in all rounds (default: must be given)
    --delta           chance that the promise fails; below 1 / clients
    --rounds          how many (default: must be given)
    --rate            chance of a client to take part in a round, or cohort / clients (default: must be given)
    --clients         checks delta, and tells the noise on a mean (default: not known)
    --view            local: the server looks; central: the sums; amplified: the models only
    --sampling        how cohorts are drawn
    --split           every client adds the whole noise, or a share of 1 / root of --min-cohort
    --min-cohort      clients whose noise every sum carries at least
    --secure          a secure sum hides single messages
    --participations  rounds of the most frequent client, for local and central (default: all)
    --accountant      of amplified; pld for Poisson, rdp for both samplings, rdp_integer as papers print (default: the tightest)
    --json            all numbers to this file, or - for the terminal (default: no)
    --picture         epsilon over rounds as SVG (default: no)
    """
    for name, value in (("epsilon", epsilon), ("rounds", rounds), ("rate", rate)):
        if value is None:
            raise ValueError(
                f"coterie privacy plan needs --epsilon, --rounds and --rate, found no --{name}. "
                "For example: coterie privacy plan --epsilon 8 --delta 1e-5 --rounds 100 --rate 0.1"
            )
    assert epsilon is not None and rounds is not None and rate is not None
    budget = Budget(epsilon=epsilon, delta=delta, view=view, accountant=accountant)
    check_clients(delta, clients)
    scheme = Scheme(rate=rate, sampling=sampling, split=split, min_cohort=min_cohort, secure=secure, participations=participations, clients=clients)
    noise = noise_for(budget, scheme, rounds)
    views = planned(scheme, noise, rounds, budget).views(sizes=True)
    trade = trade_of(budget, scheme, noise, rounds)
    if picture is not None:
        write(picture, picture_of(trade, budget, rate), "the picture")
    content = {
        "epsilon": epsilon, "delta": delta, "rounds": rounds, "rate": rate, "clients": clients, "view": view, "sampling": sampling,
        "split": split, "min_cohort": min_cohort, "participations": participations, "accountant": accountant, "noise": noise,
        "views": {name: found.to_json() for name, found in views.items()},
        "trade": [{"noise": z, "rounds": n, "epsilon": eps} for z, by_rounds in trade.items() for n, eps in by_rounds.items()],
    }  # fmt: skip
    if told_as_json(json, content):
        return 0
    say(f"Noise multiplier {noise:.5g} keeps {rounds:,} rounds within epsilon {epsilon:g} at delta {delta:g} ({view} view).")
    say(noise_words(noise, scheme))
    tell_views(views)
    console.print(trade_table(trade, rounds))
    if picture is not None:
        say(f"Picture: {picture}")
    return 0


def account_privacy(
    folders: list[Path], *, noise: float | None = None, rate: float | None = None, rounds: int | None = None, delta: float | None = None,
    clients: int | None = None, sampling: Sampling = "poisson", split: Split = "full", min_cohort: int = 1, secure: bool = False,
    participations: int | None = None, clip_noise: float | None = None, accountant: Accountant | None = None, json: Path | None = None,
) -> int:  # fmt: skip
    """What a run has spent, from the releases that it wrote down; or what so many rounds would spend.

    For example: coterie privacy account runs/mine

    Or: coterie privacy account --noise 1 --rate 0.1 --rounds 100 --delta 1e-5

    A run is charged for every attempt of a round that left a client, also for void ones and for those that a crash undid.

    --noise           what one client adds, in units of the clip (default: must be given without a RUN)
    --rate            chance of a client to take part in a round (default: must be given without a RUN)
    --rounds          how many (default: must be given without a RUN)
    --delta           chance that the promise fails (default: the run's own, or 1e-05)
    --clients         checks delta (default: not known)
    --sampling        how cohorts are drawn
    --split           every client adds the whole noise, or a share of 1 / root of --min-cohort
    --min-cohort      clients whose noise every sum carries at least
    --secure          a secure sum hides single messages
    --participations  rounds of the most frequent client, for local and central (default: all)
    --clip-noise      multiplier of the noise on an adaptive clip's bit (default: no such clip)
    --accountant      of amplified; pld for Poisson, rdp for both samplings, rdp_integer as papers print (default: the run's own, or the tightest)
    --json            all numbers to this file, or - for the terminal (default: no)
    """
    given = [name for name, value in (("noise", noise), ("rate", rate), ("rounds", rounds)) if value is not None]
    if folders:
        from coterie.cli.privacy_of_runs import account_runs

        if given:
            raise ValueError(f"A run knows its own --{given[0]}, found it beside '{folders[0]}'. Leave it out, or leave the run out.")
        return account_runs(folders, delta, accountant, json)
    if noise is None or rate is None or rounds is None:
        raise ValueError(
            "coterie privacy account needs a run folder, or --noise, --rate and --rounds"
            f"{f', found only --{given[0]}' if given else ', found nothing'}. "
            "For example: coterie privacy account --noise 1 --rate 0.1 --rounds 100 --delta 1e-5"
        )
    budget = Budget(delta=1e-5 if delta is None else delta, accountant=accountant)
    check_clients(budget.delta, clients)
    scheme = Scheme(
        rate=rate, sampling=sampling, split=split, min_cohort=min_cohort, secure=secure, participations=participations, clip_noise=clip_noise,
        clients=clients,
    )  # fmt: skip
    views = planned(scheme, noise, rounds, budget).views(sizes=True)
    content = {
        "noise": noise, "rate": rate, "rounds": rounds, "delta": budget.delta, "sampling": sampling, "split": split, "min_cohort": min_cohort,
        "participations": participations, "clip_noise": clip_noise, "accountant": budget.accountant,
        "views": {name: found.to_json() for name, found in views.items()},
    }  # fmt: skip
    if told_as_json(json, content):
        return 0
    say(f"{rounds:,} rounds with noise {noise:g} at rate {rate:g}, delta {budget.delta:g}:")
    tell_views(views)
    return 0


def check_clients(delta: float, clients: int | None) -> None:
    if clients is not None and clients < 1:
        raise ValueError(f"--clients must be at least 1, found {clients}. Leave it out where it is not known.")
    if clients is not None and delta >= 1.0 / clients:
        raise ValueError(
            f"--delta must be smaller than 1 / clients = {1.0 / clients:.2g}, found {delta:g}: with a larger one, handing out one client's "
            f"data whole would keep the promise. Use for example {0.1 / clients:.1g}."
        )


def trade_of(budget: Budget, scheme: Scheme, noise: float, rounds: int) -> Trade:
    """Epsilon for a little less and a little more noise, after a few numbers of rounds."""
    steps = sorted({max(1, round(part * rounds)) for part in _OF_THE_ROUNDS})
    noises = [noise / math.sqrt(2.0), noise, noise * math.sqrt(2.0)]
    return {z: {n: planned(scheme, z, n, budget).view(budget.view).epsilon for n in steps} for z in noises}


def noise_words(noise: float, scheme: Scheme) -> str:
    """Where the noise is, and how large it is beside what it hides."""
    one = noise / math.sqrt(scheme.min_cohort) if scheme.split == "share" else noise
    words = f"Each client adds noise of {one:.5g} clips per number."
    if scheme.clients is None:
        return words
    cohort = max(scheme.rate * scheme.clients, 1.0)
    words += f" The mean of about {cohort:,.0f} clients then carries {one / math.sqrt(cohort):.3g} clips; each client alone moves it by {1 / cohort:.3g}."
    few = f" Most rounds will be void: --min-cohort is {scheme.min_cohort}, and {cohort:,.0f} clients take part on average."
    return words + (few if scheme.min_cohort > cohort else "")


def tell_views(views: Mapping[ViewName, View]) -> None:
    """The three views as a table, and what the amplified one becomes where the sizes of cohorts are known."""
    table = Table(title=f"Unit: one client's whole data set; delta {views['local'].delta:g}", title_justify="left", title_style="")
    for name in ("view", "epsilon", "if a client's data is", "against", "only if"):
        table.add_column(name)
    for view in views.values():
        table.add_row(Text(f"{view.name}\n({view.accountant})"), Text(view.told()), "replaced" if "replaced" in view.relation else "added or removed", view.against, view.only_if or "")
        if view.replaced_epsilon is not None:
            table.add_row("", Text(View.number(view.replaced_epsilon)), "replaced", "", "")
    console.print(table)
    if (known := views["amplified"].sizes_known_epsilon) is not None:
        say(
            f"Amplified, for a reader who also knows the size of every cohort (the noise in a model hints at it): "
            f"{View.number(known)} if a client's data is replaced."
        )


def trade_table(trade: Trade, rounds: int) -> Table:
    shown = [n for n in next(iter(trade.values())) if n in {max(1, round(part * rounds)) for part in _SHOWN}]
    table = Table(title="The trade: epsilon after so many rounds", title_justify="left", title_style="")
    table.add_column("noise")
    for n in shown:
        table.add_column(f"{n:,}", justify="right", style="bold" if n == rounds else "")
    for z, by_rounds in trade.items():
        table.add_row(f"{z:.5g}", *("–" if by_rounds[n] is None else View.number(by_rounds[n] or 0.0) for n in shown))
    return table


def picture_of(trade: Trade, budget: Budget, rate: float) -> str:
    """Epsilon over rounds, a curve for each noise, and the budget."""
    from coterie.report.charts import Line, from_zero, lines, rounds_axis
    from coterie.report.plot import around
    from coterie.report.standalone import standalone

    curves = [
        Line(f"noise {z:.3g}", [(float(n), eps) for n, eps in by_rounds.items() if eps is not None], colour)
        for colour, (z, by_rounds) in enumerate(trade.items())
    ]
    most = max(n for by_rounds in trade.values() for n in by_rounds)
    assert budget.epsilon is not None
    limit = Line("budget", [(1.0, budget.epsilon), (float(most), budget.epsilon)], 7)
    axis = from_zero(around([eps for line in (*curves, limit) for _, eps in line.points], f"epsilon ({budget.view} view)", lambda v: f"{v:g}"))
    title = f"Epsilon over rounds at delta {budget.delta:g}, rate {rate:g}"
    return standalone(lines([*curves, limit], rounds_axis(most), axis, title, width=760, height=400))


def told_as_json(place: Path | None, content: Mapping[str, Any]) -> bool:
    """Write JSON where it is wanted; True if it went to the terminal, where nothing else may then stand."""
    if place is None:
        return False
    text = json_module.dumps(content, indent=2) + "\n"
    if str(place) == "-":
        print(text, end="")
        return True
    write(place, text, "the numbers")
    return False


def write(place: Path, text: str, what: str) -> None:
    try:
        place.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"Can't write {what} to '{place}' ({error.strerror}). Choose another place.") from None


def say(text: str) -> None:
    console.print(text, soft_wrap=True, markup=False)
