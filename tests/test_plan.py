"""Plans: chosen numbers keep every agent within the tolerance, and forecasts agree with runs."""

import itertools
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from posteriors import half_heavy, unbounded
from screens import shown
from tables import AGENTS, METHODS, NETWORKS, among, quadrature, unequal_curvature, unequal_shards
from typer.testing import CliRunner

import accord
from accord.base.terminal import console
from accord.cli.commands import app
from accord.engines.consensus_mode import bind
from accord.engines.local import LocalEngine
from accord.samplers import (
    DADMMS,
    DASG,
    DESGLD,
    DGLMC,
    DULA,
    GCMC,
    GTBAOAB,
    ChEES,
    Gibbs,
    HubSGLD,
    Importance,
    Replicated,
)
from accord.samplers.schedules import diminishing
from accord.tuning import search
from accord.tuning.forecast import SHARE, Forecast, Model, forecast, gaussian_model
from accord.tuning.plan import Plan, label, numbers
from accord.tuning.search import choose, try_out, tunable_methods, usual_methods
from accord.tuning.warmup import warm_up


def skewed(agents=AGENTS):
    """A logistic posterior whose labels are nearly separated, each agent's rows from another part of the line."""
    rng = np.random.default_rng(4)
    x = np.sort(rng.standard_normal(12 * agents))
    y = (x + 0.3 * rng.standard_normal(x.size) > 0).astype(float)
    X = np.c_[np.ones(x.size), 30.0 * x, rng.standard_normal(x.size)]
    return accord.models.logistic_regression([(X[rows], y[rows]) for rows in np.split(np.arange(x.size), agents)])


def prospect(post, net):
    """What warm-up found, the posterior in its coordinates, and the Gaussian model."""
    with jax.enable_x64(True):
        found = warm_up(post, net)
    moved = post.transformed(found.coordinates)
    return found, moved, gaussian_model(moved, found)


def law_bias(post, net, sampler):
    """The largest error of any agent by the exact law of a Gaussian posterior, in its standard deviations."""
    stationary, exact = accord.law(post, net, sampler).stationary(), post.exact()
    own = [stationary.agent(i) for i in range(net.num_agents)]
    mean = max(np.abs((law.mean - exact.mean) / exact.sd).max() for law in own)
    return max(mean, *(np.abs(law.sd / exact.sd - 1.0).max() for law in own))


def test_a_gaussian_model_is_the_posterior_where_that_is_gaussian():
    post = unequal_curvature(3)
    _, moved, model = prospect(post, NETWORKS["ring"])
    np.testing.assert_allclose(model.plain.hessians(), post.hessians(), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(model.plain.gradients(np.ones(3)), post.gradients(np.ones(3)), rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(model.whitened.hessians(), moved.hessians(), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(model.plain.exact().mean, post.exact().mean, rtol=1e-9, atol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("name", among(METHODS, "GTBAOAB", "DADMMS", "DGLMC"))
def test_forecasts_are_the_exact_law(name):
    post, net, method = unequal_shards(2), NETWORKS["irregular"], METHODS[name]()
    found = forecast(post, post.sizes, net, method)
    np.testing.assert_allclose(found.bias, law_bias(post, net, method), rtol=1e-5)
    assert found.rounds >= 1 and found.burn_in >= 1
    # the busiest agent's, as a run counts it
    run = accord.sample(post, net, accord.Rounds(method, burn_in=99), draws=1, chains=1, seed=0)
    before = bind(post, net, method, LocalEngine).spent
    sent, exchanges = run.traffic.bytes_sent - before.bytes_sent, run.traffic.exchanges - before.exchanges
    np.testing.assert_allclose(found.bytes_sent / found.rounds, sent.max() / 100, rtol=0.02)
    np.testing.assert_allclose(found.exchanges / found.rounds, exchanges / 100, rtol=0.02)
    np.testing.assert_allclose(found.gradient_rows / found.rounds, run.traffic.gradient_rows.max() / 100)


@pytest.mark.parametrize("network", among(["ring", "star", "path", "irregular"], "ring", "star"))
def test_the_first_setting_that_serves_is_found(network):
    net = NETWORKS[network]
    found, _, model = prospect(unequal_curvature(3), net)
    *before, last = try_out(GTBAOAB(0.8), model, np.ones(AGENTS), net, found.stiffness, 0.05)
    assert before and last.sampler.mix_rounds > 1 and last.sampler.step_size == 0.8
    assert last.forecast.meets(0.05) and last.forecast.bias <= SHARE * 0.05
    assert all(trial.forecast is None or trial.forecast.bias > SHARE * 0.05 for trial in before)


@pytest.mark.parametrize(("biases", "found"), [([0.4, *[0.9] * 6, 1e-4], 10), ([0.4, *[0.9] * 9, 1e-4], 10)])
def test_exchanges_are_added_though_the_bias_rises_on_the_way(biases, found, monkeypatch):
    """Eight settings in a row that bring nothing are too many, six are not."""
    net, seen = NETWORKS["star"], iter(biases)
    warmed, _, model = prospect(unequal_curvature(1), net)
    judged = search._judged

    def rising(*given):
        trial = judged(*given)
        mean = np.full_like(trial.forecast.mean, next(seen))
        return trial._replace(forecast=replace(trial.forecast, mean=mean, sd=np.ones_like(mean)))

    monkeypatch.setattr(search, "_judged", rising)
    trials = list(try_out(GTBAOAB(0.1), model, np.ones(AGENTS), net, warmed.stiffness, 0.05))
    assert len(trials) == min(len(biases), 9)
    assert (trials[-1].sampler.mix_rounds, trials[-1].forecast.meets(0.05)) == (
        (found, True) if len(biases) == 8 else (12, False)
    )


def candidates():
    quick = {
        "GTBAOAB, common noise",
        "DESGLD, common noise",
        "DADMMS, independent noise",
        "GCMC",
    }
    found = {label(sampler): sampler for sampler in tunable_methods(unequal_curvature(1), NETWORKS["ring"])}
    assert quick <= found.keys()
    return [pytest.param(s, marks=() if n in quick else pytest.mark.slow, id=n) for n, s in found.items()]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:no setting of")
@pytest.mark.parametrize("sampler", candidates())
def test_every_method_finds_its_own_numbers(sampler):
    post, net = unequal_curvature(2), NETWORKS["irregular"]
    found, moved, model = prospect(post, net)
    trials = list(try_out(sampler, model, np.ones(AGENTS), net, found.stiffness, 0.1 / SHARE))
    best = Plan(tuple(trials), 0.1 / SHARE, "bytes_sent", found).ranked[0]
    assert all(trial.whitened and not trial.sampler.left_out for trial in trials)
    # independent noise spreads the agents of GT-BAOAB about their average at any number of exchanges
    assert (best.forecast.bias <= 0.1) is not label(sampler).endswith("GTBAOAB, independent noise")
    # the cheapest: one with twice the step does not serve
    larger = [t for t in trials if t.forecast is not None and t.forecast.bytes_sent < best.forecast.bytes_sent]
    assert all(trial.forecast.bias > 0.1 for trial in larger)
    run = accord.sample(post, net, accord.Rounds(sampler, burn_in=1, thin=1), draws=2, chains=1, seed=0)
    assert np.isfinite(run.draws).all()
    assert label(sampler) in run.settings["chosen"]


def test_numbers_left_out_are_chosen():
    post, net = unequal_curvature(2), NETWORKS["ring"]
    found, moved, _ = prospect(post, net)
    chosen = choose([GTBAOAB()], moved, net, found)[0].sampler
    # a Gaussian posterior has no draws stiffer than others
    assert abs(chosen.step_size - 1.0) < 1e-6 and not chosen.left_out
    given = choose([GTBAOAB(0.5)], moved, net, found)[0].sampler
    assert given.step_size == 0.5 and given.mix_rounds <= chosen.mix_rounds
    assert choose([GTBAOAB(mix_rounds=7)], moved, net, found)[0].sampler.mix_rounds == 7
    assert choose([DULA(step_size=0.001)], moved, net, found)[0].sampler.step_size == 0.001
    for sampler in (GTBAOAB(), DESGLD(), DADMMS(), Gibbs(), GCMC()):
        with pytest.raises(ValueError, match=f"{type(sampler).__name__} has no .* chosen in whitened coordinates"):
            accord.law(post, net, sampler)
        with pytest.raises(ValueError, match="chosen in whitened coordinates"):
            accord.sample(post, net, accord.Rounds(sampler, whiten=False), draws=1)
    # the paper's guidelines choose these
    assert not DGLMC().bind(post, net).sampler.left_out


@pytest.mark.long
def test_more_exchanges_than_are_tried_may_be_given():
    post, net = unequal_curvature(2), NETWORKS["ring"]
    found, moved, _ = prospect(post, net)
    trial, _ = choose([GTBAOAB(mix_rounds=300)], moved, net, found)
    assert trial.sampler.mix_rounds == 300 and not trial.sampler.left_out and trial.forecast.meets(0.05)
    (same,) = accord.plan(post, net, [GTBAOAB(mix_rounds=300)]).trials
    assert same.sampler.mix_rounds == 300 and same.forecast.exchanges == pytest.approx(300 * same.forecast.rounds)


def test_the_error_without_a_usable_setting_has_each_methods_reason():
    post, net = unequal_curvature(2), NETWORKS["ring"]
    found, moved, _ = prospect(post, net)
    with pytest.raises(ArithmeticError, match="no usable setting was found") as raised:
        choose([GTBAOAB(10.0, mix_rounds=2), DESGLD(diminishing(0.1), noise="common")], moved, net, found)
    tracking, descent = str(raised.value).removeprefix("no usable setting was found: ").split("; ")
    assert tracking.startswith("GTBAOAB, common noise, as given: ") and "GTBAOAB is unstable" in tracking
    assert descent.startswith("DESGLD, common noise, as given: ") and "schedule" in descent


def test_a_setting_that_misses_the_tolerance_is_run_with_a_warning():
    post, net = unequal_curvature(2), NETWORKS["complete"]
    with pytest.warns(UserWarning, match="no setting of GTBAOAB.*within 0.05.*the best has bias"):
        run = accord.sample(post, net, GTBAOAB(noise="independent"), draws=2, chains=1)
    assert run.settings["burn_in"] > 0


@pytest.mark.long
def test_rounds_left_out_are_those_of_the_plan():
    post, net = unequal_curvature(2), NETWORKS["ring"]
    found, moved, _ = prospect(post, net)
    foreseen = choose(usual_methods(post, net), moved, net, found)[0].forecast
    run = accord.sample(post, net, accord.Rounds(whiten=True), draws=2, chains=1)
    assert run.settings["burn_in"] == 3 * foreseen.burn_in
    assert run.settings["thin"] == np.ceil(foreseen.rounds / 3)
    given = accord.sample(post, net, accord.Rounds(burn_in=3, thin=2), draws=2, chains=1)
    assert (given.settings["burn_in"], given.settings["thin"]) == (3, 2)
    plain = accord.sample(post, net, DESGLD(0.1), draws=2, chains=1)
    assert (plain.settings["burn_in"], plain.settings["thin"]) == (500, 1)


@pytest.mark.long
@pytest.mark.parametrize("network", among(["ring", "path"], "ring"))
def test_without_numbers_every_agent_draws_a_gaussian_posterior(network):
    post, net = unequal_curvature(3), NETWORKS[network]
    run = accord.sample(post, net, accord.Rounds(burn_in=50, thin=1), draws=2000, chains=16, seed=1)
    assert "GTBAOAB" in run.settings["method"]
    exact, size = post.exact(), 16 * 2000
    mean, sd = run.draws.mean(axis=(0, 1), dtype=np.float64), run.draws.std(axis=(0, 1), dtype=np.float64)
    # a bias of 0.01 plus Monte Carlo error; squares of draws have an autocorrelation time of about six rounds
    noise = 4.5 * np.sqrt(6.0 / size)
    assert (np.abs(mean - exact.mean) / exact.sd).max() < 0.01 + noise
    assert np.abs(sd / exact.sd - 1.0).max() < 0.01 + noise


@pytest.mark.long
def test_without_numbers_every_agent_draws_a_skewed_posterior():
    post, net = skewed(), NETWORKS["ring"]
    run = accord.sample(post, net, accord.Rounds(burn_in=100, thin=2), draws=4000, chains=8, seed=1)
    mean, sd = quadrature(post, 41)
    assert (np.abs(run.draws.mean(axis=(0, 1)) - mean) / sd).max() < 0.05 + 0.05
    assert np.abs(run.draws.std(axis=(0, 1)) / sd - 1.0).max() < 0.03 + 0.05


@pytest.mark.long
def test_many_parameters_are_modelled_by_the_largest_curvatures():
    post, net = unequal_curvature(3), NETWORKS["ring"]
    with jax.enable_x64(True):
        found = warm_up(post, net, dense=2)
    moved = post.transformed(found.coordinates)
    model = gaussian_model(moved, found)
    assert model.whitened.dim == 1 and model.plain is None
    np.testing.assert_allclose(model.whitened.hessians()[:, 0, 0], found.curvature[:, 1])
    chosen = choose([GTBAOAB()], moved, net, found)[0].sampler
    run = accord.sample(moved, net, accord.Rounds(chosen, burn_in=50), draws=500, chains=4, seed=0)
    assert np.isfinite(run.draws).all()
    (trial,) = try_out(DESGLD(0.1), model, post.sizes, net, found.stiffness, 0.05)
    assert "too many parameters" in trial.trouble


def test_a_posterior_that_is_not_convex_on_average_has_no_forecast():
    post = accord.models.quadratic(np.tile(np.diag([1.0, -0.5]), (AGENTS, 1, 1)), np.zeros((AGENTS, 2)))
    (trial,) = try_out(DESGLD(), Model(post, post, None), np.ones(AGENTS), NETWORKS["ring"], 1.0, 0.05)
    assert trial.forecast is None and "not convex on average" in trial.trouble


@pytest.fixture(scope="module")
def compared():
    """A plan of methods that meet the tolerance, and of some that have no forecast."""
    post, net = unequal_curvature(2), NETWORKS["ring"]
    methods = [DESGLD(noise="common"), GTBAOAB(), DESGLD(2.0), DESGLD(diminishing(0.1)), HubSGLD(0.01), Replicated()]
    return accord.plan(post, net, methods)


@pytest.mark.long
def test_a_plan_ranks_methods_and_says_why(compared, tmp_path):
    post, net, found = unequal_curvature(2), NETWORKS["ring"], compared
    ranked = found.ranked
    assert found.best is ranked[0] and type(found.best.sampler) is GTBAOAB
    cost = [trial.forecast.exchanges for trial in ranked if found.meets(trial)]
    assert cost == sorted(cost) and len(cost) == 2
    trouble = [(type(trial.sampler), trial.trouble) for trial in found.trials if trial.forecast is None]
    assert any(method is DESGLD and "schedule" in text for method, text in trouble)
    for hub in (HubSGLD, Replicated):
        assert any(method is hub and "not Gaussian" in text for method, text in trouble)
    table = found.table()
    assert len(table) == len(found.trials) and table["meets"].sum() >= 2
    unstable = table[table["numbers"] == "step_size=2"].iloc[0]
    assert "unstable" in unstable["trouble"] and not unstable["whitened"] and not unstable["meets"]
    figure = found.plot().figure
    figure.savefig(tmp_path / "plan.svg")
    assert "posterior sd" in (tmp_path / "plan.svg").read_text()
    cheapest = accord.plan(post, net, [GTBAOAB(), DADMMS(noise="common")], cost="rounds")
    assert cheapest.best.forecast.rounds == min(t.forecast.rounds for t in cheapest.ranked if cheapest.meets(t))
    assert cheapest.why(cheapest.best).endswith("; the fewest rounds of 2 methods")


def names(plan):
    """What is written in the plot of a plan, each name on one line."""
    return [text.get_text().replace("\n", " ") for text in plan.plot().texts]


def rows_apart(batch_size):
    """A plan of a method with minibatches, as given and to be tuned, beside the same with all rows."""
    post = unequal_shards(2)
    given = GTBAOAB(0.3, 1.0, mix_rounds=20, batch_size=batch_size)
    methods = [given, replace(given, batch_size=None, mix_rounds=25)]
    return accord.plan(post, NETWORKS["ring"], methods, cost="gradient_rows", tolerance=0.5)


@pytest.mark.long
def test_a_plan_marks_minibatches_whose_noise_it_leaves_out(capsys):
    found = rows_apart(1)
    noisy, exact = found.trials
    # the noise left out, minibatches look cheaper; they are not ranked as if they were exact
    assert found.meets(noisy) and found.meets(exact)
    assert noisy.forecast.gradient_rows < exact.forecast.gradient_rows
    assert found.best is found.ranked[0] is exact and found.ranked[1] is noisy
    sentence = "This leaves out the noise of minibatches (batch_size=1)"
    assert sentence in found.why(noisy) and "larger batch_size" in found.why(noisy)
    assert "minibatch" not in found.why(exact) and "minibatch" not in repr(found)
    assert list(found.table()["left_out"]) == ["minibatch noise", ""]
    printed(found)
    lines = capsys.readouterr().out.splitlines()
    first, second = (place for place, line in enumerate(lines) if line.startswith("GTBAOAB"))
    marked = [without_spaces(lines[a:b]).count("minibatchnoiseleftout") for a, b in ((first, second), (second, -1))]
    assert marked == [0, 1]
    assert lines[-1].startswith("minibatch noise left out: draws will be wider") and "run.summary()" in lines[-1]
    assert sum("minibatch noise left out" in text for text in names(found)) == 1
    alone = Plan((noisy,), 0.5, "exchanges", found.warmup)
    assert repr(alone).endswith("minibatch noise left out>")
    missed = Plan((noisy,), 1e-9, "exchanges", found.warmup)
    assert "no setting of" in missed.why(noisy) and sentence in missed.why(noisy)
    assert noisy.label == "GTBAOAB, common noise, minibatches, as given" == exact.label.replace("as", "minibatches, as")


@pytest.mark.long
def test_the_reason_for_a_choice_with_minibatches_mentions_their_noise():
    post, net = unequal_shards(2), NETWORKS["ring"]
    run = accord.sample(post, net, GTBAOAB(batch_size=1), draws=2, chains=1)
    assert run.settings["chosen"].startswith(
        "GTBAOAB, common noise, minibatches: apart from minibatch noise predicted within"
    )
    assert "the noise of minibatches (batch_size=1), which makes draws wider than forecast" in run.settings["chosen"]


def without_spaces(lines):
    """The text of folded lines."""
    return "".join("".join(lines).split())


def printed(plan):
    console().print(plan)


@pytest.mark.long
def test_a_plan_prints_the_allowed_bias(compared, capsys):
    # a bias slightly below and slightly above the allowed one, both far below the tolerance
    within, beyond = (
        compared.ranked[0]._replace(
            label=name, forecast=replace(compared.ranked[0].forecast, mean=np.full((6, 2), bias))
        )
        for name, bias in (("nearly", 0.0049), ("beyond", 0.0051))
    )
    found = Plan((within, beyond), 0.05, "exchanges", compared.warmup)
    assert found.allowed == pytest.approx(0.005) and found.meets(within) and not found.meets(beyond)
    printed(found)
    title, _, *lines = capsys.readouterr().out.splitlines()
    second = next(place for place, line in enumerate(lines) if line.startswith("beyond "))
    assert "within 0.05 posterior sds" in title
    assert lines[0].startswith("nearly ") and "nosetting" not in without_spaces(lines[:second])
    assert "nosettingwithin0.005,thisisthebest" in without_spaces(lines[second:])
    rule = next(line for line in lines[second:] if line.startswith("bias: "))
    assert "on the Gaussian approximation. 0.005 is allowed there, a tenth of the 0.05. The rest" in rule
    assert "predicted within 0.0049 posterior standard deviations on the Gaussian" in found.why(within)
    assert "0.005 of the 0.05 is allowed there" in found.why(within)
    assert found.why(beyond).endswith(
        "bias 0.0051 on the Gaussian approximation, where it may be 0.005, a tenth of that"
    )
    with pytest.raises(ArithmeticError, match=r"within 0.05 .* bias 0.0051 .* 0.005, a tenth of that\. Add edges"):
        _ = Plan((beyond,), 0.05, "exchanges", compared.warmup).best
    (line,) = [line for line in found.plot().get_lines() if line.get_color() == "grey"]
    assert np.unique(line.get_ydata()) == pytest.approx([0.005])
    assert any(name.endswith("a tenth of 0.05") for name in names(found))


@pytest.mark.parametrize("columns", [50, 80, 120])
@pytest.mark.long
def test_a_plan_is_folded_in_a_terminal_and_in_a_pipe(compared, columns, monkeypatch, capsys):
    printed(compared)
    pipe = capsys.readouterr().out
    # title, then a table of at most 100 columns, then four lines of legend
    lines = pipe.splitlines()
    assert max(map(len, lines[1:-4])) <= 100 and lines[-4].startswith("bias: ")
    assert lines[2].startswith(compared.ranked[0].label)
    terminal = shown(monkeypatch, columns, printed, compared)
    # folding keeps all text
    characters = [Counter("".join(text.split())) for text in (pipe, "".join(terminal))]
    assert characters[0] == characters[1]
    if columns >= 80:
        tokens = set(" ".join(terminal).split())
        assert all(f"{trial.forecast.bias:.2g}" in tokens for trial in compared.ranked if trial.forecast is not None)


@pytest.fixture(scope="module")
def by_sums():
    """A skewed posterior, its network, and a plan of the default methods and of a round-based method."""
    post, net = skewed(4), accord.Network.star(4)
    return post, net, accord.plan(post, net, [DESGLD(0.001, noise="common"), ChEES(), Importance()], draws=500)


@pytest.mark.long
def test_sums_are_forecast_as_a_run_takes_them(by_sums):
    post, net, found = by_sums
    costs = {trial.label: trial.cost for trial in found.trials}
    run = accord.sample(post, net, draws=500)
    foreseen, taken = costs["Importance"], run.traffic
    assert run.settings["chosen"] == "Importance is certified" and found.best.label == "Importance"
    # what is forecast are the points to be weighed, the rest is known
    assert (foreseen.sums, foreseen.exchanges, foreseen.rounds) == (taken.sums, taken.exchanges, 0)
    assert foreseen.gradient_rows == taken.gradient_rows.max()
    assert foreseen.value_rows == pytest.approx(taken.value_rows.max(), rel=0.5)
    assert foreseen.bytes_sent == pytest.approx(taken.bytes_sent.max(), rel=0.3)
    assert all(0.0 < costs[name].seconds < 60.0 for name in ("Importance", "ChEES"))
    sums = accord.sample(post, net, ChEES(), draws=500).traffic.sums
    assert 0.1 * sums < costs["ChEES"].sums < 1.1 * sums


@pytest.mark.long
def test_chains_on_a_gaussian_take_what_is_forecast():
    post, net = unequal_curvature(3), NETWORKS["ring"]
    (trial,) = accord.plan(post, net, [ChEES()], draws=500).trials
    run = accord.sample(post, net, ChEES(), draws=500)
    assert trial.cost.sums == pytest.approx(run.traffic.sums, rel=0.15)
    assert trial.cost.bytes_sent == pytest.approx(run.traffic.bytes_sent.max(), rel=0.15)
    assert trial.cost.exchanges == 2 * net.aggregation.height * trial.cost.sums


@pytest.mark.long
def test_what_sums_certify_comes_first_whatever_it_costs(by_sums, capsys):
    *_, found = by_sums
    assert [trial.label for trial in found.ranked[:2]] == ["Importance", "ChEES"]
    assert "Importance: each point of the last proposal gives" in found.why(found.best)
    assert "for 2,000 effective draws" in found.why(found.best)
    cheap = [t._replace(cost=t.cost._replace(exchanges=1.0)) for t in found.trials if t.label.startswith("DESGLD")]
    sums = [t for t in found.trials if not t.label.startswith("DESGLD")]
    assert replace(found, trials=(*cheap, *sums)).best.label == "Importance"
    doubted = [t._replace(forecast=replace(t.forecast, doubt="k is 3")) if t.label == "Importance" else t for t in sums]
    refused = replace(found, trials=(*cheap, *doubted))
    assert refused.best.label == "ChEES" and refused.ranked[-1].label == "Importance"
    assert refused.why(refused.ranked[-1]) == "Importance is not expected to be certified: k is 3"
    row = refused.table().set_index("method").loc["Importance"]
    assert not row["meets"] and row["trouble"] == "k is 3" and row["sums"] == found.best.cost.sums
    assert "ChEES" in names(refused) and "Importance (not expected to be certified)" in names(refused)
    printed(refused)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("ChEES ")
    (place,) = [place for place, line in enumerate(lines) if line.startswith("Importance ")]
    assert lines[place + 1].startswith("k is 3")
    assert "2,000 effective draws in 4 chains" in lines[-1]


@pytest.mark.parametrize(
    ("make", "method", "reason"),
    [
        (half_heavy, Importance(), "a tail search ended where F had risen by only"),
        (lambda: unequal_curvature(2), ChEES(max_transitions=2), "even on a Gaussian, .* effective draws"),
    ],
    ids=["heavy tail", "too few transitions"],
)
def test_a_plan_forecasts_a_failed_certificate(make, method, reason):
    post = make()
    (trial,) = accord.plan(post, accord.Network.ring(post.num_agents), [method]).trials
    assert re.search(reason, trial.forecast.doubt) and np.isnan(trial.forecast.bias)


@pytest.mark.long
def test_where_there_is_no_mode_a_plan_has_what_begins_elsewhere():
    found = accord.plan(unbounded(), accord.Network.ring(4), [ChEES(), Importance(), GTBAOAB()])
    troubles = {trial.label: trial.trouble for trial in found.trials}
    assert found.best.label == "ChEES" and found.warmup is None
    assert "no mode" in troubles["Importance"] and "no mode" in troubles["GTBAOAB, common noise"]
    with pytest.raises(ArithmeticError, match="no mode"):
        accord.plan(unbounded(), accord.Network.ring(4), [GTBAOAB()])


@pytest.mark.long
@pytest.mark.parametrize("method", [GTBAOAB(0.3, 1.0, mix_rounds=5), DGLMC(0.5, 0.1)], ids=["neighbours", "hub"])
def test_the_cost_of_draws_is_that_of_a_run_as_long(method):
    post, net = unequal_shards(2), NETWORKS["ring"]
    (trial,) = accord.plan(post, net, [method], draws=50, chains=3, tolerance=10.0).trials
    cost, foreseen = trial.cost, trial.forecast
    assert cost.rounds == 3 * foreseen.burn_in + 50 * foreseen.rounds
    run = accord.sample(post, net, accord.Rounds(method, burn_in=round(cost.rounds) - 1), draws=1, chains=3)
    assert cost.exchanges == pytest.approx(run.traffic.exchanges, rel=0.02)
    assert cost.sums == pytest.approx(run.traffic.sums, abs=2)
    by_hub = isinstance(method, DGLMC)
    assert run.traffic.sums == (run.traffic.exchanges / (2 * net.aggregation.height) if by_hub else 0)
    # a run counts one of its chains
    assert cost.bytes_sent == pytest.approx(3 * run.traffic.bytes_sent.max(), rel=0.02)
    assert cost.gradient_rows == pytest.approx(3 * run.traffic.gradient_rows.max(), rel=0.02)
    assert 0.0 < cost.seconds < 60.0 or not trial.forecast.meets(10.0)


def test_a_complete_method_is_judged_in_the_users_coordinates():
    post, net = unequal_curvature(2), NETWORKS["ring"]
    (trial,) = accord.plan(post, net, [DESGLD(0.05)]).trials
    np.testing.assert_allclose(trial.forecast.bias, law_bias(post, net, DESGLD(0.05)), rtol=1e-4)
    assert trial.limit == pytest.approx(DESGLD(0.05).max_step(net, post.hessians()), rel=1e-5)


def test_a_plan_without_a_setting_within_the_tolerance_raises_an_error():
    found = accord.plan(unequal_curvature(2), NETWORKS["ring"], [GTBAOAB(noise="independent")])
    assert found.trials
    with pytest.raises(ArithmeticError, match="no method is forecast to keep every agent within 0.05"):
        _ = found.best


def test_a_plan_refuses_what_does_not_fit():
    post, net = unequal_curvature(2), NETWORKS["ring"]
    with pytest.raises(ValueError, match="tolerance"):
        accord.plan(post, net, tolerance=0.0)
    with pytest.raises(ValueError, match="tolerance must be a finite number > 0, found 'x'"):
        accord.plan(post, net, tolerance="x")
    with pytest.raises(TypeError, match="must be an accord.Posterior and the second .*, found Network and Posterior"):
        accord.plan(net, post)
    with pytest.raises(ValueError, match="bytes_sent"):
        accord.plan(post, net, cost="bytes")
    with pytest.raises(ValueError, match="connected"):
        accord.plan(post, accord.Network.empty(AGENTS))
    with pytest.raises(ValueError, match="5 agents"):
        accord.plan(post, accord.Network.ring(5), [GTBAOAB()])
    with pytest.raises(ValueError, match="methods is empty"):
        accord.plan(post, net, [])
    with pytest.raises(ValueError, match=r"methods must be a list, as in \[GTBAOAB\(...\)\]"):
        accord.plan(post, net, GTBAOAB())


def test_an_optimiser_has_no_forecast():
    (trial,) = accord.plan(unequal_curvature(2), NETWORKS["ring"], [DASG(0.1, 0.5)]).trials
    assert trial.forecast is None and trial.trouble.endswith("without noise (temperature 0) the method is an optimiser")


def test_numbers_that_are_not_defaults_are_shown():
    assert numbers(DADMMS(rho=0.123456, noise="common")) == "rho=0.1235"
    assert numbers(GTBAOAB(0.5, 1.0, mix_rounds=3)) == "mix_rounds=3, step_size=0.5, friction=1"


@pytest.mark.long
def test_the_command_line_prints_writes_and_plots_a_plan(tmp_path):
    folder = tmp_path / "hospitals"
    shutil.copytree(Path(__file__).parents[1] / "examples" / "hospitals", folder)
    with open(folder / "config.toml", "a") as config:
        config.write('\n[method]\nname = "DADMMS"\nrho = 24.0\nnoise = "common"\n')
    options = ["--only", "GTBAOAB", "--table", str(tmp_path / "plan.csv"), "--plot", str(tmp_path / "plan.png")]
    options += ["--only", "Importance", "--draws", "300", "--chains", "2"]
    result = CliRunner().invoke(app, ["plan", str(folder / "config.toml"), *options], env={"COLUMNS": "150"})
    assert result.exit_code == 0, result.stderr
    assert "\neach point of" in result.stdout and "cost of 600 effective draws in 2 chains" in result.stdout
    assert "GTBAOAB, common noise" in result.stdout and "DADMMS, common noise, as given" in result.stdout
    table = pd.read_csv(tmp_path / "plan.csv")
    assert set(table["method"].str.split(",").str[0]) == {"Importance", "GTBAOAB", "DADMMS"}
    assert (tmp_path / "plan.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--only", "GTBOAB"], "unknown method 'GTBOAB', did you mean 'GTBAOAB'?"),
        (["--table", "nowhere/plan.csv"], "there is no folder nowhere to write plan.csv to"),
        (["--cost", "byte_sent"], "unknown cost 'byte_sent', did you mean 'bytes_sent'?"),
        (["--tolerance", "-1"], "tolerance must be"),
    ],
)
def test_a_mistake_in_a_plan_is_one_line(options, complaint):
    example = Path(__file__).parents[1] / "examples" / "hospitals" / "config.toml"
    result = CliRunner().invoke(app, ["plan", str(example), *options])
    assert result.exit_code == 1 and complaint in " ".join(result.stderr.split())


def test_a_file_without_a_method_runs_what_accord_chooses(tmp_path):
    folder = tmp_path / "hospitals"
    shutil.copytree(Path(__file__).parents[1] / "examples" / "hospitals", folder)
    config = folder / "config.toml"
    text = config.read_text()
    config.write_text(text[: text.index("[run]")] + '[run]\ndraws = 400\noutput = "out"\n')
    result = CliRunner().invoke(app, ["run", str(config), "--quiet"])
    assert result.exit_code == 0, result.stderr
    assert accord.Run.load(folder / "out" / "run.nc").settings["chosen"] == "Importance is certified"


@pytest.mark.slow
def test_lines_of_a_plot_differ_and_their_names_do_not_overlap():
    found = accord.plan(unequal_shards(2), NETWORKS["ring"])
    ax = found.plot()
    ax.figure.canvas.draw()
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in ax.get_lines()}
    assert len(looks) == len(ax.get_lines()) > 8
    walking = {trial.label for trial in found.trials if isinstance(trial.forecast, Forecast)}
    # of an annotation without its arrow
    named = [text for text in ax.texts if text.get_text().replace("\n", " ") in walking]
    boxes = [Text.get_window_extent(text) for text in named]
    assert len(boxes) == len(walking)
    boxes.sort(key=lambda box: box.y0)
    assert all(below.y1 <= above.y0 + 1.0 for below, above in itertools.pairwise(boxes))


@pytest.mark.long
def test_an_estimate_has_seconds_memory_and_what_an_agent_sends():
    post = unequal_shards(2)
    found = accord.plan(post, NETWORKS["ring"], [accord.samplers.Importance(), GTBAOAB()], draws=500)
    best = found.estimate()
    rows = sum(8 * leaf.size for leaf in jax.tree.leaves(post.stacked().rows))
    assert best.label == "Importance" and best.seconds > 0 and best.bytes_sent == found.best.cost.bytes_sent
    assert best.memory == rows + 500 * 4 * post.dim * 3 * 8
    walks = found.estimate(found.ranked[1])
    assert walks.memory == rows + 500 * 4 * post.dim * (1 + post.num_agents) * 4
    assert str(best).startswith("Importance: ") and str(best).endswith(" sent by the busiest agent")
    with pytest.raises(ValueError, match="GTBAOAB has no forecast: "):
        found.estimate(found.best._replace(label="GTBAOAB", cost=None, trouble="it does not fit"))
