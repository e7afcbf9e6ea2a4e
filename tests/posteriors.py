"""Hard posteriors on four agents each: heavy tails, several modes, funnels, bad units, tiny data."""

import jax
import jax.numpy as jnp
import numpy as np

import accord

AGENTS = 4


def flat(params):
    return 0.0 * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params))


def toy(log_density, init, names=None):
    """A density of a few numbers, a quarter of its logarithm at each agent."""
    shares = [np.full(1, 1.0 / AGENTS)] * AGENTS
    return accord.Posterior(lambda x, rows: log_density(x) * rows, flat, shares, init, names=names)


def rowwise(log_likelihood, log_prior, rows, init):
    shards = [jax.tree.map(lambda leaf, agent=agent: leaf[agent::AGENTS], rows) for agent in range(AGENTS)]
    return accord.Posterior(log_likelihood, log_prior, shards, init)


# --- of one or two parameters, with their log densities ---


def log_heavy_axis(x):
    """Normal in one direction, with an exponential tail of rate 1/2 in the other."""
    return -0.5 * x[0] ** 2 - jnp.logaddexp(0.5 * x[1], -8.0 * x[1])


def heavy_axis():
    return toy(log_heavy_axis, np.zeros(2))


CLUSTERS = np.r_[np.linspace(-0.4, 0.4, 6), np.linspace(11.5, 12.5, 7)]


def log_two_clusters(x):
    return -jnp.sum(jnp.log1p((CLUSTERS - x[0]) ** 2))


def two_clusters():
    """A Cauchy location whose data lies in two clusters: two modes, far apart."""
    return rowwise(lambda x, rows: -jnp.log1p((rows - x[0]) ** 2), flat, CLUSTERS, np.zeros(1))


FEWER = np.r_[-8.0, -8.5, -7.7, 8.1, 7.9, 8.3, 8.2]


def log_light_cluster(x):
    return -jnp.sum(jnp.log1p((FEWER - x[0]) ** 2)) - x[0] ** 2 / 800.0


def light_cluster():
    """The same with fewer rows in the further cluster: its mode holds 1 part of 240, five sixths of the variance."""
    return rowwise(lambda x, rows: -jnp.log1p((rows - x[0]) ** 2), lambda x: -(x[0] ** 2) / 800.0, FEWER, np.zeros(1))


ROWS = np.array([1.0, 2.0, 1.5, 3.0])


def log_four_rows(x):
    return -0.5 * jnp.sum(((ROWS - x[0]) * jnp.exp(-x[1])) ** 2) - 4.0 * x[1] - 0.02 * x[0] ** 2 - 0.5 * x[1] ** 2


def four_rows():
    """Mean and log standard deviation of four rows, one at each agent."""

    def likelihood(x, rows):
        return -0.5 * ((rows - x[0]) * jnp.exp(-x[1])) ** 2 - x[1]

    return rowwise(likelihood, lambda x: -0.02 * x[0] ** 2 - 0.5 * x[1] ** 2, ROWS, np.zeros(2))


SCATTERED = np.array([0.2, 1.9, -1.1, 0.6])


def log_scattered_rows(x):
    return -0.5 * jnp.sum(((SCATTERED - x[0]) * jnp.exp(-x[1])) ** 2) - 4.0 * x[1] - x[0] ** 2 / 200.0 - x[1] ** 2 / 8.0


def scattered_rows():
    """The same with rows further apart and wider priors: the mean has a kurtosis of 13."""

    def likelihood(x, rows):
        return -0.5 * ((rows - x[0]) * jnp.exp(-x[1])) ** 2 - x[1]

    return rowwise(likelihood, lambda x: -(x[0] ** 2) / 200.0 - x[1] ** 2 / 8.0, SCATTERED, np.zeros(2))


def log_skewed_rate(x):
    return -20.0 * jax.nn.softplus(x[0]) - jax.nn.softplus(-x[0]) - jax.nn.softplus(x[0])


def skewed_rate():
    """The logit of a rate of which 20 trials saw no success."""
    prior = lambda x: -jax.nn.softplus(-x[0]) - jax.nn.softplus(x[0])  # noqa: E731
    return rowwise(lambda x, rows: -rows * jax.nn.softplus(x[0]), prior, np.ones(20), np.zeros(1))


def log_two_hills(x):
    away = x - jnp.array([20.0, 7.0])
    return jnp.logaddexp(-0.5 * jnp.sum(x**2), -0.5 * jnp.sum(away**2))


def two_hills():
    return toy(log_two_hills, np.ones(2))


def log_far_hill(x):
    """A twelfth of the mass on a hill that no line through the main one along an axis meets."""
    return jnp.logaddexp(-0.5 * jnp.sum((x - 6.0) ** 2), -2.0 * jnp.sum((x + 6.0) ** 2) - 1.0)


def far_hill():
    return toy(log_far_hill, np.ones(2))


def log_slab(x):
    """A fifth of the mass in a slab thirty times as wide as the core, whose density on every line is a plateau."""
    core = jnp.log(0.8) - 0.5 * jnp.sum(x**2)
    return jnp.logaddexp(core, jnp.log(0.2) - 0.5 * jnp.sum(x**2) / 900.0 - 2.0 * jnp.log(30.0))


def slab():
    return toy(log_slab, np.full(2, 0.1))


def wide_slab(dim=3):
    """A twentieth of the mass in a slab a hundred times as wide as the core."""

    def log_density(x):
        core = jnp.log(0.95) - 0.5 * jnp.sum(x**2)
        return jnp.logaddexp(core, jnp.log(0.05) - 0.5 * jnp.sum(x**2) / 1e4 - dim * jnp.log(100.0))

    return toy(log_density, np.full(dim, 0.1))


def log_far_hills(x):
    return jnp.logaddexp(-0.5 * x[0] ** 2, -0.5 * (x[0] - 70.0) ** 2)


def far_hills():
    """Two modes of one parameter, seventy standard deviations apart."""
    return toy(log_far_hills, np.full(1, 0.1))


def ring_and_two():
    """A thin ring, and in another direction two hills of unequal mass."""

    def log_density(x):
        hills = jnp.array([jnp.log(0.3) - 2.0 * (x[0] + 3.0) ** 2, jnp.log(0.7) - 2.0 * (x[0] - 3.0) ** 2])
        return jax.scipy.special.logsumexp(hills) - 50.0 * (jnp.sqrt(x[1] ** 2 + x[2] ** 2 + 1e-12) - 5.0) ** 2

    return toy(log_density, np.array([0.3, 5.0, 0.1]))


BOXES = {
    heavy_axis: (log_heavy_axis, [(-6, 6), (-4, 60)]),
    two_clusters: (log_two_clusters, [(-8, 20)]),
    light_cluster: (log_light_cluster, [(-40, 40)]),
    four_rows: (log_four_rows, [(-12, 16), (-4, 5)]),
    scattered_rows: (log_scattered_rows, [(-40, 40), (-3, 6)]),
    skewed_rate: (log_skewed_rate, [(-25, 4)]),
    two_hills: (log_two_hills, [(-8, 28), (-8, 15)]),
    slab: (log_slab, [(-150, 150), (-150, 150)]),
    far_hill: (log_far_hill, [(-10, 12), (-10, 12)]),
    far_hills: (log_far_hills, [(-10, 80)]),
}


def by_quadrature(make):
    """Mean and sd of each parameter, on a grid."""
    log_density, box = BOXES[make]
    axes = [np.linspace(low, high, 1201) for low, high in box]
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
    with jax.enable_x64(True):
        log_p = np.asarray(jax.vmap(log_density)(jnp.asarray(grid)))
    p = np.exp(log_p - log_p.max())
    mean = p @ grid / p.sum()
    return mean, np.sqrt(p @ np.square(grid - mean) / p.sum())


# --- of more ---

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def schools(centred):
    """Eight schools with the effects of the schools themselves, centred or not."""

    def likelihood(p, rows):
        y, error, school = rows
        own = p["effect"][school.astype(int)]
        return -0.5 * ((y - (own if centred else p["mean"] + jnp.exp(p["log_tau"]) * own)) / error) ** 2

    def prior(p):
        tau = jnp.exp(p["log_tau"])
        own = (p["effect"] - p["mean"]) / tau if centred else p["effect"]
        volume = -8.0 * p["log_tau"] if centred else 0.0
        return -0.5 * (p["mean"] ** 2 / 25.0 + jnp.sum(own**2)) + volume - jnp.log1p(tau**2 / 25.0) + p["log_tau"]

    init = {"mean": np.zeros(()), "log_tau": np.zeros(()), "effect": np.zeros(8)}
    return rowwise(likelihood, prior, (EFFECTS, ERRORS, np.arange(8.0)), init)


def funnel(dim=5):
    """Neal's: the scale of all but the first parameter is the exponential of half of that."""
    return toy(
        lambda x: -(x[0] ** 2) / 18.0 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - (dim - 1) / 2.0 * x[0],
        np.zeros(dim),
    )


def cauchy():
    """No mean, and no standard deviation."""
    return toy(lambda x: -jnp.log1p(x[0] ** 2), np.zeros(1))


def cauchy_plane():
    return toy(lambda x: -1.5 * jnp.log1p(jnp.sum(x**2)), np.zeros(2))


def many_skewed(dim=30):
    """Logarithms of gamma variables of shape 1/3, all of them skewed alike."""
    return toy(lambda x: jnp.sum(x / 3.0 - jnp.exp(x)), -np.ones(dim))


def many_parameters(rows=150, dim=60):
    """A logistic regression with two and a half rows for each parameter."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((rows, dim))
    y = (rng.random(rows) < 1.0 / (1.0 + np.exp(-3.0 * X @ rng.standard_normal(dim) / dim**0.5))).astype(float)
    return accord.models.logistic_regression([(X[i::AGENTS], y[i::AGENTS]) for i in range(AGENTS)], 10.0)


def unbounded():
    """A centred hierarchy whose density has no bound where its scale goes to 0."""
    return schools(centred=True)


def half_heavy():
    """A tail like a power of 2.5 on one side of one axis: it has a mean, and no standard deviation."""
    return toy(lambda x: -0.5 * x[0] ** 2 - jnp.logaddexp(2.5 * jnp.log1p(jax.nn.relu(x[1])), -4.0 * x[1]), np.zeros(2))


def horseshoe(dim=6):
    """Parameters whose scales are half-Cauchy, each with its log scale."""

    def log_density(x):
        beta, scale = x[:dim], x[dim:]
        return jnp.sum(-0.5 * (beta * jnp.exp(-scale)) ** 2 - jnp.log1p(jnp.exp(2.0 * scale)))

    return toy(log_density, np.zeros(2 * dim))


def banana():
    """Four curved ridges, each a tenth as wide as it is long."""
    return toy(lambda x: -0.5 * jnp.sum(x[:4] ** 2 / 4.0 + ((x[4:] - x[:4] ** 2) / 0.1) ** 2), np.zeros(8))


def ridge():
    """A product that is known and factors that are not: two long curved tails, each of them a mode's."""
    return toy(lambda x: -0.5 * ((x[0] * x[1] - 1.0) / 0.05) ** 2 - 0.5 * jnp.sum(x**2) / 100.0, np.array([1.0, 0.8]))


def curved_valley():
    """Normal with sd 10 in one direction, and a parabola a tenth as wide along it, whose arms are stiff."""
    return toy(lambda x: -(x[0] ** 2) / 200.0 - 0.5 * (x[1] - 0.1 * (x[0] ** 2 - 100.0)) ** 2, np.zeros(2))


def three_labels(modes=3):
    """A mixture of unit normals whose means are not in order: every permutation of them is a mode."""
    rng = np.random.default_rng(16)
    y = np.concatenate([rng.normal(m, 1.0, 27) for m in np.linspace(-4.0, 5.0, modes)])

    def likelihood(x, rows):
        return jax.scipy.special.logsumexp(-0.5 * (rows[:, None] - x[None]) ** 2, axis=1)

    return rowwise(likelihood, lambda x: -0.5 * jnp.sum(x**2) / 100.0, y, np.linspace(-1.0, 1.0, modes))


def narrow_core(dim=10):
    """Half of the mass in a core a twentieth as wide as the rest around it."""

    def log_density(x):
        square = jnp.sum(x**2)
        return jnp.logaddexp(-0.5 * square, -0.5 * square * 400.0 + dim * jnp.log(20.0))

    return toy(log_density, np.zeros(dim))


TOO_HARD = [
    funnel,
    cauchy,
    cauchy_plane,
    many_skewed,
    many_parameters,
    unbounded,
    half_heavy,
    horseshoe,
    banana,
    ridge,
    ring_and_two,
    curved_valley,
]


# those that slow tests try, and those without a mode
LONG = [many_skewed, many_parameters, cauchy_plane, half_heavy, ridge, ring_and_two, curved_valley]
NO_MODE = [unbounded, horseshoe]


def separable():
    """A logistic regression on labels that a plane separates, under a prior of standard deviation 3."""
    rng = np.random.default_rng(2)
    X = np.c_[np.ones(60), rng.standard_normal((60, 2))]
    y = (X @ [0.3, 2.0, -1.0] > 0).astype(float)
    return accord.models.logistic_regression([(X[i::AGENTS], y[i::AGENTS]) for i in range(AGENTS)], 9.0)


# --- that importance sampling must not refuse ---


def salaries():
    """A regression in dollars on inches and years, the log of whose standard deviation is unknown."""
    rng = np.random.default_rng(11)
    X = np.c_[np.ones(48), rng.normal(68.0, 3.5, 48), rng.integers(8, 21, 48)]
    y = X @ [9_000.0, 150.0, 2_400.0] + 9_000.0 * rng.standard_normal(48)

    def likelihood(p, rows):
        return -0.5 * ((rows[1] - rows[0] @ p["slopes"]) * jnp.exp(-p["log_sd"])) ** 2 - p["log_sd"]

    def prior(p):
        return -0.5 * jnp.sum((p["slopes"] / jnp.array([1e5, 1e3, 1e4])) ** 2) - 0.5 * ((p["log_sd"] - 9.0) / 2.0) ** 2

    return rowwise(likelihood, prior, (X, y), {"slopes": np.zeros(3), "log_sd": np.full((), 9.0)})


def robust():
    """A regression with errors of Student's t with four degrees of freedom, an outlier among them."""
    rng = np.random.default_rng(12)
    X = np.c_[np.ones(40), rng.standard_normal((40, 2))]
    y = X @ [1.0, -2.0, 0.5] + rng.standard_t(4, 40)
    y[7] += 25.0

    def likelihood(p, rows):
        z = (rows[1] - rows[0] @ p["slopes"]) * jnp.exp(-p["log_scale"])
        return -2.5 * jnp.log1p(z**2 / 4.0) - p["log_scale"]

    prior = lambda p: -0.5 * (jnp.sum(p["slopes"] ** 2) / 25.0 + p["log_scale"] ** 2)  # noqa: E731
    return rowwise(likelihood, prior, (X, y), {"slopes": np.zeros(3), "log_scale": np.zeros(())})


def uneven_noise():
    """A regression whose errors' standard deviation depends on a covariate."""
    rng = np.random.default_rng(13)
    X = np.c_[np.ones(80), rng.standard_normal(80)]
    y = X @ [1.0, 2.0] + np.exp(X @ [-0.5, 0.8]) * rng.standard_normal(80)

    def likelihood(p, rows):
        log_sd = rows[0] @ p["log_sd"]
        return -0.5 * ((rows[1] - rows[0] @ p["mean"]) * jnp.exp(-log_sd)) ** 2 - log_sd

    prior = lambda p: -0.5 * (jnp.sum(p["mean"] ** 2) / 25.0 + jnp.sum(p["log_sd"] ** 2) / 4.0)  # noqa: E731
    return rowwise(likelihood, prior, (X, y), {"mean": np.zeros(2), "log_sd": np.zeros(2)})


def few_counts():
    """A Poisson regression on 24 small counts."""
    rng = np.random.default_rng(14)
    X = np.c_[np.ones(24), rng.standard_normal((24, 3))]
    y = rng.poisson(np.exp(X @ [-0.5, 0.7, 0.0, -0.4])).astype(float)
    return accord.models.poisson_regression([(X[i::AGENTS], y[i::AGENTS]) for i in range(AGENTS)], 4.0)


def growth():
    """A logistic curve fitted to 20 measurements: its height, rate and middle, and the log of the error."""
    rng = np.random.default_rng(15)
    t = np.linspace(0.0, 10.0, 20)
    y = 5.0 / (1.0 + np.exp(-0.9 * (t - 4.0))) + 0.4 * rng.standard_normal(20)

    def likelihood(p, rows):
        curve = jnp.exp(p["log_height"]) * jax.nn.sigmoid(jnp.exp(p["log_rate"]) * (rows[0] - p["middle"]))
        return -0.5 * ((rows[1] - curve) * jnp.exp(-p["log_sd"])) ** 2 - p["log_sd"]

    def prior(p):
        return -0.5 * (p["log_height"] ** 2 + p["log_rate"] ** 2 + p["log_sd"] ** 2 + (p["middle"] - 5.0) ** 2 / 4.0)

    init = {"log_height": np.ones(()), "log_rate": np.zeros(()), "middle": np.full((), 5.0), "log_sd": np.zeros(())}
    return rowwise(likelihood, prior, (t, y), init)


def schools_apart():
    return schools(centred=False)


REGRESSIONS = [separable, salaries, robust, uneven_noise, few_counts, growth, schools_apart]
