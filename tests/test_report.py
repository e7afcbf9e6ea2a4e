"""Reports of runs: values equal the run's, names are escaped, and missing sections have a reason."""

import dataclasses
import html
import re
from html.parser import HTMLParser
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import beta, binom, gamma, nbinom, norm, poisson
from scipy.stats import t as student
from typer.testing import CliRunner

import accord
from accord.base import figures
from accord.cli.commands import app
from accord.examine import reweighting
from accord.examine.agents import agents_of
from accord.examine.alone import by_points
from accord.examine.page import _ratios, outside
from accord.examine.predictive import _candidates, _labels, checked
from accord.examine.sites import by_site
from accord.results.certificate import Certificate
from accord.results.forest import of_one_size

SITES = ["north", "<script>alert('x')</script>", 'west & "east"', "$cost$"]
NAMES = ["intercept", "a<b>&c", "dose $x_1$"]


def logistic(rows=(60, 80, 100, 70), seed=0):
    rng = np.random.default_rng(seed)
    shards = []
    for count in rows:
        X = np.column_stack([np.ones(count), rng.standard_normal((count, 2))])
        shards.append((X, (rng.random(count) < 1 / (1 + np.exp(-X @ [0.3, -0.6, 1.1]))).astype(float)))
    return accord.models.logistic_regression(shards, 4.0, names=NAMES)


RING = accord.Network.ring(4)


@pytest.fixture(scope="module")
def run():
    return accord.sample(logistic(), RING, draws=500, chains=2, seed=0)


@pytest.fixture(scope="module")
def page(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "study.html"
    return accord.report(run, path, logistic(), RING, sites=SITES).read_text()


@pytest.fixture(scope="module")
def walked():
    return walk(1.0)


def walk(temperature):
    sampler = accord.samplers.DESGLD(0.001, temperature=temperature)
    return accord.sample(
        logistic(), accord.Network.star(4), accord.Rounds(sampler, burn_in=5), draws=30, chains=2, seed=0
    )


class Reader(HTMLParser):
    """Checks that tags close in order, and keeps texts, ids and attributes."""

    VOID = ("meta", "path", "use", "rect", "line", "circle", "img", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.ids, self.attributes, self.tags = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.texts))


def test_the_page_is_whole_and_loads_nothing(page):
    read = Reader(page)
    assert read.open == [] and len(page) < 3_000_000
    assert "http" not in page and "url(" not in page.replace("url(#", "")
    loading = [(tag, name, value) for tag, name, value in read.attributes if name in ("src", "href", "data", "srcset")]
    assert all(value.startswith("#") for _, _, value in loading)
    assert not {"script", "link", "iframe", "object", "img"} & set(read.tags)
    # drawings share a page: no id is there twice, and each that is named is there
    assert len(read.ids) == len(set(read.ids))
    named = {value[1:] for _, name, value in loading} | set(re.findall(r"url\(#([^)]+)\)", page))
    assert named <= set(read.ids)


def test_names_are_escaped(page):
    assert "<script" not in page and "<b>&c" not in page
    text = Reader(page).text
    for name in [*SITES, *NAMES]:
        assert name in text
    # plots do not parse a dollar as a formula
    labels = [html.unescape(label) for label in re.findall(r"<text[^>]*>(.*?)</text>", page)]
    assert {"a<b>&c", "dose $x_1$", "$cost$"} <= set(labels)


def test_texts_of_a_file_are_escaped(run, tmp_path):
    """Names, settings, certificate and model of a file are untrusted."""
    bad = """--><script>alert('x')</script>"'></svg><img src=x onerror=y>"""
    names = tuple(f"{bad}{d}" for d in range(3))
    info = dataclasses.replace(
        run.info, model=bad, formula=bad, priors=((bad, bad),), sites=(bad, "b", "c", "d"), ratio=bad, ratios=names[1:]
    )
    checks = tuple(check._replace(name=bad, text=bad, holds=False) for check in run.certificate.checks)
    own = {"method": bad, "network": bad, "chosen": bad, bad: bad}
    dataclasses.replace(
        run, names=names, info=info, certificate=Certificate(checks), settings={**run.settings, **own}
    ).save(tmp_path / "run.nc")
    loaded = accord.Run.load(tmp_path / "run.nc")
    for text in (accord.report(loaded, tmp_path / "bad.html").read_text(), loaded._repr_html_()):
        read = Reader(text)
        assert read.open == [] and not {"script", "img"} & set(read.tags)
        assert not [name for _, name, _ in read.attributes if name.startswith("on")]
        assert "alert('x')" in read.text


def test_every_plot_has_an_alternative_text(page):
    drawings = re.findall(r"<svg[^>]*>", page)
    alts = [re.search(r'aria-label="([^"]+)"', drawing)[1] for drawing in drawings]
    assert len(drawings) > 8 and len(set(alts)) == len(alts) and all('role="img"' in drawing for drawing in drawings)


def test_the_verdict_comes_first_and_then_the_posterior(run, page):
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles[:4] == ["Verdict", "Posterior", "Forest plot", "Checks"]
    verdict = f"Certified: all {len(run.certificate.checks)} checks passed."
    assert Reader(page).text.index(verdict) < Reader(page).text.index("intercept")


def test_the_verdict_claims_no_more_than_was_checked(run, page, tmp_path):
    assert "They test the draws, and not whether the model fits the data." in Reader(page).text
    text = Reader(accord.report(dataclasses.replace(run, certificate=None), tmp_path / "page.html").read_text()).text
    assert "R-hat and tails raise no warning. No bias was predicted: the law of these draws is unknown." in text
    bfi = accord.samplers.combine.bfi(accord.models.gaussian(np.zeros(4), np.ones(4)), draws=500)
    assert (
        "the estimated bias of the method raise no warning"
        in Reader(accord.report(bfi, tmp_path / "bfi.html").read_text()).text
    )


def test_ratios_near_one_keep_their_digits():
    assert _ratios(1.0034, 1.0014, 1.0056) == ["1.003", "1.001", "1.006"]
    assert _ratios(0.998, 0.97, 1.02) == ["0.998", "0.970", "1.02"] and _ratios(1.5, 0.8, 2.9)[0] == "1.50"
    assert _ratios(1.0, 1.0, 1.0) == ["1.00"] * 3 and _ratios(0.0, 0.0, 1.0)[0] == "0.00"


def test_a_failed_check_is_the_verdict(run, tmp_path):
    first, *others = run.certificate.checks
    failed = first._replace(holds=False, text="too few of them")
    doubted = dataclasses.replace(run, certificate=Certificate((failed, *others)))
    text = Reader(accord.report(doubted, tmp_path / "doubted.html").read_text()).text
    # the verdict has the reason, so no warning repeats it
    assert "Not certified: too few of them." in text and "Warnings" not in text and "failed effective draws" in text


def test_axes_have_labels(page):
    for drawing in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        alt = html.unescape(re.search(r'aria-label="([^"]+)"', drawing)[1])
        labels = set(re.findall(r"<text[^>]*>(.*?)</text>", drawing))
        if not alt.startswith("Network"):
            expected = {"parameter", "site", "density", "value", "draws", "rows", "weight (mean 1)"}
            assert labels & expected and labels & {"value", "draw", "rank", "response", "points, heaviest first"}, alt


def test_the_style_is_for_paper_and_narrow_screens(page):
    style = page[page.index("<style>") : page.index("</style>")]
    paper = style[style.index("@media print") :]
    assert "size: A4" in style and "prefers-color-scheme: dark" in style
    assert "figure, svg, tr, li, .verdict { break-inside: avoid; }" in paper and "h1, h2, h3, dt { break-after" in paper
    # every table scrolls in a box
    assert page.count("<table>") == page.count('<div class="wide"><table>') and ".wide { overflow-x: auto; }" in style


def test_the_report_has_the_values_of_the_run(run, page):
    text = Reader(page).text
    summary, ratios, loo = run.table(), run.odds_ratios("model"), accord.loo(run, logistic(), RING)
    for name in NAMES:
        line = summary["average"].loc[name]
        assert f"{name} {line['mean']:.2f} {line['sd']:.2f} {line['5%']:.2f} {line['95%']:.2f}" in text
    for name in NAMES[1:]:
        line, own = ratios.loc[name], f"{summary['average'].loc[name, 'rhat']:.3f}"
        # beside the coefficient
        assert f"{own} {line['odds ratio']:#.3g} {line['5%']:#.3g} {line['95%']:#.3g}" in text
    value, error = run.log_evidence
    assert f"Log evidence: {value:.2f}, standard error {error:.2g}" in text
    assert f"elpd (expected log predictive density) {loo.elpd:.1f} {loo.se:.1f}" in text
    assert f"{run.traffic.sums:,}" in text and "together 310" in text
    for check in run.certificate.checks:
        assert re.sub(r"\s+", " ", check.text) in text


@pytest.mark.long
def test_missing_sections_have_a_reason(walked, run, tmp_path):
    text = Reader(accord.report(walked, tmp_path / "walked.html", logistic(), accord.Network.star(4)).read_text()).text
    assert "Not certified: DESGLD has no certificate." in text and "No certificate: only sum-based methods" in text
    assert "No evidence: log_evidence needs the weights of Importance(), and DESGLD has none" in text
    assert "No weights: DESGLD draws without weights." in text
    assert "Each site left out: not known." in text
    # the verdict comes before the warnings
    count = len(walked.warnings())
    assert text.index(f"{count} warnings below: fix them before") < text.index(walked.warnings()[0][:60])
    run.save(tmp_path / "run.nc")
    loaded = accord.Run.load(tmp_path / "run.nc")
    assert loaded.info == run.info
    text = Reader(accord.report(loaded, tmp_path / "loaded.html").read_text()).text
    assert text.count("Not computed: this report was made without the posterior and the network") == 1
    assert "Log evidence" in text and "Odds ratio:" in text


def test_a_run_from_a_file_has_the_same_report(run, page, tmp_path):
    run.save(tmp_path / "run.nc")
    path = accord.report(accord.Run.load(tmp_path / "run.nc"), tmp_path / "loaded.html", logistic(), RING, sites=SITES)
    assert Reader(path.read_text()).text == Reader(page).text


def test_a_report_needs_the_posterior_of_the_run(run, tmp_path):
    with pytest.raises(ValueError, match="needs the posterior and the network: pass both or neither"):
        accord.report(run, tmp_path / "page.html", logistic())
    with pytest.raises(ValueError, match="the posterior is not the run's posterior"):
        accord.report(run, tmp_path / "page.html", logistic(seed=1), RING)
    with pytest.raises(ValueError, match="the path of the report, .*, is a folder: name a file in it"):
        accord.report(run, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_reason_why_a_site_cannot_be_left_out_has_its_name(run, monkeypatch):
    monkeypatch.setattr(reweighting, "LARGEST_K", -np.inf)
    assert "leaving out agent 2 changes" in accord.leave_each_out(run, logistic(), RING)[2]
    with agents_of(run, logistic(), RING, "local") as agents:
        why = by_site(run, agents, tuple(SITES)).without[2]
    assert why.startswith(f"leaving out {SITES[2]} changes") and why.endswith(f"without {SITES[2]}")


def test_a_report_without_the_posterior_queries_no_agent(run, tmp_path, monkeypatch):
    for name in ("each", "totals"):
        monkeypatch.setattr(accord.Posterior, name, lambda *_, **__: pytest.fail("an agent was queried"))
    text = Reader(accord.report(run, tmp_path / "quiet.html").read_text()).text
    assert text.count("so no agent was queried") == 1 and "the sites sent more messages" not in text
    # sections without content have no heading
    assert "Log evidence" in text and "Site by site" not in text and "Beside a meta-analysis" not in text


def test_the_glossary_explains_the_columns_of_the_meta_analysis(page):
    text = Reader(page).text
    assert "one shot (BFI)" in text.partition("Glossary")[2] and "tau standard deviation between" in text


@pytest.mark.parametrize("temperature, words", [(0.0, "these are no draws"), (0.5, "at temperature 0.5")])
@pytest.mark.long_from(1)
def test_other_temperatures_are_no_posterior(temperature, words, tmp_path):
    text = Reader(accord.report(walk(temperature), tmp_path / "cold.html").read_text()).text
    assert "below: fix " in text and words in text


def test_a_site_alone_is_the_posterior_of_its_data(run):
    post = logistic()
    found = accord.alone(run, post, RING)
    assert [one.agent for one in found] == [0, 1, 2, 3] and not any(one.why for one in found)
    own = accord.models.logistic_regression([post.shards[2]], 4.0, names=NAMES)
    mode = accord.sample(own, accord.Network.ring(1), draws=1000, chains=2, seed=1)
    # Monte Carlo errors of some 1000 effective draws each
    np.testing.assert_allclose(found[2].points.mean, mode.points.mean, atol=0.12 * mode.points.sd.max())
    np.testing.assert_allclose(found[2].points.sd, mode.points.sd, rtol=0.1)
    np.testing.assert_allclose(found[2].points.log_evidence[0], mode.log_evidence[0], atol=0.1)


def test_an_improper_posterior_of_a_site_is_unreliable():
    def flat(positions):
        """Log density that is unbounded in the first parameter."""
        return np.square(positions[..., 0]) - np.square(positions[..., 1])

    (one,) = by_points(np.random.default_rng(0).standard_normal((500, 2)), flat, 1, 0)
    assert one.why.startswith("Reweighting failed")


@pytest.mark.parametrize(("dim", "apart", "two"), [(1, 40.0, True), (2, 30.0, True), (1, 0.0, False), (3, 0.0, False)])
def test_a_site_with_a_second_mode_is_unreliable(dim, apart, two):
    def modes(positions):
        """Two normals of equal weight, or one. The draws of all data are from the first normal."""
        near, far = (-0.5 * ((positions - place) ** 2).sum(axis=-1) for place in (0.0, apart))
        return np.logaddexp(near, far)

    (one,) = by_points(np.random.default_rng(0).standard_normal((500, dim)), modes, 1, 0)
    assert one.why.endswith("it has more than one mode.") if two else one.why == ""
    if not two:
        np.testing.assert_allclose(one.points.sd, 1.0, rtol=0.05)


def test_sites_are_plotted_with_their_intervals(run):
    mpl.use("agg")
    ax = run.plot_forest()
    assert [label.get_text() for label in ax.get_yticklabels()] == NAMES
    middle = next(line for line in ax.lines if line.get_marker() == "o").get_xdata()
    np.testing.assert_allclose(middle, run.table()["average", "mean"], rtol=1e-6)
    given = run, logistic(), RING
    ax = accord.plot_sites(*given, NAMES[1])
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["all together", "the site alone", "without the site"]
    marks = {line.get_marker(): [] for line in ax.lines}
    for line in ax.lines:
        marks[line.get_marker()].append(float(np.mean(line.get_xdata())))
    np.testing.assert_allclose(marks["s"], [accord.leave_out(*given, agent).mean[1] for agent in range(4)])
    np.testing.assert_allclose(marks["o"], [one.points.mean[1] for one in accord.alone(*given)])
    with pytest.raises(ValueError, match="unknown parameter 'dosis'"):
        accord.plot_sites(*given, "dosis")


def test_parameters_of_similar_magnitude_share_an_axis():
    assert of_one_size(np.array([0.7, 0.001, 0.4, 30.0, 0.002]), 30) == [[0, 2], [1, 4], [3]]
    assert of_one_size(np.ones(5), 2) == [[0, 1], [2, 3], [4]] and of_one_size(np.zeros(2), 9) == [[0, 1]]


def test_ratios_have_the_requested_units(run):
    own = run.odds_ratios("model")
    low, high = np.quantile(run.average[..., 2].astype(float), [0.05, 0.95])
    np.testing.assert_allclose(own.loc[NAMES[2], ["5%", "95%"]].astype(float), np.exp([low, high]))
    with pytest.warns(UserWarning, match="for one unit of the columns passed to the model"):
        assert list(own.index) == NAMES[1:] and own.equals(run.ratios()) and own.equals(run.odds_ratios())
    np.testing.assert_allclose(run.ratios({NAMES[2]: 10.0})["odds ratio"], own["odds ratio"] ** [1.0, 10.0])
    settings = {**run.settings, "sds": {NAMES[1]: 4.0}}
    kept = accord.Run(**{**{f: getattr(run, f) for f in run.__dataclass_fields__}, "settings": settings})
    np.testing.assert_allclose(kept.ratios()["odds ratio"], own["odds ratio"] ** [0.25, 1.0])
    assert kept.ratios("model").equals(own)
    for wrong, message in [("orignal", "unknown units"), ({"dosis": 1.0}, "unknown coefficient"), ({NAMES[1]: 0}, "0")]:
        with pytest.raises(ValueError, match=message):
            run.ratios(wrong)
    with pytest.raises(ValueError, match="this run has no hazard ratios.* is the odds ratio"):
        run.hazard_ratios()


FORMULAS = {
    "poisson": ("rate ratio", "y ~ x"),
    "gamma": ("ratio of means", "z ~ x"),
    "cox": ("hazard ratio", "surv(z, b) ~ x"),
    "normal": ("", "z ~ x"),
}


@pytest.mark.parametrize("family", FORMULAS)
def test_families_name_their_ratios(family):
    rng = np.random.default_rng(0)
    tables = [
        {"x": rng.normal(size=60), "y": rng.poisson(2, 60), "z": rng.gamma(2, size=60), "b": rng.integers(0, 2, 60)}
        for _ in range(3)
    ]
    ratio, formula = FORMULAS[family]
    post = accord.models.glm(tables, formula, family)
    assert (post.info.ratio, post.info.ratios) == (ratio, ("x",) if ratio else ())
    assert formula in html.unescape(post._repr_html_())
    assert (post.info.predictive is None) == (family == "cox")


# --- predictive checks ---


def table_post(family, formula, seed=0, rows=(200, 300, 250), **columns):
    rng = np.random.default_rng(seed)
    tables = [{"x": rng.normal(size=n), **{name: make(rng, n) for name, make in columns.items()}} for n in rows]
    return accord.models.glm(tables, formula, family), tables


def check_of(post, draws=60, floor=None):
    positions = np.repeat(post.mode()[None], draws, axis=0)
    with jax.enable_x64(True):
        totals = post.totals(accord.Network.ring(post.num_agents))
        return checked(post.info.predictive, totals, positions, floor or post.info.floor, 0)


@pytest.mark.long
def test_counts_of_a_check_equal_the_counts_of_the_rows():
    post, tables = table_post("poisson", "y ~ x", y=lambda rng, n: rng.poisson(3.0, n))
    check = check_of(post)
    y = np.concatenate([table["y"] for table in tables])
    assert (check.sites, check.of_sites, check.rows, check.observed.sum()) == (3, 3, 750, 750)
    assert (check.replicated.sum(axis=1) == 750).all()
    first = check.labels[0]
    most = int(first.split(" to ")[-1])
    assert check.observed[0] == (y <= most).sum()
    # replicated counts scatter about the model's, which is nearly Poisson with the mean of all rows
    assert abs(check.replicated[:, 0].mean() - check.observed[0]) < 60 and check.replicated[:, 0].std() > 3


@pytest.mark.long
def test_a_check_flags_a_wrong_model_only():
    right, _ = table_post("poisson", "y ~ x", y=lambda rng, n: rng.poisson(3.0, n))
    wrong, _ = table_post("poisson", "y ~ x", y=lambda rng, n: rng.poisson(3.0, n) * rng.integers(0, 3, n))
    assert outside(check_of(right)).size == 0 and outside(check_of(wrong)).size > 0


@pytest.mark.long
def test_no_small_count_leaves_a_site():
    # the second site has two events
    post, _ = table_post("bernoulli", "y ~ x", y=lambda rng, n: np.arange(n) % (2 if n != 300 else 150) == 0)
    check = check_of(post)
    assert (check.sites, check.of_sites, check.rows) == (2, 3, 450) and check.observed.tolist() == [225, 225]
    assert (check.replicated.sum(axis=1) == 450).all()
    none, _ = table_post("bernoulli", "y ~ x", y=lambda rng, n: np.arange(n) < 2)
    with pytest.raises(ValueError, match="every site has a bin with some rows and fewer than 3"):
        check_of(none)


ONE = np.ones(20_000)
# Linear predictor, parameters, rows and law of the responses of a family.
LAWS = {
    "Bernoulli": (0.4, {}, {}, binom(1, expit(0.4))),
    "Binomial": (0.4, {}, {"trials": 7.0 * ONE}, binom(7, expit(0.4))),
    "Poisson": (1.1, {}, {}, poisson(np.exp(1.1))),
    "NegativeBinomial": (1.1, {"concentration": 2.5}, {}, nbinom(2.5, 2.5 / (2.5 + np.exp(1.1)))),
    "Normal": (1.1, {"sigma": 0.7}, {}, norm(1.1, 0.7)),
    "Student": (1.1, {"sigma": 0.7, "nu": 6.0}, {}, student(6.0, 1.1, 0.7)),
    "Gamma": (1.1, {"shape": 2.5}, {}, gamma(2.5, scale=np.exp(1.1) / 2.5)),
    "Beta": (0.4, {"precision": 5.0}, {}, beta(5.0 * expit(0.4), 5.0 * expit(-0.4))),
}


@pytest.mark.parametrize("name", LAWS)
def test_responses_are_drawn_from_the_family(name):
    eta, params, rows, law = LAWS[name]
    family = getattr(accord.models.families, name)()
    params = {key: jnp.asarray(value) for key, value in params.items()}
    y = np.asarray(family.replicated(params, jnp.asarray(eta * ONE), rows, jax.random.key(0)), float)
    # shares below three quantiles, within five of their standard errors
    for quantile in law.ppf([0.2, 0.5, 0.8]):
        share = law.cdf(quantile)
        assert abs((y <= quantile).mean() - share) <= 5.0 * np.sqrt(share * (1.0 - share) / y.size)
    assert y.shape == ONE.shape and family.replicates


def test_classes_are_drawn_from_the_family():
    shares = np.array([0.2, 0.5, 0.3])
    ordinal = accord.models.families.Ordinal(levels=(1, 2, 3))
    cutpoints = {"cutpoints": jnp.asarray(logit(np.cumsum(shares)[:-1]) + 0.7)}
    categorical = accord.models.families.Categorical(levels=("a", "b", "c"))
    log_odds = jnp.broadcast_to(jnp.asarray(np.log(shares[1:] / shares[0])), (ONE.size, 2))
    for y in (
        ordinal.replicated(cutpoints, jnp.asarray(0.7 * ONE), {}, jax.random.key(0)),
        categorical.replicated({}, log_odds, {}, jax.random.key(0)),
    ):
        np.testing.assert_allclose(np.bincount(y, minlength=3) / ONE.size, shares, atol=0.018)


def test_bins_are_ascending_and_named():
    for whole in (True, False):
        for edges in _candidates(3.0, 1.5, whole):
            assert (np.diff(edges) > 0).all() and len(_labels(edges, whole)) == len(edges) + 1
    assert _labels(np.array([0.5, 1.5, 4.5]), True) == ("0", "1", "2 to 4", "5 or more")
    np.testing.assert_allclose(_candidates(0.0, 1.0, False)[-1], norm.ppf([0.5]), atol=1e-12)


# --- cards, plots, the command ---


def test_cards_of_notebooks_are_quick_and_escaped(run):
    card = run._repr_html_()
    assert Reader(card).open == [] and "Certified." in card and "a&lt;b&gt;&amp;c" in card
    ring = accord.Network.ring(5)
    assert Reader(ring._repr_html_()).tags.count("circle") == 5 and ring._repr_html_().count("<line") == 5
    assert "<circle" not in accord.Network.empty(1000)._repr_html_()
    named = accord.Network(2, [(0, 1)], labels=("<b>", "south"))
    assert "<b>" not in named._repr_html_()
    # a card does not read data
    lazy = accord.models.logistic_regression([lambda: pytest.fail("read")] * 2, names=["x"])
    assert "logistic regression" in lazy._repr_html_()


@pytest.mark.long
def test_a_plan_has_a_card():
    plan = accord.plan(
        logistic(),
        accord.Network.ring(4),
        [accord.samplers.Replicated("mala", 0.1)],
        draws=50,
        chains=2,
        progress=False,
    )
    assert Reader(plan._repr_html_()).open == [] and "Replicated" in plan._repr_html_()


def test_colours_of_plots_follow_the_page_and_texts_stay():
    def draw(ax):
        ax.plot([0, 1], [0, 1.23456], color=figures.COLORS["blue"])
        ax.set_xlabel('#0072b2 id="x" 1.23456 <b>')

    drawing = figures.inline(draw, "one", 3.0, 2.0)
    assert "stroke: var(--blue)" in drawing and "1.23456" in re.sub(r"<[^>]*>", "", drawing)
    assert '#0072b2 id="x" 1.23456 &lt;b&gt;' in drawing and "DejaVu" not in drawing
    other = figures.inline(draw, "two", 3.0, 2.0)
    assert not set(Reader(drawing).ids) & set(Reader(other).ids)
    # the same each time
    assert drawing == figures.inline(draw, "one", 3.0, 2.0)


@pytest.mark.parametrize("draws, chains", [(1, 1), (2, 2)])
@pytest.mark.long
def test_a_run_with_one_or_two_draws_has_a_report(draws, chains, tmp_path):
    few = accord.sample(
        logistic(),
        accord.Network.star(4),
        accord.Rounds(accord.samplers.DESGLD(0.001), burn_in=0),
        draws=draws,
        chains=chains,
        seed=0,
    )
    text = Reader(accord.report(few, tmp_path / "few.html").read_text()).text
    assert "too few to estimate ESS and R-hat" in text


@pytest.mark.long
def test_single_sites_of_masked_runs_are_not_queried(tmp_path, monkeypatch):
    masked = accord.sample(
        logistic(), accord.Network.star(4), draws=300, chains=2, seed=0, engine=accord.engines.Local(masks=True)
    )
    post = logistic()
    monkeypatch.setattr(type(post), "each", lambda *_, **__: pytest.fail("a single site was queried"))
    text = Reader(accord.report(masked, tmp_path / "masked.html", post, accord.Network.star(4)).read_text()).text
    assert text.count("No numbers of single sites: the sums of this run are masked") == 2
    assert "310 rows of 4 sites" in text


@pytest.mark.long
def test_the_command_replaces_no_foreign_report(tmp_path):
    folder = Path(__file__).parents[1] / "examples" / "hospitals"
    config = (folder / "config.toml").read_text().replace("hospital-*.csv", str(folder / "hospital-*.csv"))
    config = config.replace("draws = 1000", "draws = 200").replace('output = "results"', 'output = "out"')
    (tmp_path / "job.toml").write_text(config)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.html").write_text("mine")
    command = ["run", str(tmp_path / "job.toml"), "--report"]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code != 0 and (tmp_path / "out" / "report.html").read_text() == "mine"
    (tmp_path / "out" / "report.html").unlink()
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert f"wrote {tmp_path / 'out' / 'report.html'}" in result.stdout
    text = Reader((tmp_path / "out" / "report.html").read_text()).text
    loaded = accord.Run.load(tmp_path / "out" / "run.nc")
    # per year of age, and not per standard deviation
    ratio = np.exp(np.median(loaded.average[..., 1]) / loaded.settings["sds"]["age"])
    assert f" {ratio:#.3g} " in text and "hospital-3" in text and 9.0 < loaded.settings["sds"]["age"] < 12.0
    # a report made from the file of the finished run queries the sites too
    (tmp_path / "out" / "report.html").unlink()
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0 and "finished before" in result.stdout
    again = Reader((tmp_path / "out" / "report.html").read_text()).text
    assert "the sites sent more messages" in again and again == text


@pytest.mark.long
def test_a_check_that_leaves_out_sites_has_no_conclusion(tmp_path):
    """Counts of sites selected for large counts are larger than counts drawn from a true model."""
    rng, count = np.random.default_rng(0), 60
    frames = {f"s{k}": {"x": rng.normal(size=20), "y": (rng.random(20) < 0.12).astype(float)} for k in range(count)}
    post = accord.models.glm(accord.data.as_study(frames), "y ~ x", "bernoulli")
    run = accord.sample(post, accord.Network.star(count), draws=500)
    check = accord.predictive_check(run, post, accord.Network.star(count))
    assert 10 < check.sites < 50 and check.of_sites == count and outside(check).size > 0
    accord.report(run, tmp_path / "page.html", post, accord.Network.star(count))
    text = (tmp_path / "page.html").read_text()
    assert "no evidence against the model" in text and "does not explain it" not in text


@pytest.mark.parametrize("sites", ["abc", ["a", "a", "b"]])
def test_names_of_sites_must_differ(sites, tmp_path):
    run = accord.sample(accord.models.gaussian([-1.0, 0.0, 1.0], [1.0] * 3), accord.Network.ring(3), draws=200)
    with pytest.raises(ValueError, match="sites must be 3 different names"):
        accord.report(run, tmp_path / "page.html", sites=sites)
