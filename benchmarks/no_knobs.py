"""What accord draws when it is given nothing, on four data sets, beside NUTS on the pooled data and tuned DE-SGLD.

Needs scikit-learn and BlackJAX (pip install 'accord[demo]'). The rows of each data set go to the agents in the order of
its first column, so that no two agents see the same part of it.

First table: every agent's errors against a long pooled NUTS run, with what Monte Carlo error alone may make of them:
of what is drawn where nothing is given, importance sampling or chains by sums, and of the method that walks and is
chosen with `whiten=True`. Draws by sums are the same on every network, and made on a ring. Second: costs of one
effective draw (the least over parameters and agents); a gradient, or a value without one, is one of all rows together,
whoever evaluates them; what sums cost includes the mode and the certificate, wall time includes compiling. Third: what
a plan predicts of every agent's means and standard deviations, on a ring, and how far that is from what is measured;
the same where the posterior is replaced by the Gaussian that stands for it, which tells how much of the difference is
the posterior's shape.

    python benchmarks/no_knobs.py --sets wine --networks ring
"""

import argparse
import time
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base.array import array_stats
from sklearn import datasets
from sklearn.decomposition import PCA

import accord
from accord.base.text import human_bytes
from accord.exact.impulse_response import respond
from accord.posterior.pooled_nuts import nuts_chain
from accord.samplers import DADMMS, DESGLD, GTBAOAB, GTDULA
from accord.tuning.forecast import gaussian_model
from accord.tuning.search import choose
from accord.tuning.warmup import warm_up

CHAINS, SEED = 4, 0
NETWORKS = {
    "ring": lambda: accord.Network.ring(10),
    "star": lambda: accord.Network.star(10),
    "random": lambda: accord.Network.erdos_renyi(10, 0.4, seed=1),
    "ring-30": lambda: accord.Network.ring(30),
}


def _breast_cancer():
    return datasets.load_breast_cancer(return_X_y=True)


def _wine():
    X, y = datasets.load_wine(return_X_y=True)
    return X, y == 0


def _digits():
    X, y = datasets.load_digits(return_X_y=True)
    return PCA(20).fit_transform(X[y < 2]), y[y < 2]


def _diabetes():
    X, y = datasets.load_diabetes(return_X_y=True)
    return X, (y - y.mean()) / y.std()


SETS = {"breast-cancer": _breast_cancer, "diabetes": _diabetes, "wine": _wine, "digits": _digits}


@cache
def posterior(name, agents):
    """Logistic regression, or linear regression on diabetes, with prior variance 10 on standardised columns."""
    X, y = SETS[name]()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    order = np.argsort(X[:, 0], kind="stable")
    X = np.column_stack([np.ones(len(X)), X])
    shards = [(X[rows], y[rows].astype(float)) for rows in np.array_split(order, agents)]
    if name == "diabetes":
        return accord.models.linear_regression(shards, noise_scale=0.7, prior_variance=10.0)
    return accord.models.logistic_regression(shards, prior_variance=10.0)


def least_ess(draws):
    """The least bulk effective sample size over the last axis, and the largest R-hat, of (chain, draw, series)."""
    series = draws.astype(np.float64)
    ess = array_stats.ess(series, chain_axis=0, draw_axis=1)
    return float(ess.min()), float(array_stats.rhat(series, chain_axis=0, draw_axis=1).max())


@cache
def nuts(name, dense, draws):
    """Draws (chain, draw, dim) of NUTS on the pooled data; its gradients after adaptation and in it; seconds."""
    began = time.perf_counter()
    made = jax.block_until_ready(_walk(name, dense, draws))
    seconds = time.perf_counter() - began
    adapting = adaptation(name, dense)
    return np.asarray(made.positions), float(made.gradients.sum()) - adapting, adapting, seconds


def adaptation(name, dense):
    """Gradients of NUTS' adaptation on the pooled data, of all chains."""
    # the same keys adapt in the same way, whatever follows
    return float(_walk(name, dense, 1).gradients.sum())


def _walk(name, dense, draws):
    post = posterior(name, 10)
    start = jnp.asarray(post.init, jnp.result_type(float))

    @jax.jit
    @jax.vmap
    def walk(key):
        return nuts_chain(key, post.logdensity, start, draws=draws, warmup=1000, dense=dense)

    return walk(jax.random.split(jax.random.key(SEED), CHAINS))


def moments(draws):
    """Mean, sd and effective sample sizes, (dim,), of draws (chain, draw, dim)."""
    draws = draws.astype(np.float64)
    return draws.mean(axis=(0, 1)), draws.std(axis=(0, 1)), array_stats.ess(draws, chain_axis=0, draw_axis=1)


def by_sums(name, draws):
    """A run that is given nothing, on a ring, its effective draws, and errors against the reference."""
    post, net = posterior(name, 10), NETWORKS["ring"]()
    run = accord.sample(post, net, draws=draws, chains=CHAINS, seed=SEED, progress=False)
    mean, sd, known = moments(nuts(name, True, REFERENCE)[0])
    ess, rhat = least_ess(run.draws[:, :, 0])
    own_mean, own_sd = run.average.mean(axis=(0, 1)), run.average.std(axis=(0, 1))
    if run.points is not None:
        # the chains over the points have fewer effective draws than these
        own_mean, own_sd, ess = run.points.mean, run.points.sd, run.points.effective
    error, ratio = np.abs(own_mean - mean) / sd, np.abs(own_sd / sd - 1.0)
    noise = np.sqrt(1.0 / ess + 1.0 / known.min())
    return run, {"mean": error.max(), "sd": ratio.max(), "noise": noise, "rhat": rhat, "ess": ess}


def by_accord(name, network, options):
    """A run of a method that walks, without numbers, its warm-up, and errors of all agents against the reference."""
    post, net = posterior(name, 30 if network == "ring-30" else 10), NETWORKS[network]()
    # whitened, which methods by sums have no use for
    run = accord.sample(post, net, chains=CHAINS, seed=SEED, progress=False, whiten=True, **options)
    warmup = warm_up(post, net)
    mean, sd, known = moments(nuts(name, True, REFERENCE)[0])
    agents = run.draws.reshape(*run.draws.shape[:2], -1)
    ess, rhat = least_ess(agents)
    own_mean, own_sd = run.draws.mean(axis=(0, 1), dtype=np.float64), run.draws.std(axis=(0, 1), dtype=np.float64)
    error, ratio = np.abs(own_mean - mean) / sd, np.abs(own_sd / sd - 1.0)
    noise = np.sqrt(1.0 / ess + 1.0 / known.min())
    return run, warmup, {"mean": error.max(), "sd": ratio.max(), "noise": noise, "rhat": rhat, "ess": ess}


def costs(gradients, exchanges, sent, seconds, ess, values=0):
    return [
        f"{gradients / ess:.2f}",
        f"{values / ess:.2f}" if values else "-",
        f"{exchanges / ess:.3g}",
        human_bytes(sent / ess),
        f"{1e3 * seconds / ess:.2f} ms",
    ]


def costs_by_sums(run, post, ess):
    """Costs of an effective draw, everything included; what sums cost serves all chains."""
    rows, traffic = post.sizes.sum(), run.traffic
    gradients, values = (counted.sum() / rows for counted in (traffic.gradient_rows, traffic.value_rows))
    return costs(gradients, traffic.exchanges, traffic.bytes_sent.max(), run.seconds, ess, values)


def accord_costs(run, warmup, post, ess):
    """Costs of an effective draw without warm-up and with it; agents' chains run side by side, so they add up."""
    rows, traffic = post.sizes.sum(), run.traffic
    found = []
    for warm in (0, 1):
        gradients = CHAINS * (traffic.gradient_rows - warmup.spent.gradient_rows).sum() / rows
        gradients += warm * warmup.spent.gradient_rows.sum() / rows
        exchanges = traffic.exchanges - (1 - warm) * warmup.spent.exchanges
        sent = CHAINS * (traffic.bytes_sent - warmup.spent.bytes_sent).max() + warm * warmup.spent.bytes_sent.max()
        found.append(costs(gradients, exchanges, sent, run.seconds, ess))
    return found


def tuned_desgld(name):
    """DE-SGLD in raw coordinates at the step with the most effective draws a round among those that serve.

    Steps are judged by the law on the Gaussian approximation; those serve that leave the average's sds within 3%.
    """
    post, net = posterior(name, 10), NETWORKS["ring"]()
    model = post.laplace()
    largest = accord.samplers.DESGLD(1e-6).max_step(net, model.hessians())
    best = None
    for share in (0.5, 0.25, 0.125, 0.06, 0.03, 0.015):
        sampler = accord.samplers.DESGLD(share * largest)
        found = respond(model, net, sampler, most_rounds=2_000_000)
        if np.abs(found.average_sd / model.exact().sd - 1.0).max() <= 0.03:
            best = sampler, float(found.average_memory.max())
            break
    if best is None:
        return None
    sampler, memory = best
    rounds = int(200 * memory) // 2000 * 2000 + 2000
    run = accord.sample(
        post,
        net,
        sampler,
        draws=2000,
        thin=rounds // 2000,
        burn_in=int(5 * memory),
        chains=CHAINS,
        seed=SEED,
        progress=False,
    )
    ess, _ = least_ess(run.average)
    gradients = CHAINS * rounds
    sent = CHAINS * run.traffic.bytes_sent.max() * rounds / run.traffic.rounds
    return costs(gradients, rounds, sent, run.seconds, ess)


def predicted(name, draws):
    """What is predicted of methods that are off by up to a tenth of a deviation, and how far that is from the truth."""
    post, net = posterior(name, 10), NETWORKS["ring"]()
    warmup = warm_up(post, net)
    moved = post.transformed(warmup.coordinates)
    model = gaussian_model(moved, warmup)
    mean, sd, known = moments(nuts(name, True, REFERENCE)[0])
    exact = model.plain.exact()
    for method in (GTBAOAB(), *(other(noise="common") for other in (GTDULA, DADMMS, DESGLD))):
        trial, _ = choose([method], moved, net, warmup, tolerance=0.5)
        found = trial.forecast
        # most draws tell something new
        numbers = {"burn_in": 5 * found.burn_in, "thin": max(1, round(found.rounds / 2))}
        cells = []
        for target, centre, scale, least in (
            (moved, mean, sd, known.min()),
            (model.whitened, exact.mean, exact.sd, np.inf),
        ):
            run = accord.sample(
                target, net, trial.sampler, draws=draws, chains=CHAINS, seed=SEED, progress=False, **numbers
            )
            own_mean, own_sd = (getattr(run.draws, f)(axis=(0, 1), dtype=np.float64) for f in ("mean", "std"))
            ess, _ = least_ess(run.draws.reshape(*run.draws.shape[:2], -1))
            off_mean = np.abs((own_mean - centre) / scale - found.mean).max()
            off_sd = np.abs(own_sd / scale - found.sd).max()
            cells += [off_mean, off_sd, np.sqrt(1.0 / ess + 1.0 / least)]
        yield trial.label, np.abs(found.mean).max(), np.abs(found.sd - 1.0).max(), *cells


REFERENCE = 20_000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--draws", type=int, default=16_000, help="draws a chain; all other numbers are accord's")
    parser.add_argument("--skip-desgld", action="store_true")
    parser.add_argument("--skip-predictions", action="store_true")
    arguments = parser.parse_args()
    options = {"draws": arguments.draws}
    print(f"{'data':<14} {'network':<8} {'mean error':>11} {'sd error':>9} {'MC error':>9} {'R-hat':>6} {'ESS':>6}")
    runs, given_nothing = {}, {}
    for name in arguments.sets:
        run, found = by_sums(name, arguments.draws)
        given_nothing[name] = run, found["ess"]
        print(
            f"{name:<14} {'all':<8} {found['mean']:>8.3f} sd {found['sd']:>9.3f} {found['noise']:>9.3f} "
            f"{found['rhat']:>6.3f} {found['ess']:>6.0f}  {run.settings['chosen']}, {run.traffic.sums} sums",
            flush=True,
        )
        for network in arguments.networks:
            run, warmup, found = by_accord(name, network, options)
            runs[name, network] = run, warmup, found["ess"]
            numbers = run.settings["method"].partition("(")[2].rstrip(")").split(", ")
            chosen = ", ".join(sorted(part for part in numbers if part.startswith(("step_size", "mix_rounds"))))
            chosen += f", thin={run.settings['thin']}, burn_in={run.settings['burn_in']}"
            print(
                f"{name:<14} {network:<8} {found['mean']:>8.3f} sd {found['sd']:>9.3f} {found['noise']:>9.3f} "
                f"{found['rhat']:>6.3f} {found['ess']:>6.0f}  {chosen}",
                flush=True,
            )
    print(
        f"\n{'data':<14} {'method':<28} {'gradients':>10} {'values':>7} {'exchanges':>10} {'sent':>9} {'wall':>10}  "
        "an effective draw"
    )
    for name in arguments.sets:
        run, ess = given_nothing[name]
        lines = [
            (
                f"given nothing, ring: {run.settings['method'].split('(')[0]}",
                costs_by_sums(run, posterior(name, 10), ess),
            )
        ]
        for network in arguments.networks:
            run, warmup, ess = runs[name, network]
            plain, warmed = accord_costs(run, warmup, posterior(name, len(run.agents)), ess)
            lines += [(f"walking, {network}", plain), ("  with its warm-up", warmed)]
        for dense in (True, False):
            draws, gradients, adapting, seconds = nuts(name, dense, REFERENCE if dense else 4000)
            ess, _ = least_ess(draws)
            metric = "dense" if dense else "default"
            lines.append((f"pooled NUTS, {metric}", costs(gradients, 0, 0, seconds, ess)))
            lines.append(("  with its warm-up", costs(gradients + adapting, 0, 0, seconds, ess)))
        if not arguments.skip_desgld:
            found = tuned_desgld(name)
            lines.append(("tuned DE-SGLD, ring", found or ["none serves", "", "", "", ""]))
        for label, cells in lines:
            gradients, values, exchanges, sent, wall = cells
            print(
                f"{name:<14} {label:<28} {gradients:>10} {values:>7} {exchanges:>10} {sent:>9} {wall:>10}", flush=True
            )
    if not arguments.skip_predictions:
        print(
            f"\n{'data':<14} {'method':<26} {'predicted':>13} {'disagreement':>13} {'MC error':>9} "
            f"{'on the Gaussian':>16} {'MC error':>9}   worst agent's mean / sd"
        )
        for name in arguments.sets:
            for label, mean, sd, *cells in predicted(name, arguments.draws // 4):
                off, gaussian = (f"{a:.3f} / {b:.3f}" for a, b in (cells[:2], cells[3:5]))
                print(
                    f"{name:<14} {label:<26} {mean:.3f} / {sd:.3f} {off:>13} {cells[2]:>9.3f} {gaussian:>16} "
                    f"{cells[5]:>9.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
