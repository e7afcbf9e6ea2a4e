"""Ten textbook models of posteriordb in NumPyro, with their data split over sites."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

DATA = Path(__file__).parent / "data" / "posteriordb"
SITES = 5


class Textbook(NamedTuple):
    """A model, its pooled arguments, its arguments at each site, and its plate of local latents."""

    model: Callable[..., None]
    pooled: dict[str, Any]
    shards: list[dict[str, Any]]
    local: str | None
    centred: tuple[str, ...]


def data(name):
    found = json.loads((DATA / f"{name}.json").read_text())
    return {key: np.array(value, float) if isinstance(value, list) else value for key, value in found.items()}


def by_rows(model, pooled, local=None, centred=()):
    """Split rows into one block for each site."""
    count = len(next(iter(pooled.values())))
    parts = np.array_split(np.arange(count), SITES)
    return Textbook(model, pooled, [{k: v[part] for k, v in pooled.items()} for part in parts], local, centred)


def by_groups(model, pooled, key, count, local, centred):
    """Split groups over sites, numbered from 0 at each site, with their number under the name `count`."""
    group = pooled[key].astype(int)
    shards = []
    for part in np.array_split(np.unique(group), SITES):
        rows = np.isin(group, part)
        own = {k: v[rows] for k, v in pooled.items() if k != key}
        shards.append({**own, key: np.searchsorted(part, group[rows]), count: len(part)})
    pooled = {**pooled, key: np.searchsorted(np.unique(group), group), count: len(np.unique(group))}
    return Textbook(model, pooled, shards, local, centred)


def eight_schools():
    def model(y, sigma):
        mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
        with numpyro.plate("school", len(y)):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
            numpyro.sample("y", dist.Normal(theta, sigma), obs=y)

    d = data("eight_schools")
    pooled = {"y": d["y"], "sigma": d["sigma"]}
    shards = [{"y": pooled["y"][i : i + 1], "sigma": pooled["sigma"][i : i + 1]} for i in range(8)]
    return Textbook(model, pooled, shards, "school", ("theta",))


def seeds():
    def model(n, N, x1, x2):
        a = numpyro.sample("a", dist.Normal(0, 1).expand([4]).to_event(1))
        s = numpyro.sample("s", dist.HalfCauchy(1))
        with numpyro.plate("rows", len(n)):
            b = numpyro.sample("b", dist.Normal(0, s))
            logits = a[0] + a[1] * x1 + a[2] * x2 + a[3] * x1 * x2 + b
            numpyro.sample("n", dist.Binomial(N.astype(int), logits=logits), obs=n)

    d = data("seeds_data")
    return by_rows(model, {key: d[key] for key in ("n", "N", "x1", "x2")}, "rows", ("b",))


def surgical():
    def model(n, r):
        mu = numpyro.sample("mu", dist.Normal(0, 1000))
        variance = numpyro.sample("variance", dist.InverseGamma(0.001, 0.001))
        with numpyro.plate("rows", len(n)):
            b = numpyro.sample("b", dist.Normal(mu, jnp.sqrt(variance)))
            numpyro.sample("r", dist.Binomial(n.astype(int), logits=b), obs=r)

    d = data("surgical_data")
    return by_rows(model, {"n": d["n"], "r": d["r"]}, "rows", ("b",))


def glmm_poisson():
    def model(C, year):
        alpha = numpyro.sample("alpha", dist.Uniform(-20, 20))
        beta = numpyro.sample("beta", dist.Uniform(-10, 10).expand([3]).to_event(1))
        s = numpyro.sample("s", dist.Uniform(0, 5))
        with numpyro.plate("rows", len(C)):
            e = numpyro.sample("e", dist.Normal(0, s))
            log_rate = alpha + beta[0] * year + beta[1] * year**2 + beta[2] * year**3 + e
            numpyro.sample("C", dist.Poisson(jnp.exp(log_rate)), obs=C)

    d = data("GLMM_Poisson_data")
    return by_rows(model, {"C": d["C"], "year": d["year"]}, "rows", ("e",))


def glmm():
    def model(obs, site, sites):
        mu, s = numpyro.sample("mu", dist.Normal(0, 10)), numpyro.sample("s", dist.Uniform(0, 5))
        with numpyro.plate("site", sites):
            alpha = numpyro.sample("alpha", dist.Normal(mu, s))
        with numpyro.plate("rows", len(obs)):
            numpyro.sample("obs", dist.Poisson(jnp.exp(alpha[site])), obs=obs)

    d = data("GLMM_data")
    return by_groups(model, {"obs": d["obs"], "site": d["obssite"]}, "site", "sites", "site", ())


def rats():
    def model(y, x, rat, rats):
        mean = numpyro.sample("mean", dist.Normal(0, 100).expand([2]).to_event(1))
        scale = numpyro.sample("scale", dist.ImproperUniform(dist.constraints.positive, (2,), ()).to_event(1))
        sigma = numpyro.sample("sigma", dist.ImproperUniform(dist.constraints.positive, (), ()))
        with numpyro.plate("rat", rats):
            a = numpyro.sample("a", dist.Normal(mean[0], scale[0]))
            b = numpyro.sample("b", dist.Normal(mean[1], scale[1]))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(a[rat] + b[rat] * (x - 22.0), sigma), obs=y)

    d = data("rats_data")
    return by_groups(model, {k: d[k] for k in ("y", "x", "rat")}, "rat", "rats", "rat", ())


def radon():
    def model(log_radon, log_uppm, floor, county, counties):
        mu = numpyro.sample("mu", dist.Normal(0, 10))
        b = numpyro.sample("b", dist.Normal(0, 10).expand([2]).to_event(1))
        s_a, s_y = numpyro.sample("s_a", dist.HalfNormal(1)), numpyro.sample("s_y", dist.HalfNormal(1))
        with numpyro.plate("county", counties):
            alpha = numpyro.sample("alpha", dist.Normal(mu, s_a))
        with numpyro.plate("rows", len(log_radon)):
            mean = alpha[county] + b[0] * log_uppm + b[1] * floor
            numpyro.sample("log_radon", dist.Normal(mean, s_y), obs=log_radon)

    d = data("radon_mn")
    pooled = {"log_radon": d["log_radon"], "log_uppm": d["log_uppm"], "floor": d["floor_measure"]}
    return by_groups(model, {**pooled, "county": d["county_idx"]}, "county", "counties", "county", ("alpha",))


def dogs():
    def model(y, avoided, shocked):
        a, b = (numpyro.sample(name, dist.Uniform(0, 1)) for name in "ab")
        with numpyro.plate("rows", len(y)):
            # p = 1 without shocks and avoidances
            log_p = shocked * jnp.log(a) + avoided * jnp.log(b)
            p = jnp.exp(jnp.where((shocked + avoided) > 0, log_p, 0.0))
            numpyro.sample("y", dist.Bernoulli(jnp.clip(p, 0.0, 1.0 - 1e-7)), obs=y)

    y = data("dogs")["y"]
    before = np.cumsum(y, axis=1) - y
    avoided = np.arange(y.shape[1]) - before
    return by_rows(model, {"y": y.ravel(), "avoided": avoided.ravel(), "shocked": before.ravel()})


def wells():
    def model(switched, dist100, arsenic, educ4):
        alpha = numpyro.sample("alpha", dist.ImproperUniform(dist.constraints.real, (), ()))
        b = numpyro.sample("b", dist.ImproperUniform(dist.constraints.real, (3,), ()).to_event(1))
        logits = alpha + b[0] * dist100 + b[1] * arsenic + b[2] * educ4
        numpyro.sample("switched", dist.Bernoulli(logits=logits), obs=switched)

    d = data("wells_data")
    pooled = {"switched": d["switched"], "dist100": d["dist"] / 100, "arsenic": d["arsenic"], "educ4": d["educ"] / 4}
    return by_rows(model, pooled)


def nes2000():
    def model(y, X):
        beta = numpyro.sample("beta", dist.ImproperUniform(dist.constraints.real, (9,), ()).to_event(1))
        sigma = numpyro.sample("sigma", dist.ImproperUniform(dist.constraints.positive, (), ()))
        numpyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)

    d = data("nes2000")
    ages = [(d["age_discrete"] == k).astype(float) for k in (2, 3, 4)]
    columns = [np.ones(len(d["income"])), d["real_ideo"], d["race_adj"], *ages, d["educ1"], d["gender"], d["income"]]
    return by_rows(model, {"y": d["partyid7"], "X": np.stack(columns, axis=1)})


TEXTBOOKS = [eight_schools, seeds, surgical, glmm_poisson, glmm, rats, radon, dogs, wells, nes2000]


def reference(book, draws=20_000, chains=4):
    """Mean, sd and effective draws of each parameter by name, from NUTS on pooled data.

    The effective draws are the fewer of those for the mean and for the sd. Draws of NUTS alternate about the mean, so
    they say more of a mean than of an sd.
    """
    import jax
    from numpyro.diagnostics import effective_sample_size
    from numpyro.handlers import reparam
    from numpyro.infer import MCMC, NUTS, init_to_uniform
    from numpyro.infer.reparam import LocScaleReparam

    # non-centred effects, as groups have few rows
    model = reparam(book.model, config={name: LocScaleReparam(0.0) for name in book.centred})
    kernel = NUTS(
        model,
        target_accept_prob=0.98 if book.local else 0.9,
        dense_mass=not book.local,
        init_strategy=init_to_uniform(radius=0.5),
    )
    mcmc = MCMC(
        kernel, num_warmup=2000, num_samples=draws, num_chains=chains, chain_method="vectorized", progress_bar=False
    )
    mcmc.run(jax.random.PRNGKey(0), **book.pooled)
    found = mcmc.get_samples(group_by_chain=True)
    names = [name for name in found if not name.endswith("_decentered")]
    references = {}
    for name in names:
        draws_of = np.asarray(found[name])
        mean = draws_of.mean(axis=(0, 1))
        of_mean, of_sd = effective_sample_size(draws_of), effective_sample_size((draws_of - mean) ** 2)
        references[name] = {
            "mean": mean.tolist(),
            "sd": draws_of.std(axis=(0, 1)).tolist(),
            "effective": np.minimum(of_mean, of_sd).tolist(),
        }
    return references


if __name__ == "__main__":
    import sys

    import jax

    jax.config.update("jax_enable_x64", True)
    path = DATA / "nuts.json"
    references = json.loads(path.read_text()) if path.exists() else {}
    for make in TEXTBOOKS:
        if len(sys.argv) > 1 and make.__name__ not in sys.argv[1:]:
            continue
        references[make.__name__] = reference(make())
        path.write_text(json.dumps(references))
        least = {name: float(np.min(one["effective"])) for name, one in references[make.__name__].items()}
        print(make.__name__, "effective draws", least, flush=True)
