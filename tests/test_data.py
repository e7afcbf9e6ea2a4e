import pickle
import re

import numpy as np
import pytest

from accord import data

ROWS = [  # sorted by neither column
    ("north", 1.0, 30.0, 1),
    ("south", 2.5, 10.0, 0),
    ("north", -3.0, 20.0, 0),
    ("east 10", 0.5, 60.0, 1),
    ("south", 4.0, 50.0, 1),
    ("east 2", 2.0, 40.0, 0),
]


def write(path, text):
    path.write_text(text)
    return path


@pytest.fixture
def pooled(tmp_path):
    lines = [f"{site},{dose},{age},{ill}" for site, dose, age, ill in ROWS]
    return write(tmp_path / "all.csv", "\n".join(["site,dose,age,ill", *lines]) + "\n")


@pytest.fixture
def regression():
    """X and y with 200 rows, labels 0, 1, 2 in y, and many ties in X[:, 0]."""
    rng = np.random.default_rng(11)
    X = np.column_stack([rng.integers(0, 5, 200), rng.normal(size=200)]).astype(float)
    return X, rng.integers(0, 3, 200).astype(float)


def raises(message, error=ValueError):
    return pytest.raises(error, match=re.escape(message))


def matrix(files=None, *, target, columns=None, standardise=True, intercept=True, **options):
    """The matrix of a study of small files."""
    options = {"policy": data.Policy.none(), **options}
    found = data.study(files, columns=None if columns is None else [*columns, target], **options)
    return found.matrix(target, columns, standardise=standardise, intercept=intercept)


# --- sources of shards ---


def test_a_glob_makes_one_agent_per_file_in_natural_order(tmp_path):
    for number in (10, 2, 1):
        write(tmp_path / f"site{number}.csv", f"x,y\n{number},0.5\n{number + 0.25},1.5\n")
    table = matrix(str(tmp_path / "site*.csv"), target="y", standardise=False)
    assert table.sites == ("site1", "site2", "site10")
    assert table.columns == ("intercept", "x")
    for number, (X, y) in zip((1, 2, 10), table.shards, strict=True):
        assert X.dtype == y.dtype == np.float64
        np.testing.assert_array_equal(X, [[1, number], [1, number + 0.25]])
        np.testing.assert_array_equal(y, [0.5, 1.5])


def test_a_list_of_files_keeps_its_order_and_lengths_may_differ(tmp_path):
    b = write(tmp_path / "b.csv", "x,y\n1,0\n2,0\n3,1\n")
    a = write(tmp_path / "a.csv", "y,x\n1,4\n")  # the columns in another order
    table = matrix([b, str(a)], target="y", standardise=False, intercept=False, agents=2)
    assert table.sites == ("b", "a")
    np.testing.assert_array_equal(table.shards[0][0], [[1], [2], [3]])
    np.testing.assert_array_equal(table.shards[1][0], [[4]])
    np.testing.assert_array_equal(table.shards[1][1], [1])


def test_files_with_the_same_name_are_named_by_their_folders(tmp_path):
    paths = [tmp_path / folder / "data.csv" for folder in ("north", "south")]
    for path in paths:
        path.parent.mkdir()
        write(path, "x,y\n1,0\n2,1\n")
    assert matrix(tmp_path / "*" / "data.csv", target="y").sites == tuple(map(str, paths))


def test_a_site_column_names_the_agents(pooled):
    table = matrix(file=pooled, site="site", target="ill", standardise=False)
    assert table.sites == ("east 2", "east 10", "north", "south")
    assert table.columns == ("intercept", "dose", "age")
    np.testing.assert_array_equal(table.shards[2][0], [[1, 1, 30], [1, -3, 20]])
    np.testing.assert_array_equal(table.shards[3][1], [0, 1])


def test_site_names_are_text(tmp_path):
    path = write(tmp_path / "all.csv", "site,x,y\n007,1,0\nNo ,2,1\n7,3,0\n 007,4,1\n")
    table = matrix(file=path, site="site", target="y", standardise=False, intercept=False)
    assert sorted(table.sites) == ["007", "7", "No"]
    np.testing.assert_array_equal(table.shards[table.sites.index("007")][0], [[1], [4]])


def test_a_split_rule_splits_the_rows(pooled):
    # the column to sort by need not be a covariate
    table = matrix(
        file=pooled, split="by-column", column="age", agents=3, target="ill", columns=["dose"], standardise=False
    )
    assert table.sites == ("agent 0", "agent 1", "agent 2")
    assert table.columns == ("intercept", "dose")
    np.testing.assert_array_equal([X[:, 1] for X, _ in table.shards], [[2.5, -3], [1, 2], [0.5, 4]])
    np.testing.assert_array_equal([y for _, y in table.shards], [[0, 0], [1, 0], [1, 1]])


def test_a_study_splits_like_split(pooled):
    names = {"columns": ["dose", "age"], "standardise": False, "intercept": False}
    X, y = matrix(file=pooled, split="iid", agents=1, target="ill", **names).shards[0]
    for rule in ("iid", "by-label", "dirichlet(0.3)"):
        column = None if rule == "iid" else "ill"
        table = matrix(file=pooled, split=rule, agents=4, column=column, target="ill", seed=5, **names)
        for part, shard in zip(data.split(rule, X, y, 4, 5), table.shards, strict=True):
            np.testing.assert_array_equal(shard[0], X[part])
            np.testing.assert_array_equal(shard[1], y[part])


def test_standardising_is_over_all_agents_and_leaves_intercept_and_target(pooled):
    table = matrix(file=pooled, site="site", target="ill", columns=["age", "dose"])
    X = np.concatenate([X for X, _ in table.shards])
    assert table.columns == ("intercept", "age", "dose")
    np.testing.assert_array_equal(X[:, 0], 1)
    np.testing.assert_allclose(X[:, 1:].mean(axis=0), 0, atol=1e-15)
    np.testing.assert_allclose(X[:, 1:].std(axis=0), 1, rtol=1e-15)
    assert set(np.concatenate([y for _, y in table.shards])) == {0.0, 1.0}
    age = np.array([age for site, _, age, _ in ROWS if site == "north"])
    np.testing.assert_allclose(table.shards[2][0][:, 1], (age - 35) / np.std([10, 20, 30, 40, 50, 60]))


def test_booleans_and_spaces_and_an_intercept_alone(tmp_path):
    path = write(tmp_path / "a.csv", "x, y\n1, True\n1, False\n")
    table = matrix([path], target="y", columns=[])
    assert table.columns == ("intercept",)
    np.testing.assert_array_equal(table.shards[0][0], [[1], [1]])
    np.testing.assert_array_equal(table.shards[0][1], [1, 0])


def test_numbers_are_read_to_double_precision(tmp_path):
    x = np.random.default_rng(2).normal(size=50)
    path = write(tmp_path / "a.csv", "x,y\n" + "".join(f"{float(v)!r},{i}\n" for i, v in enumerate(x)))
    table = matrix([path], target="y", standardise=False, intercept=False)
    np.testing.assert_allclose(
        table.shards[0][0][:, 0], x, rtol=4 * np.finfo(float).eps
    )  # pandas' parser before 3.1 may miss the last bits


# --- split rules ---


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("agents", [1, 3, 7, 200])
@pytest.mark.parametrize(
    "rule", ["iid", "by-label", "by-column", "dirichlet(0.01)", "dirichlet(0.5)", "dirichlet(100)"]
)
def test_each_row_goes_to_one_agent_and_no_agent_is_empty(regression, rule, agents, seed):
    X, y = regression
    parts = data.split(rule, X, y, agents, seed, X[:, 0] if rule == "by-column" else None)
    assert len(parts) == agents
    assert all(len(part) > 0 and np.all(np.diff(part) > 0) for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(200))


@pytest.mark.parametrize("rule", ["iid", "by-label", "by-column", "dirichlet(0.5)"])
def test_a_split_is_a_function_of_the_seed(regression, rule):
    X, y = regression
    values = X[:, 0] if rule == "by-column" else None
    first, again, other = (data.split(rule, X, y, 7, seed, values) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("rule", ["iid", "by-label", "by-column"])
def test_parts_differ_by_one_row_at_most(regression, rule):
    X, y = regression
    sizes = [len(part) for part in data.split(rule, X, y, 7, 0, X[:, 0] if rule == "by-column" else None)]
    assert set(sizes) == {28, 29}


def test_by_label_and_by_column_are_contiguous(regression):
    X, y = regression
    for rule, key, values in [("by-label", y, None), ("by-column", X[:, 0], X[:, 0])]:
        parts = data.split(rule, X, y, 7, 0, values)
        assert all(key[a].max() <= key[b].min() for a, b in zip(parts[:-1], parts[1:], strict=True))


def test_ties_do_not_follow_the_order_of_the_file():
    y = np.zeros(1000)
    first, _ = data.split("by-label", np.zeros((1000, 1)), y, 2, 0)
    below = np.sum(first < 500)  # hypergeometric: mean 250, sd 7.9
    assert abs(below - 250) < 4 * 7.9


def test_iid_shards_look_alike_and_dirichlet_skews_them(regression):
    X, _ = regression
    y = np.repeat([0.0, 1.0], 100)

    def spread(rule):
        return np.std([y[part].mean() for seed in range(20) for part in data.split(rule, X, y, 5, seed)])

    # A part of 40 of 200 rows without replacement: sd of its mean is sqrt(0.25 / 40 * 160 / 199).
    # 100 parts give it to 7% (one sd of a sd), so 30% is four of them.
    assert spread("iid") == pytest.approx(np.sqrt(0.25 / 40 * 160 / 199), rel=0.3)
    assert spread("dirichlet(0.1)") > spread("dirichlet(1)") > spread("dirichlet(10)") > spread("dirichlet(10000)")
    assert spread("dirichlet(0.01)") > 0.4  # nearly every agent holds one label; 0.5 would be all


def test_dirichlet_proportions_have_their_variance():
    y = np.zeros(1000)
    X = np.zeros((1000, 1))
    shares = np.array([[len(part) for part in data.split("dirichlet(2)", X, y, 4, seed)] for seed in range(2000)])
    # A share is Beta(2, 6): mean 1/4, variance 12 / (64 * 9) = 1/48; excess kurtosis below 0.2.
    np.testing.assert_allclose(shares.mean(axis=0) / 1000, 0.25, atol=4 * np.sqrt(1 / 48 / 2000))
    np.testing.assert_allclose(shares.var(axis=0) / 1000**2, 1 / 48, rtol=4 * np.sqrt(2.2 / 2000))


def test_dirichlet_cuts_a_continuous_target_at_its_deciles():
    y = np.random.default_rng(0).normal(size=1000)
    parts = data.split("dirichlet(0.001)", np.zeros((1000, 1)), y, 3, 0)
    decile = np.argsort(np.argsort(y)) // 100
    counts = np.array([np.bincount(decile[part], minlength=10) for part in parts])
    assert np.all(counts.max(axis=0) >= 98)  # each decile goes to one agent whole (one row may fill an empty shard)


# --- errors ---


def test_files_or_file(pooled):
    with raises("pass either files or file, found neither"):
        matrix(target="ill")
    with raises("pass either files or file, found both"):
        matrix(str(pooled), file=pooled, target="ill")


@pytest.mark.parametrize("name", ["site", "split", "column"])
def test_arguments_that_need_file(pooled, name):
    with raises(f"{name} is an argument for file"):
        matrix([pooled], target="ill", **{name: "site"})


def test_arguments_of_file(pooled):
    with raises("file needs either site or split, to assign its rows to sites, found neither"):
        matrix(file=pooled, target="ill")
    with raises("found both"):
        matrix(file=pooled, target="ill", site="site", split="iid", agents=2)
    with raises("split 'iid' needs agents"):
        matrix(file=pooled, target="ill", split="iid", columns=["age"])
    with raises("column is an argument of split"):
        matrix(file=pooled, target="ill", site="site", column="age")
    with raises("split 'by-label' needs column"):
        matrix(file=pooled, target="ill", split="by-label", agents=2)


def test_labels_are_the_response_of_a_formula_where_no_column_is_given(pooled):
    options = {"file": pooled, "split": "by-label", "agents": 2, "policy": data.Policy(rows=1)}
    study = data.study(**options, formula="ill ~ age")
    assert [frame["ill"].tolist() for frame in study.frames] == [[0, 0, 0], [1, 1, 1]]


def test_a_split_has_floors_for_its_file_only(pooled):
    options = {"file": pooled, "split": "iid", "agents": 6, "formula": "ill ~ age"}
    assert len(data.study(**options, policy=data.Policy(rows=6)).frames) == 6
    with raises("all.csv: refused, there are fewer than 10 rows, the floor of the site"):
        data.study(**options)


def test_agents_must_equal_the_number_of_sites(pooled, tmp_path):
    with raises("agents is 3, but there are 4 sites in column 'site'"):
        matrix(file=pooled, target="ill", site="site", agents=3)
    with raises("agents is 3, but there are 1 files"):
        matrix([pooled], target="ill", columns=["age"], agents=3)


def test_a_missing_file(tmp_path):
    with raises(f"no file matches '{tmp_path}/*.csv'", FileNotFoundError):
        matrix(f"{tmp_path}/*.csv", target="y")
    with raises("a (a.csv): there is no such file"):
        matrix([tmp_path / "a.csv"], target="y")
    with raises("files is an empty list"):
        matrix([], target="y")
    with raises("a.csv more than once"):
        matrix([tmp_path / "a.csv", tmp_path / "a.csv"], target="y")


def test_a_folder_is_not_a_file(tmp_path):
    with raises("the file cannot be read: Is a directory"):
        matrix([tmp_path], target="y")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "il", "columns": None}, "unknown column 'il', did you mean 'ill'?"),
        ({"target": "il"}, "no site has a column 'il'"),
        ({"site": "stie"}, "all.csv: there is no column 'stie' with the names of the sites"),
        ({"columns": ["doses"]}, "no site has a column 'doses'"),
        (
            {"site": None, "split": "by-column", "column": "agee", "agents": 2},
            "all.csv: unknown column 'agee', did you mean 'age'?",
        ),
        ({"columns": ["age", "age"]}, "columns lists 'age' more than once"),
        ({"columns": ["age", "ill"]}, "columns lists the target 'ill'"),
        ({"site": None, "split": "iid", "agents": 2, "columns": ["site"]}, "column 'site' holds texts"),
        ({"columns": [], "intercept": False}, "no covariate besides the target 'ill', and intercept is False"),
        ({"standardise": "false"}, "standardise must be true or false, found 'false'"),
        ({"intercept": 1}, "intercept must be true or false, found 1"),
    ],
)
def test_invalid_columns(pooled, arguments, message):
    with raises(message):
        matrix(file=pooled, **{"target": "ill", "site": "site", "columns": ["age"], **arguments})


def test_a_constant_column_cannot_be_standardised(tmp_path):
    path = write(tmp_path / "a.csv", "x,z,y\n1,0.1,0\n2,0.1,1\n3,0.1,1\n")
    with raises("column 'z' is the same in every row: leave it out"):
        matrix([path], target="y")
    with raises("column 'z' is the same in every row: leave it out of columns"):
        matrix([path], target="y", constant=["z"])
    assert matrix([path], target="y", constant=["z"], standardise=False).columns == ("intercept", "x", "z")


def test_a_second_intercept(tmp_path):
    path = write(tmp_path / "a.csv", "intercept,y\n1,0\n2,1\n")
    with raises("a column is already named 'intercept'"):
        matrix([path], target="y")
    assert matrix([path], target="y", intercept=False, standardise=False).columns == ("intercept",)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("by-lable", "unknown split rule 'by-lable', did you mean 'by-label'?"),
        ("dirichlet(1", "unknown split rule 'dirichlet(1'"),
        ("dirichlet", "split 'dirichlet' needs a number above 0, as in 'dirichlet(0.5)', found None"),
        ("dirichlet()", "found ''"),
        ("dirichlet(a)", "found 'a'"),
        ("dirichlet(0)", "found '0'"),
        ("dirichlet(inf)", "found 'inf'"),
        ("iid(2)", "split 'iid' has no argument in brackets and no column"),
        ("by-label(2)", "split 'by-label' has no argument"),
        ("by-column(2)", "split 'by-column' needs column, the column to sort by, and no argument in brackets"),
        ("by-column", "split 'by-column' needs column"),
    ],
)
def test_invalid_rules(regression, rule, message):
    with raises(message):
        data.split(rule, *regression, 3, 0)


def test_invalid_splits(regression):
    X, y = regression
    with raises("split 'iid' has no argument in brackets and no column"):
        data.split("iid", X, y, 3, 0, X[:, 0])
    with raises("split 'by-column' needs one value per row, shape (200,), found shape (200, 2)"):
        data.split("by-column", X, y, 3, 0, X)
    with raises("agents must be at least 1, found 0"):
        data.split("iid", X, y, 0, 0)
    with raises("200 rows are too few for 201 agents"):
        data.split("iid", X, y, 201, 0)


# --- files that are read at their sites ---


def test_files_at_sites_are_read_when_called(tmp_path, monkeypatch):
    table = data.at_sites(["north.csv", "~/south.csv"], target="y", columns=["b", "a"])
    assert (table.columns, table.sites) == (("intercept", "b", "a"), ("north", "south"))
    write(tmp_path / "north.csv", "a,y,c,b\n1,0,x,2\n3,1,x,4\n")
    write(tmp_path / "south.csv", "b,a,y\n5,6,1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (X, y), (at_home, _) = (read() for read in pickle.loads(pickle.dumps(table.shards)))
    np.testing.assert_array_equal(X, [[1, 2, 1], [1, 4, 3]])
    np.testing.assert_array_equal(y, [0, 1])
    np.testing.assert_array_equal(at_home, [[1, 5, 6]])
    plain = data.at_sites(["north.csv"], target="y", columns=["a"], intercept=False)
    np.testing.assert_array_equal(plain.shards[0]()[0], [[1], [3]])


def test_sites_may_use_the_same_path():
    assert data.at_sites(["/data/own.csv"] * 2, target="y", columns=["x"]).sites == ("agent 0", "agent 1")
    assert data.at_sites(["n/own.csv", "s/own.csv"], target="y", columns=["x"]).sites == ("n/own.csv", "s/own.csv")


@pytest.mark.parametrize(
    ("files", "columns", "options", "message"),
    [
        ("sites/*.csv", ["x"], {}, "files must list one file per agent, found 'sites/*.csv'"),
        ([], ["x"], {}, "files is an empty list"),
        (["a.csv"], "x", {}, "columns must be a list of names, found 'x'"),
        (["a.csv"], ["x", "x"], {}, "columns lists 'x' more than once"),
        (["a.csv"], ["x", "y"], {}, "columns lists the target 'y'"),
        (["a.csv"], ["intercept"], {}, "a column is already named 'intercept'"),
        (["a.csv"], [], {"intercept": False}, "there is no covariate besides the target 'y'"),
    ],
)
def test_invalid_sites(files, columns, options, message):
    with raises(message):
        data.at_sites(files, target="y", columns=columns, **options)


def test_a_bad_file_is_named_where_it_is_read(tmp_path):
    path = write(tmp_path / "a.csv", "x,y\n1,0\n2,1\nmany,1\n")
    with raises("a (a.csv): column 'x': line 4 has a text where others have numbers"):
        data.at_sites([path], columns=["x"], target="y").shards[0]()
    with raises("no site has a column 'age'"):
        data.at_sites([path], columns=["age"], target="y").shards[0]()
    with raises("b (b.csv): there is no such file"):
        data.at_sites([tmp_path / "b.csv"], columns=["x"], target="y").shards[0]()
