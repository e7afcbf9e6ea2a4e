"""Draws of every method under a fixed seed, to compare two versions of the code bit for bit.

    python benchmarks/draws.py draws.npz                     before a change: writes them, prints a hash of each
    python benchmarks/draws.py after.npz --against draws.npz     after it: prints where they differ, and exits with 1

Draws depend on the processor and on the version of JAX too, so that both runs belong on one machine. With `--silo` one
process an agent runs as well; Ray listens beyond loopback unless told not to, see `benchmarks/engines.py`. With
`--mesh` four virtual devices do.
"""

import argparse
import hashlib
import os
import sys
import time
import warnings

import numpy as np

AGENTS = 6


def posteriors():
    import accord

    rng = np.random.default_rng(0)
    truth = np.array([1.0, -0.5])
    linear, logistic = [], []
    for agent in range(AGENTS):
        X = rng.standard_normal((4 + 2 * agent, 2)) * [0.6, 1.2]
        linear.append((X, X @ truth + 2.0 * rng.standard_normal(len(X))))
        logistic.append((X, (rng.random(len(X)) < 1 / (1 + np.exp(-X @ truth))).astype(float)))
    return {
        "linear": accord.models.linear_regression(linear, noise_scale=2.0, prior_variance=10.0),
        "logistic": accord.models.logistic_regression(logistic, prior_variance=4.0),
    }


def methods():
    from accord import conditional, samplers, schedules

    falling = schedules.Polynomial(0.02, 1.0, 0.33)
    operators = [np.array([[1.0, 0.1 * agent], [0.0, 1.0], [0.5, 0.0]]) for agent in range(AGENTS)]
    cases = {
        "DESGLD": samplers.DESGLD(0.05),
        "DESGLD schedule": samplers.DESGLD(falling),
        "DESGLD batch": samplers.DESGLD(0.02, batch_size=2),
        "DESGLD mixed": samplers.DESGLD(0.02, mix_rounds=3),
        "DESGLD common": samplers.DESGLD(0.05, noise="common"),
        "DESGLD cold": samplers.DESGLD(0.05, temperature=0.0),
        "DESGHMC": samplers.DESGHMC(0.1, 1.5),
        "DESGHMC batch, mixed": samplers.DESGHMC(0.1, 1.5, batch_size=3, mix_rounds=2),
        "DULA": samplers.DULA(0.01, 0.15),
        "DULA warm": samplers.DULA(0.01, 0.15, temperature=0.5),
        "GTDULA": samplers.GTDULA(0.01, 0.15, 0.1),
        "GTDULA common": samplers.GTDULA(0.01, 0.15, 0.1, noise="common", mix_rounds=4),
        "GTBAOAB": samplers.GTBAOAB(0.2, 1.5, mix_rounds=4),
        "GTBAOAB batch": samplers.GTBAOAB(0.2, 1.5, mix_rounds=2, batch_size=2),
        "DADMMS": samplers.DADMMS(0.7),
        "DADMMS common": samplers.DADMMS(0.7, noise="common"),
        "DADMMS published": samplers.DADMMS(0.7, "published"),
        "DADMMS cold": samplers.DADMMS(0.7, temperature=0.0),
        "DASG": samplers.DASG(0.02, 0.4),
        "Gibbs mala": samplers.Gibbs(0.3, "mala"),
        "Gibbs rejection": samplers.Gibbs(0.3, "rejection"),
        "Gibbs recentred": samplers.Gibbs(0.3, conditional.MALA(steps=3), recentre=True),
        "DGLMC": samplers.DGLMC(0.4, 0.03, (1, 3, 2, 4, 1, 2)),
        "DGLMC left out": samplers.DGLMC(),
        "DGLMC operators": samplers.DGLMC(operators=operators),
        "GCMC": samplers.GCMC(0.3),
        "GCMC tolerances": samplers.GCMC(0.3, tolerances=(2.0, 1.0), rounds_per_tolerance=5),
        "FALD": samplers.FALD(0.005, 3, 0.6, batch_size=2),
        "FSGLD": samplers.FSGLD(0.01, (1, 2, 3, 1, 2, 3), batch_size=2),
        "StaleSGLD": samplers.StaleSGLD(0.01, (0, 3, 1, 2, 3, 1)),
        "QLSD": samplers.QLSD(0.01, 2, batch_size=2),
        "ELF": samplers.ELF(0.01, 1, 2),
        "HubSGLD": samplers.HubSGLD(0.01, (1, 2, 3, 1, 2, 3), batch_size=2),
        "Replicated nuts": samplers.Replicated(warmup=20),
        "Replicated mala": samplers.Replicated("mala", warmup=0, step_size=0.1),
        "Replicated dense": samplers.Replicated("hmc", warmup=40, dense=True),
    }
    linear = {
        **cases,
        "Gibbs exact": samplers.Gibbs(0.3),
        "GCMC exact": samplers.GCMC(0.3, "exact"),
        "GCMC exact, tolerances": samplers.GCMC(0.3, "exact", tolerances=(2.0, 1.0), rounds_per_tolerance=5),
    }
    left_out = {
        "nothing": None,
        "DESGLD": samplers.DESGLD(noise="common"),
        "DESGHMC": samplers.DESGHMC(),
        "DULA": samplers.DULA(noise="common"),
        "GTDULA": samplers.GTDULA(noise="common"),
        "DADMMS": samplers.DADMMS(noise="common"),
        "DGLMC": samplers.DGLMC(),
        "GCMC": samplers.GCMC(),
        "Gibbs": samplers.Gibbs(conditional="mala"),
        "GTBAOAB friction": samplers.GTBAOAB(friction=1.0),
    }
    return {"logistic": cases, "linear": linear, "left out": left_out}


# cases that the engines of several devices or processes run as well: a posterior, a network and a method
ELSEWHERE = [
    ("linear", "irregular", "GTDULA"),
    ("linear", "irregular", "Gibbs exact"),
    ("logistic", "star", "GCMC tolerances"),
    ("logistic", "ring", "DESGLD batch"),
    ("logistic", "ring", "DGLMC left out"),
    ("logistic", "star", "HubSGLD"),
    ("logistic", "irregular", "Replicated mala"),
    ("logistic", "irregular", "DADMMS common"),
    ("left out", "ring", "nothing"),
]


def networks():
    import accord

    edges = [(0, 1), (0, 2), (0, 3), (1, 2), (3, 4), (4, 5), (3, 5), (2, 5)]
    return {
        "ring": accord.Network.ring(AGENTS),
        "star": accord.Network.star(AGENTS),
        "irregular": accord.Network.from_edges(AGENTS, edges),
    }


def draw(posterior, network, name, engine):
    """Draws of a case, a dict of arrays."""
    import accord

    post = posteriors()["logistic" if posterior == "left out" else posterior]
    method = methods()[posterior][name]
    free = posterior == "left out"
    options = {"draws": 12} if free else {"draws": 12, "burn_in": 45, "thin": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = accord.sample(
            post, networks()[network], method, chains=3, seed=7, engine=engine, progress=False, **options
        )
    sent = {"bytes": run.traffic.bytes_sent, "exchanges": np.asarray(run.traffic.exchanges)}
    return {"draws": run.draws, "average": run.average, **run.statistics, **sent}


def every_case(arguments):
    chosen = {"linear": ["irregular"], "logistic": ["ring", "star"], "left out": ["ring"]}
    for posterior, cases in methods().items():
        for network in chosen[posterior]:
            for name in cases:
                yield "local", posterior, network, name
    for engine in ("mesh", "silo"):
        if getattr(arguments, engine):
            for case in ELSEWHERE:
                yield engine, *case


def hashed(values):
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output")
    parser.add_argument("--against", help="draws of another version, written by this script")
    parser.add_argument("--mesh", action="store_true")
    parser.add_argument("--silo", action="store_true")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    arguments = parser.parse_args()
    if arguments.mesh:
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    engines = {"local": "local", "mesh": "mesh"}
    if arguments.silo:
        import ray

        import accord

        ray.init(include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False, logging_level="ERROR")
        engines["silo"] = accord.Silo()  # begins processes anew for every run
    before = dict(np.load(arguments.against)) if arguments.against else None
    found, differ = {}, 0
    for engine, *case in every_case(arguments):
        title = f"{engine}: {', '.join(case)}"
        if arguments.only not in title:
            continue
        began = time.perf_counter()
        arrays = draw(*case, engines[engine])
        found |= {f"{title}/{name}": values for name, values in arrays.items()}
        line = f"{title:60} {hashed(arrays['draws'])} {time.perf_counter() - began:6.1f} s"
        if before is not None:
            worst = "same"
            for name, values in arrays.items():
                old = before[f"{title}/{name}"]
                if not np.array_equal(old, values, equal_nan=True):
                    apart = (
                        np.abs(old - values).max() / (np.abs(old).max() + 1e-300)
                        if old.shape == values.shape
                        else np.inf
                    )
                    worst = f"DIFFERENT: {name} by {apart:.2g} of its largest value"
                    differ += 1
            line += f"  {worst}"
        print(line, flush=True)
    np.savez(arguments.output, **found)
    if before is not None:
        print(f"{len(found)} arrays, {differ} different")
    if arguments.silo:
        ray.shutdown()
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
