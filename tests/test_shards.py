"""Shards that are functions or files are read at first use, in the process that needs them."""

import pickle
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tables import AGENTS, METHODS, NETWORKS, unequal_shards, walk

import accord
from accord import models
from accord.base.errors import DataError
from accord.engines.consensus_mode import bind
from accord.engines.local import LocalEngine
from accord.posterior.shards import Extent
from accord.samplers import DASG, DGLMC, ELF, FSGLD, GCMC, QLSD, Gibbs, HubSGLD, Replicated
from accord.samplers.conditional import curvatures

NAMES = ["a", "b"]
CANARY = 7654321.0


def data(agents=AGENTS, seed=0):
    rng = np.random.default_rng(seed)
    shards = [(rng.standard_normal((rows, 2)), rng.standard_normal(rows)) for rows in np.resize([3, 5, 7, 9], agents)]
    return [(X, (X[:, 0] + y > 0).astype(float)) for X, y in shards]


def give(shard):
    return shard


def refuse():
    raise RuntimeError("the disk is on fire")


def as_functions(shards):
    return [partial(give, shard) for shard in shards]


def as_files(shards, folder):
    paths = [folder / f"site{agent}.npz" for agent in range(len(shards))]
    for path, (X, y) in zip(paths, shards, strict=True):
        np.savez(path, X=X, y=y)
    return [str(paths[0]), *paths[1:]]


# --- when data is read ---


def test_shards_are_read_once_at_first_use():
    shards, reads = data(), []

    def source(agent):
        reads.append(agent)
        return shards[agent]

    post = models.logistic_regression([partial(source, i) for i in range(AGENTS)], names=NAMES)
    assert (post.num_agents, post.dim, post.names, post.quadratic) == (AGENTS, 2, ("a", "b"), False)
    assert repr(post) == "<Posterior: 2 parameters, 6 agents, data not read>"
    np.testing.assert_array_equal(post.unravel(np.ones(2)), np.ones(2))
    alone = post.alone(3)
    assert (alone.held, alone.num_agents, reads) == ((3,), AGENTS, [])
    np.testing.assert_array_equal(alone.sizes, [9])
    assert alone.splits and reads == [3]
    alone.gradients(np.zeros(2))
    alone.stacked(agents=[3])
    assert reads == [3]
    np.testing.assert_array_equal(post.sizes, [3, 5, 7, 9, 3, 5])
    post.mode()
    assert reads == [3, 0, 1, 2, 3, 4, 5]
    assert repr(post) == "<Posterior: 2 parameters, 6 agents, 32 rows>"


def test_one_function_defers_reading_all_shards():
    shards = data()
    shards[2] = (shards[2][0], np.full(7, 2.0))
    post = models.logistic_regression([*shards[:1], partial(give, shards[1]), *shards[2:]], names=NAMES)
    with pytest.raises(ValueError, match="labels of a logistic regression must be 0 or 1, agent 2 has others"):
        post.shards  # noqa: B018


@pytest.mark.parametrize(
    "build",
    [partial(models.linear_regression, noise_scale=1.0), models.logistic_regression, models.poisson_regression],
)
@pytest.mark.long_from(1)
def test_arrays_functions_and_files_give_the_same_draws(build, tmp_path):
    shards = data()
    lazy = [build(given, names=NAMES) for given in (as_functions(shards), as_files(shards, tmp_path))]
    drawn = [
        accord.sample(post, NETWORKS["ring"], accord.Rounds(METHODS["DADMMS"](), burn_in=2), draws=5, chains=2, seed=1)
        for post in (build(shards, names=NAMES), *lazy)
    ]
    for run in drawn[1:]:
        np.testing.assert_array_equal(run.draws, drawn[0].draws)
        np.testing.assert_array_equal(run.traffic.gradient_rows, drawn[0].traffic.gradient_rows)


def test_files_of_other_arrays_are_dicts_and_power_centers_may_be_functions(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", c=np.ones(2), X=np.zeros(3))
    monkeypatch.setenv("HOME", str(tmp_path))
    likelihood = lambda x, shard: -jnp.sum((x - shard["c"]) ** 2)  # noqa: E731
    post = accord.Posterior(likelihood, lambda x: 0.0 * x.sum(), ["~/a.npz", tmp_path / "a.npz"], np.zeros(2))
    assert not post.splits and sorted(post.shards[1]) == ["X", "c"]
    centers = np.array([[0.0, 1.0], [2.0, 2.0]])
    lazy = models.power([partial(give, c) for c in centers], 1.5, names=NAMES)
    x = np.array([0.3, -1.0])
    np.testing.assert_array_equal(lazy.gradients(x), models.power(centers, 1.5).gradients(x))


X_AND_Y = (np.ones((2, 2)), np.ones(2))
WRONG = {
    "raises": (
        refuse,
        DataError,
        r"agent 1 could not be read: RuntimeError in refuse, line \d+ of .*test_shards.py",
    ),
    "missing": (
        Path("no such folder/site.npz"),
        DataError,
        r"the data of agent 1 could not be read: FileNotFoundError: No such file .*no such folder/site.npz",
    ),
    "columns": (
        partial(give, (np.ones((2, 3)), np.ones(2))),
        ValueError,
        "X of agent 1 has 3 columns, but there are names for 2",
    ),
    "nan": (partial(give, (np.full((1, 2), np.nan), np.ones(1))), ValueError, "agent 1 holds NaN"),
    "labels": (
        partial(give, (np.ones((1, 2)), np.full(1, 5.0))),
        ValueError,
        "agent 1 has others in 1 of 1 rows",
    ),
    "empty": (partial(give, (np.ones((0, 2)), np.ones(0))), ValueError, "agent 1 is empty"),
    "pair": (
        partial(give, {"x": np.ones(2)}),
        ValueError,
        r"agent 1 must be a pair \(X, y\), found a dict",
    ),
    "nothing": (partial(give, None), ValueError, r"agent 1 must be a pair \(X, y\), found a NoneType"),
}


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("name", WRONG)
def test_bad_data_raises_with_its_agent_when_read(name, alone):
    source, error, message = WRONG[name]
    post = models.logistic_regression([partial(give, X_AND_Y), source, partial(give, X_AND_Y)], names=NAMES)
    with pytest.raises(error, match=message):
        (post.alone(1) if alone else post).gradients(np.zeros(2))


def test_files_that_are_not_npz_are_refused(tmp_path):
    np.save(tmp_path / "one.npy", np.ones(2))
    np.savez(tmp_path / "pickled.npz", X=np.array([{}], dtype=object), y=np.ones(1))
    for file, found in (("one.npy", "a single array"), ("pickled.npz", "ValueError")):
        with pytest.raises(
            DataError, match=f"agent 0 could not be read: .*{file} must be an .npz file.* found {found}"
        ):
            models.linear_regression([tmp_path / file], names=NAMES).sizes  # noqa: B018


@pytest.mark.parametrize(
    "build",
    [
        models.linear_regression,
        models.logistic_regression,
        models.poisson_regression,
        lambda shards: models.power(shards, 1.5),
    ],
)
def test_unread_shards_need_names(build):
    with pytest.raises(ValueError, match="shards that are functions or files need names, one for each parameter"):
        build([refuse])


def test_a_wrong_quadratic_raises_when_read():
    post = accord.Posterior(
        lambda x, d: jnp.exp(x[0]) * d, lambda x: 0.0 * x[0], [lambda: np.ones(2)] * 2, np.zeros(1), quadratic=True
    )
    with pytest.raises(ValueError, match="potential of agent 1 is not quadratic"):
        post.alone(1).gradients(np.zeros(1))


# --- posteriors that hold a part of the data ---


def test_alone_pickles_no_other_shard():
    shards = [(X + CANARY * agent, y) for agent, (X, y) in enumerate(data())]
    post = models.linear_regression(shards, noise_scale=1.0)
    for agent in range(AGENTS):
        sent = pickle.dumps(post.alone(agent))
        for other, (X, _) in enumerate(shards):
            assert (X.tobytes() in sent) == (other == agent)
        received = pickle.loads(sent)
        np.testing.assert_array_equal(received.gradients(np.ones(2)), post.alone(agent).gradients(np.ones(2)))


def test_read_data_is_not_pickled_and_local_functions_are():
    cloudpickle = pytest.importorskip("cloudpickle")
    shards = [lambda i=i: np.arange(3.0) + CANARY * i for i in range(3)]
    post = accord.Posterior(lambda x, d: d * x["m"][0], lambda x: 0.0 * x["m"][0], shards, {"m": np.zeros(1)})
    read = post.shards
    sent = cloudpickle.dumps(post.alone(1))
    assert all(shard.tobytes() not in sent for shard in read)
    np.testing.assert_array_equal(cloudpickle.loads(sent).gradients(np.zeros(1)), post.gradients(np.zeros(1))[1:2])


def test_stacking_some_agents_gives_a_part_of_the_full_stack():
    post = unequal_shards(2)
    whole, some = post.stacked(spectral=True), post.stacked(spectral=True, agents=[1, 4], extent=post.extent)
    for part, all_parts in zip(jax.tree.leaves(some[:2]), jax.tree.leaves(whole[:2]), strict=True):
        np.testing.assert_array_equal(part, all_parts[jnp.array([1, 4])])
    np.testing.assert_allclose(some.quadratic.hessian, whole.quadratic.hessian[jnp.array([1, 4])], rtol=1e-6)
    shortest = post.alone(1, 4).stacked(agents=[1, 4])
    assert jax.tree.leaves(shortest.rows)[0].shape == (2, post.sizes[4], 2)
    # shards that do not split are not padded
    assert models.power([0.0, 1.0], 1.5).extent == Extent(None, None)
    with pytest.raises(ValueError, match=r"agents must be one or more different numbers, found \[1, 1\]"):
        post.stacked(agents=[1, 1])
    with pytest.raises(ValueError, match="at least the 10 rows of the longest shard, of agent 4; found 9"):
        post.stacked(agents=[1, 4], extent=Extent(9, None))


def test_eigenvectors_do_not_depend_on_other_stacked_agents():
    rng = np.random.default_rng(0)
    # fewer rows than parameters: the prior's eigenvalue is repeated
    shards = [(rng.standard_normal((n, 6)), rng.standard_normal(n)) for n in (2, 5, 3, 7)]
    post = models.linear_regression(shards, noise_scale=1.0)
    with jax.enable_x64(True):
        whole = post.stacked(spectral=True).quadratic
        parts = [post.stacked(spectral=True, agents=[i]).quadratic for i in range(4)]
    for i, part in enumerate(parts):
        for name in ("eigenvalues", "eigenvectors"):
            found, expected = np.asarray(getattr(part, name)[0]), np.asarray(getattr(whole, name)[i])
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
        V, values = found, np.asarray(part.eigenvalues[0])
        np.testing.assert_allclose(V.T @ V, np.eye(6), atol=1e-12)
        np.testing.assert_allclose(V * values @ V.T, part.hessian[0], rtol=1e-9, atol=1e-9)


def test_data_of_other_agents_is_out_of_reach():
    part = unequal_shards(2).alone(2, 3)
    touches = (
        lambda: part.shards,
        lambda: part.stacked(),
        lambda: part.stacked(agents=[0]),
        lambda: part.alone(0),
        lambda: part.exact(),
        lambda: part.mode(),
        lambda: part.logdensity(jnp.zeros(2)),
    )
    for touch in touches:
        with pytest.raises(DataError, match=r"agent 0 is not in this process: .* holds only agents \[2, 3\]"):
            touch()
    elsewhere = unequal_shards(2).with_data_at(OneByOne(unequal_shards(2)))
    with pytest.raises(DataError, match="the data of agent 0 is not in this process: this posterior holds no data"):
        elsewhere.stacked()


# --- functions of each agent ---


class OneByOne:
    """Data owners with one shard each, called one after another."""

    masks, consensus = False, None

    def __init__(self, post):
        self.post, self.sent = post, []
        self.agents = [pickle.loads(pickle.dumps(post.alone(i))) for i in range(post.num_agents)]

    def each(self, function, arguments, own):
        answers = [
            agent.each(function, *arguments, own=jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], own))
            for i, agent in enumerate(self.agents)
        ]
        self.sent.append(max(leaf[0].size for leaf in jax.tree.leaves(answers[0])))
        return jax.tree.map(lambda *parts: np.concatenate(parts), *answers)

    def placed(self, post):
        raise NotImplementedError

    build = check = placed

    def states_here(self, num_agents):
        return num_agents

    def preliminary(self, post, network, bound, *, chains=1):
        assert post.is_held_elsewhere
        return LocalEngine.preliminary(self.post, network, bound, chains=chains)


def weighted(potential, shard, x, scale, own):
    return {"value": scale * own["weight"] * potential.value(shard, x)}


@pytest.mark.long
def test_each_is_the_direct_computation():
    shards, x = data(), np.array([0.4, -0.2])
    post = models.logistic_regression(shards, prior_variance=2.0)
    rates = [1.0 / (1.0 + np.exp(-X @ x)) for X, _ in shards]
    prior = 1.0 / (2.0 * AGENTS)
    slopes = [X.T @ (p - y) + prior * x for p, (X, y) in zip(rates, shards, strict=True)]
    curved = [(X.T * (p * (1 - p))) @ X + prior * np.eye(2) for p, (X, _) in zip(rates, shards, strict=True)]
    at_zero = [np.linalg.eigvalsh(X.T @ X / 4 + prior * np.eye(2))[-1] for X, _ in shards]
    weights = {"weight": np.arange(1.0, AGENTS + 1)}
    with jax.enable_x64(True):
        values = np.asarray(jax.vmap(post.potential.value, in_axes=(0, None))(post.stacked(), jnp.asarray(x)))
    for tested in (post, post.with_data_at(OneByOne(post))):
        np.testing.assert_allclose(tested.gradients(x), slopes, rtol=1e-12)
        np.testing.assert_allclose(tested.hessians(x), curved, rtol=1e-12)
        np.testing.assert_allclose(curvatures(tested), at_zero, rtol=1e-12)
        np.testing.assert_array_equal(tested.sizes, post.sizes)
        assert tested.splits and tested.gradients(x).dtype == np.float64
        found = tested.each(weighted, x, 2.0, own=(weights,))
        np.testing.assert_allclose(found["value"], 2.0 * weights["weight"] * values, rtol=1e-12)


ALL_METHODS = {
    **METHODS,
    "Gibbs recentred": lambda: Gibbs(0.3, conditional="rejection", recentre=True),
    "DGLMC guidelines": DGLMC,
    "DGLMC operators": lambda: DGLMC(operators=[np.eye(2) + 0.1 * i for i in range(AGENTS)]),
    "GCMC mala": lambda: GCMC(0.4, conditional="mala"),
    "DASG": lambda: DASG(0.05, 0.3),
    "HubSGLD": lambda: HubSGLD(0.01, 2),
    "FSGLD": lambda: FSGLD(0.01, 2),
    "QLSD": lambda: QLSD(0.01),
    "ELF": lambda: ELF(0.01),
    "Replicated": lambda: Replicated(warmup=20),
}


# exact conditionals need quadratic potentials
CASES = [(name, kind) for name in ALL_METHODS for kind in ("gaussian", "logistic")]
CASES = [case for case in CASES if case not in (("Gibbs", "logistic"), ("GCMC", "logistic"))]


@pytest.mark.long
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_methods_bind_equally_if_the_data_lies_elsewhere(name, kind):
    if name == "Replicated":
        pytest.importorskip("blackjax")
    post = unequal_shards(2) if kind == "gaussian" else models.logistic_regression(data())
    owners, network = OneByOne(post), NETWORKS["star"]
    elsewhere = post.with_data_at(owners)
    method = ALL_METHODS[name]()
    here, there = bind(post, network, method), bind(elsewhere, network, method, owners)
    np.testing.assert_array_equal(here.spent.bytes_sent, there.spent.bytes_sent)
    for a, b in ((here.sampler, there.sampler), (here[2:4], there[2:4])):
        assert jax.tree.structure(a) == jax.tree.structure(b)
        for pooled, remote in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            np.testing.assert_allclose(remote, pooled, rtol=1e-10, atol=1e-12)
    # Hessians leave an agent only for surrogates
    assert max(owners.sent, default=0) <= (post.dim**2 if name in ("FSGLD", "SplitGTBAOAB") else post.dim)


def test_many_parameters_send_one_number_per_agent(monkeypatch):
    monkeypatch.setattr("accord.samplers.conditional.HESSIAN_DIM", 1)
    post = models.logistic_regression(data())
    owners = OneByOne(post)
    np.testing.assert_allclose(curvatures(post.with_data_at(owners)), curvatures(post), rtol=1e-10)
    assert owners.sent == [1]


def test_arrays_in_the_other_byte_order_are_converted(tmp_path):
    there = [(np.ones((4, 2)), np.arange(4.0)), (np.zeros((3, 2)), np.arange(3.0))]
    swapped = [tuple(leaf.astype(leaf.dtype.newbyteorder(">")) for leaf in shard) for shard in there]
    np.savez(tmp_path / "one.npz", X=swapped[1][0], y=swapped[1][1])
    for other in (swapped, [swapped[0], tmp_path / "one.npz"]):
        post = models.linear_regression(other, 1.0, 1.0, names=["a", "b"])
        np.testing.assert_array_equal(post.exact().mean, models.linear_regression(there, 1.0, 1.0).exact().mean)


@pytest.mark.long
def test_columns_that_single_precision_rounds_are_named():
    def far(offset, rows=40, agents=3):
        rng = np.random.default_rng(0)
        some = [rng.standard_normal((rows, 2)) * [1.0, 1e-3] for _ in range(agents)]
        return [(x + np.array([0.0, offset]), x[:, 0].astype(np.float32)) for x in some]

    def posterior(shards, offset):
        def log_likelihood(x, rows):
            return -0.5 * (rows[1] - x * (rows[0][:, 1] - offset)) ** 2

        return accord.Posterior(log_likelihood, lambda x: -0.5 * x**2, shards, 0.0)

    net, method = accord.Network.ring(3), accord.samplers.DADMMS(10.0)
    options = dict(draws=5, burn_in=5, thin=1, seed=0)
    message = r"column 1 of the rows\[0\] has numbers up to 10000, which float32 rounds to multiples of 0\.00098"
    with pytest.warns(UserWarning, match=message):
        walk(posterior(far(1e4), 1e4), net, method, **options)
    # one row per agent: the range of a column is over all agents
    with pytest.warns(UserWarning, match=message):
        posterior(far(1e4, rows=1), 1e4).stacked()
    # no warning: double precision, sum methods, numbers near zero, constant columns
    with jax.enable_x64(True):
        posterior(far(1e4), 1e4).stacked()
    accord.sample(posterior(far(1e4), 1e4), net, draws=50, seed=0)
    posterior(far(100.0), 100.0).stacked()
    posterior([(np.full((4, 2), 1e7), np.ones(4))], 0.0).stacked()
    # constant columns that differ between agents
    posterior([(np.full((4, 2), 1e4 * agent + 0.1), np.ones(4)) for agent in range(3)], 0.0).stacked()
