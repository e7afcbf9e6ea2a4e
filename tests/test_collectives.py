"""Remote sites agree on the same summaries as local ones, and send no more than necessary."""

import warnings
from contextlib import contextmanager
from functools import reduce

import jax
import numpy as np
import pytest

import accord
from accord.base.errors import DataError
from accord.data.collectives import Pending, ReplayCollectives, added
from accord.models import families, glm, priors
from accord.samplers.by_sums.integration import _remedy


class Post:
    """Asks every site in turn, and records the answers."""

    def __init__(self):
        self.said = []

    @contextmanager
    def asking(self, agents):
        def ask(work, sites, answers):
            found = []
            for place in range(agents):
                try:
                    work(ReplayCollectives(sites, (place,), answers))
                except Pending as stop:
                    found += stop.question.own
                    kind = stop.question.kind
            self.said.append((kind, found))
            return found

        yield ask


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    rng = np.random.default_rng(3)
    paths = []
    for place, rows in enumerate((70, 90, 80)):
        age, sex = rng.normal(50 + place, 9, rows).round(2), rng.choice(["f", "m", "other"], rows, p=[0.4, 0.4, 0.2])
        lines = ["age,sex,ward,falls,died,days,weight,grade"]
        for row in range(rows):
            cells = [age[row], sex[row], f"w{row % 4}", rng.poisson(2.0), rng.integers(0, 2), rng.gamma(2.0, 30.0)]
            lines.append(",".join(map(str, [*cells, rng.integers(1, 4), rng.integers(0, 3)])))
        path = folder / f"site-{place}.csv"
        path.write_text("\n".join(lines) + "\n")
        paths.append(path)
    return paths


MODELS = {
    "poisson": {"formula": "falls ~ age + sex", "family": "poisson"},
    "scale": {"formula": "falls ~ scale(age):sex + center(days)", "family": "negative_binomial"},
    "weights": {"formula": "died ~ age", "family": "bernoulli", "weights": "weight"},
    "exposure": {"formula": "falls ~ age", "family": "poisson", "exposure": "days"},
    "effects": {"formula": "died ~ sex + (1 | site:ward)", "family": "bernoulli"},
    "classes": {"formula": "grade ~ age", "family": "categorical"},
    "intervals": {"formula": "surv(days, died) ~ age", "family": "piecewise_exponential"},
    "cox": {"formula": "surv(days, died) ~ age + sex", "family": "cox"},
    "flat": {"formula": "falls ~ age + sex", "family": "poisson", "priors": {"coefficients": priors.Flat()}},
    "ordered": {"formula": "grade ~ age", "family": families.Ordinal((0, 1, 2))},
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.long_from(3)
def test_a_model_of_remote_sites_equals_the_local_one(files, name):
    model, constant = MODELS[name], ["weight"]
    named = [column for column in (model.get("weights"), model.get("exposure")) if column]
    study = accord.data.study(files, formula=[model["formula"], *named], constant=constant)
    whole = glm(study, **model)
    afar = glm(accord.data.study_at_sites(files, Post(), constant=constant), **model)
    assert type(afar) is type(whole)
    assert (afar.names, afar.formula, repr(afar.priors)) == (whole.names, whole.formula, repr(whole.priors))
    assert afar.family == whole.family
    np.testing.assert_allclose(afar.init, whole.init, rtol=1e-12)
    x = whole.init + np.random.default_rng(1).normal(size=whole.dim)
    with jax.enable_x64(True):
        prior = [float(jax.jit(type(post.potential).log_prior_at)(post.potential, x)) for post in (afar, whole)]
    assert prior[0] == pytest.approx(prior[1], rel=1e-12)
    # each site reads its own file
    for mine, theirs in zip(afar.shards, whole.shards, strict=True):
        assert mine.keys() == theirs.keys()
        for column in theirs:
            np.testing.assert_allclose(mine[column], theirs[column], rtol=1e-12, atol=1e-12)


def numbers_in(said):
    return np.concatenate([np.ravel(value).astype(float) for value in jax.tree.leaves(said)])


def test_answers_contain_no_cells(files):
    post = Post()
    glm(accord.data.study_at_sites(files, post), "falls ~ age + sex + days", "poisson")
    sums = numbers_in([own for kind, own in post.said if kind == "total"])
    table = accord.data.study(files, formula="falls ~ age + sex + days").frames[0]
    cells = np.concatenate([table["age"], table["days"]])
    # a whole number may be a count
    cells = cells[cells != cells.round()]
    assert len(sums) > 100 and not np.isin(cells, sums).any()
    # gathered values are names, kinds and summaries under the floors
    said = [leaf for kind, own in post.said if kind == "gathered" for leaf in jax.tree.leaves(own)]
    assert not np.isin(cells, [float(leaf) for leaf in said if not isinstance(leaf, str)]).any()


def test_a_site_refuses_before_it_sends_counts(files, tmp_path):
    few = tmp_path / "few.csv"
    few.write_text("\n".join(files[0].read_text().splitlines()[:6]) + "\n")
    post = Post()
    with pytest.raises(DataError, match=r"few .*refused, there are fewer than 10 rows"):
        glm(accord.data.study_at_sites([*files[:2], few], post), "falls ~ age", "poisson")
    assert {kind for kind, _ in post.said} == {"gathered", "required"}


def test_a_site_refuses_a_column_of_few_rows_before_its_mean_is_summed(files):
    oldest = float(accord.data.study(files, formula="falls ~ age").frames[1]["age"].max())
    post, formula = Post(), f"falls ~ center(I((age == {oldest}) * days))"
    with pytest.raises(DataError, match=r"^site-1: refused, in center\(.*fewer than 3 rows differ from the most"):
        glm(accord.data.study_at_sites(files, post), formula, "poisson")
    # all sites have the same number of answers, and the last one of one site has refusals
    assert post.said[-1][0] == "required" and [len(own) for own in post.said[-1][1]] == [0, 1, 0]
    assert not [own for kind, found in post.said if kind == "total" for own in found if "sum 0" in own]


def test_summaries_of_a_column_of_few_rows_are_not_summed(files, tmp_path):
    paths = []
    for place, path in enumerate(files):
        header, *lines = path.read_text().splitlines()
        lone = [f"{line},{7.25 * (place == 1 and row == 4)}" for row, line in enumerate(lines)]
        paths.append(tmp_path / path.name)
        paths[-1].write_text("\n".join([f"{header},lone", *lone]) + "\n")
    post = Post()
    with pytest.raises(DataError, match=r"site-1: refused, in lone, fewer than 3 rows differ"):
        glm(accord.data.study_at_sites(paths, post), "falls ~ age + lone", "poisson")
    names = {name for kind, found in post.said if kind == "total" for own in found for name in own}
    assert "age" in names and "lone" not in names


def test_one_error_lists_all_problems(files, tmp_path):
    broken = []
    for place, old, new in ((0, "\n", ",x\n"), (1, ",f,", ",,"), (2, "age", "years")):
        path = tmp_path / f"site-{place}.csv"
        path.write_text(files[place].read_text().replace(old, new, 1))
        broken.append(path)
    broken[0].write_text(files[0].read_text().replace("w1", "", 1))
    with pytest.raises(DataError) as error:
        glm(accord.data.study_at_sites(broken, Post()), "falls ~ age + sex + (1 | site:ward)", "poisson")
    for part in ("3 problems", "site-0 (site-0.csv): column 'ward'", "site-1 (site-1.csv): column 'sex'", "'age'"):
        assert part in str(error.value)


def test_remote_sites_report_mixed_factors_amounts_and_titles(tmp_path):
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    levels = [["10", "11", "12"], ["<=20", "20-50", ">50"]], [["5 kg", "6 kg", "7 kg"]] * 2
    said = "column 'size' holds numbers at a and texts at b", "numbers with a sign or a unit"
    for by_site, message in zip(levels, said, strict=True):
        for path, own in zip(paths, by_site, strict=True):
            path.write_text("size,died\n" + "".join(f"{own[k % 3]},{k % 2}\n" for k in range(24)))
        with pytest.raises(DataError, match=message):
            glm(accord.data.study_at_sites(paths, Post()), "died ~ C(size)" if "holds" in message else "died ~ size")
    paths[0].write_text("An export,\n" + paths[0].read_text())
    with pytest.raises(DataError, match="Write header = 2"):
        glm(accord.data.study_at_sites(paths, Post()), "died ~ size")


def test_files_that_cannot_be_read_are_in_one_error(files, tmp_path):
    broken = [files[0]]
    for path in files[1:]:
        broken.append(tmp_path / path.name)
        broken[-1].write_text(path.read_text().replace(",", ";"))
    with pytest.raises(DataError, match="2 problems") as error:
        glm(accord.data.study_at_sites([*broken[:2], tmp_path / "none.csv"], Post()), "falls ~ age", "poisson")
    assert "site-1 (site-1.csv)" in str(error.value) and "none (none.csv)" in str(error.value)
    with pytest.raises(DataError, match="2 problems"):
        glm(accord.data.study_at_sites(broken, Post()), "falls ~ age", "poisson")


@pytest.mark.parametrize("missing", ["drop", "indicator"])
def test_missing_cells_of_remote_sites_are_warned_of_once(files, tmp_path, missing):
    gaps = []
    for place, path in enumerate(files):
        header, *lines = path.read_text().splitlines()
        gaps.append(tmp_path / path.name)
        few = [line[line.index(",") :] if row < 4 * place else line for row, line in enumerate(lines)]
        gaps[-1].write_text("\n".join([header, *few]) + "\n")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = accord.data.study_at_sites(gaps, Post(), missing=missing)
        post = glm(table, "falls ~ age", "poisson")
    said = [str(one.message) for one in caught]
    assert len(said) == len(set(said))
    if missing == "drop":
        assert post.agreed.dropped == (0, 4, 8)
        assert "rows with a missing cell are left out: 4 at site-1, 8 at site-2" in said
    else:
        assert len([text for text in said if "age_missing" in text]) == 1


def test_groups_with_local_names_are_local_to_a_site(files):
    with pytest.raises(ValueError, match="write site:ward"):
        glm(accord.data.study_at_sites(files, Post()), "died ~ age + (1 | ward)", "bernoulli")


def test_effects_of_remote_sites_are_not_parameters(files):
    table = accord.data.study_at_sites(files, Post())
    with pytest.raises(ValueError, match="needs the rows of all sites in one process"):
        glm(table, "died ~ age + (1 | site:ward)", "bernoulli", effects="parameters")
    post = glm(table, "died ~ age + (1 | site:ward)", "bernoulli", nodes=30)
    assert post._latents.nodes == post.finely()._latents.nodes == 30
    # the certificate suggests no unsupported remedy
    assert _remedy(post, 30) == "use more nodes, glm(..., nodes=100) (nodes = 100 in [model] of a file)"


def test_invalid_arguments():
    with pytest.raises(ValueError, match="one file per agent"):
        accord.data.study_at_sites("*.csv", Post())
    with pytest.raises(ValueError, match=r"such as accord\.Silo\(\), found 'local'"):
        accord.data.study_at_sites(["a.csv"], "local")
    with pytest.raises(TypeError, match="unknown option of study_at_sites 'seperator', did you mean 'separator'"):
        accord.data.study_at_sites(["a.csv"], Post(), seperator=";")
    with pytest.raises(TypeError, match="unknown option of at_sites 'mising', did you mean 'missing'"):
        accord.data.at_sites(["a.csv"], target="y", columns=["x"], mising="drop")


def test_sums_need_the_same_names():
    assert reduce(added, [{"n": 1}, {"n": 2}]) == {"n": 3}
    with pytest.raises(KeyError):
        added({"n": 1}, {"m": 2})
