"""Seeded faults, each of which the quick tests must catch: python tests/mutations.py [WORD ...] prints a table.

Each fault replaces one piece of text in a copy of both packages and runs the quick tests of the files that should
notice, which stop at the first failure. A fault that no test notices is a hole in the tests, and the exit status is 1.
Some words choose the faults whose name holds one of them.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PACKAGES = {"accord": HERE.parent / "src" / "accord", "accord_papers": HERE.parent / "papers" / "src" / "accord_papers"}


class Fault(NamedTuple):
    name: str
    file: str
    before: str
    after: str
    tests: str
    package: str = "accord"


LAW, PLAIN, OUTPUT = "test_law.py", "test_law.py test_limits.py", "test_output.py"
IDENTITY = "test_identity.py"
CENTRING, IMPORTANCE = "test_centring.py", "test_importance.py"
LEDGER, FEW, RANGES = "test_private_study.py", "test_ledger.py", "test_ranges.py"
FAULTS = [
    # models
    Fault("log gamma", "base/special.py", "5 / 66", "5 / 67", "test_log_gamma.py"),
    Fault("rising factorial", "base/special.py", "(x - 0.5) * jnp", "(a - 0.5) * jnp", "test_log_gamma.py"),
    Fault("cutpoints", "models/families/classes.py", "cuts, jnp.maximum(y - 1, 0)", "cuts, y * 0", "test_families.py"),
    Fault("quadrature error", "posterior/latents.py", "+ finer * _FINER", "", "test_latents.py"),
    Fault("rows outside their support", "posterior/latents.py", "jnp.isneginf(per_row)", "False", "test_pymc.py"),
    Fault("PyMC checks", "models/bridges/pymc.py", "checked, -np.inf)", "checked, checked)", "test_pymc.py"),
    Fault("PyMC checks by element", "models/bridges/pymc.py", "if is_varying", "if False", "test_pymc.py"),
    Fault("PyMC checks of all", "models/bridges/pymc.py", "if is_varying", "if True", "test_pymc.py"),
    Fault("NumPyro check", "models/bridges/numpyro.py", "valid, found, -jnp.inf", "True, found, 0", "test_numpyro.py"),
    Fault(
        "NumPyro checks by row", "models/bridges/numpyro.py", "(own if all(", "(own.all() if all(", "test_numpyro.py"
    ),
    Fault(
        "NumPyro derivatives", "models/bridges/numpyro.py", "if not args and _is", "if args and _is", "test_numpyro.py"
    ),
    Fault("NumPyro masks", "models/bridges/numpyro.py", "valid | jnp.logical_not(mask)", "valid", "test_numpyro.py"),
    Fault("responses at ends", "federation/synthetic.py", "1.0 - _SINGLE.epsneg", "1.0", "test_rehearse.py"),
    # samplers
    Fault("DMAHMC test", "samplers/d_mahmc.py", "change = half**2 / 2.0", "change = half**2 / 4.0", "test_mahmc.py"),
    Fault("DMAHMC key of its own", "samplers/d_mahmc.py", 'key="common"', "key=True", "test_mahmc.py"),
    Fault("DMAHMC remainder", "samplers/d_mahmc.py", "n * mixed.remainder", "mixed.remainder", "test_mahmc.py"),
    Fault(
        "BFI prior",
        "samplers/combine/bfi.py",
        "local_prior * bends",
        "0.9 * local_prior * bends",
        "test_combine_modes.py",
    ),
    Fault("surrogate tilt", "samplers/combine/surrogate.py", "- weight * slopes", "- slopes", "test_combine_modes.py"),
    Fault(
        "trees volume",
        "combine/trees.py",
        "(len(sets) - 1) * volume",
        "len(sets) * volume",
        "../papers/tests/test_kernels.py",
        package="accord_papers",
    ),
    Fault("DESGLD noise", "samplers/de_sgld.py", "(2.0 * step) ** 0.5", "(2.02 * step) ** 0.5", LAW),
    Fault("DESGLD sign", "samplers/de_sgld.py", "inbox.mix() - step", "inbox.mix() + step", LAW),
    Fault(
        "DESGHMC friction",
        "samplers/de_sghmc.py",
        "self.friction * state.velocity",
        "0.99 * self.friction * state.velocity",
        LAW,
    ),
    Fault(
        "DESGHMC drift",
        "samplers/de_sghmc.py",
        "inbox.mix() + step * velocity",
        "inbox.mix() + step * state.velocity",
        LAW,
    ),
    Fault(
        "DULA step",
        "samplers/dula.py",
        "at(self.step_size, agent.round) * agent.num_agents",
        "at(self.step_size, agent.round) * agent.num_agents * 1.01",
        LAW,
    ),
    Fault("DULA gain", "samplers/dula.py", "at(self.consensus_step, 0)", "at(self.consensus_step, 1)", PLAIN),
    Fault(
        "GTDULA stale gradient",
        "samplers/gt_dula.py",
        "blend + gradient - state.gradient",
        "blend + state.gradient - gradient",
        LAW,
    ),
    Fault(
        "GTDULA old gradient",
        "samplers/gt_dula.py",
        "blend + gradient - state.gradient, gradient)",
        "blend + gradient - state.gradient, state.gradient)",
        LAW,
    ),
    Fault(
        "GTDULA blend",
        "samplers/gt_dula.py",
        "(state.tracker - mixed.tracker)",
        "(state.tracker - mixed.position)",
        LAW,
    ),
    Fault(
        "EXTRASGLD memory",
        "samplers/extra_sgld.py",
        "self.blend / step * inbox.differences()",
        "self.blend * inbox.differences()",
        LAW,
    ),
    Fault("EXTRASGLD sign", "samplers/extra_sgld.py", "noise.batch) + state.corr", "noise.batch) - state.corr", LAW),
    Fault(
        "DIGingSGLD tracker",
        "samplers/diging_sgld.py",
        "mixed.tracker + gradient",
        "state.tracker + gradient",
        LAW,
    ),
    Fault(
        "EventTriggeredULA pull",
        "samplers/event_triggered_ula.py",
        "gain * (state.sent - inbox.mix())",
        "gain * (state.position - inbox.mix())",
        "test_event_triggered.py",
    ),
    Fault(
        "EventTriggeredULA threshold",
        "samplers/event_triggered_ula.py",
        "position - state.sent) >",
        "position - state.position) >",
        "test_event_triggered.py",
    ),
    Fault(
        "AsynchronousULA pull",
        "samplers/asynchronous_ula.py",
        "gain * (mixed.awake * state.position - mixed.position)",
        "gain * (state.position - mixed.position)",
        "test_asynchronous.py",
    ),
    Fault(
        "AsynchronousULA sleep",
        "samplers/asynchronous_ula.py",
        "jnp.where(state.awake > 0, position, state.position)",
        "position",
        "test_asynchronous.py",
    ),
    Fault(
        "ProximalDESGLD share",
        "samplers/proximal_de_sgld.py",
        "step / (agent.num_agents * at",
        "step / (1.0 * at",
        "test_proximal_de_sgld.py",
    ),
    Fault(
        "simplex fall",
        "samplers/convex_sets.py",
        "fall = jnp.take_along_axis(excess, kept - 1, axis=-1) / kept",
        "fall = jnp.take_along_axis(excess, kept - 1, axis=-1) / (kept + 1)",
        "test_proximal_de_sgld.py",
    ),
    Fault("GTBAOAB noise", "samplers/gt_baoab.py", "((1.0 - kept**2) * n)", "((1.0 - kept) * n)", LAW),
    Fault(
        "GTBAOAB half step",
        "samplers/gt_baoab.py",
        "        x = x + step / 2.0 * v\n        # noise",
        "        x = x + step * v\n        # noise",
        LAW,
    ),
    Fault(
        "DADMMS dual",
        "samplers/d_admms.py",
        "earlier * inbox.differences()",
        "earlier * inbox.differences() * 1.01",
        LAW,
    ),
    Fault("DADMMS published", "samplers/d_admms.py", "0.5**0.5 / rho", "0.5 / rho", LAW),
    Fault(
        "Gibbs centre",
        "samplers/gibbs.py",
        "(inbox.mix() - own.self_weight * x) / own.tie",
        "inbox.mix() / own.tie",
        "test_gibbs.py test_law.py",
    ),
    Fault(
        "Gibbs conditional",
        "samplers/conditional.py",
        "form.spread(strength, noise.normal)",
        "form.proximal_point(strength, noise.normal)",
        "test_gibbs.py test_law.py",
    ),
    Fault(
        "MALA acceptance",
        "samplers/conditional.py",
        "- proposal_cost(point, x, slope)",
        "",
        "test_gibbs.py test_hub.py",
    ),
    Fault(
        "rejection spread",
        "samplers/conditional.py",
        "spread = jnp.sqrt(temperature / strength)",
        "spread = 1.05 * jnp.sqrt(temperature / strength)",
        "test_gibbs.py",
    ),
    Fault(
        "DGLMC theta",
        "samplers/dg_lmc.py",
        "times(hub.factor, noise.normal)",
        "1.02 * times(hub.factor, noise.normal)",
        "test_hub.py test_law.py",
    ),
    Fault(
        "DGLMC local steps",
        "samplers/dg_lmc.py",
        "jnp.where(k < own.local_steps",
        "jnp.where(k <= own.local_steps",
        "test_hub.py test_law.py",
    ),
    Fault(
        "GCMC tolerance",
        "samplers/gcmc.py",
        "jnp.sqrt(rho / n) * noise.normal",
        "jnp.sqrt(rho) / n * noise.normal",
        "test_hub.py test_law.py",
    ),
    Fault("GCMC weights", "samplers/gcmc.py", "return -change *", "return change *", "test_hub.py"),
    Fault(
        "HubSGLD share",
        "samplers/hub_sgld.py",
        "agent.gradient(x, batch) / visits.share",
        "agent.gradient(x, batch)",
        "test_hub.py",
    ),
    Fault(
        "FSGLD share",
        "samplers/fsgld.py",
        "own.gradient(x - center)) / visits.share",
        "own.gradient(x - center))",
        LAW,
    ),
    Fault(
        "StaleSGLD age",
        "samplers/stale_sgld.py",
        "state.gradients[agent.own]",
        "state.gradients[-1]",
        LAW,
    ),
    Fault(
        "QLSD memory",
        "samplers/compressed.py",
        "state.memory + rate * state.sent",
        "state.memory + 0.5 * rate * state.sent",
        "test_federated.py",
    ),
    Fault(
        "QLSD levels",
        "samplers/qlsd.py",
        "< multiples - below",
        "< 0.5",
        "test_federated.py",
    ),
    Fault(
        "FALD own noise",
        "samplers/fa_ld.py",
        "jnp.sqrt((1.0 - self.correlation**2) / share)",
        "jnp.sqrt((1.0 - self.correlation) / share)",
        LAW,
    ),
    Fault(
        "Replicated gradient",
        "samplers/replicated.py",
        "-total.gradient / self.temperature",
        "-1.1 * total.gradient / self.temperature",
        "test_hub.py",
    ),
    Fault(
        "DASG momentum",
        "samplers/dasg.py",
        "x + self.momentum * (x - state.position)",
        "x + self.momentum * (x - state.ahead)",
        "test_dasg.py",
    ),
    # mixing
    Fault(
        "metropolis",
        "network/weights.py",
        "1.0 / (1 + edges.degrees.max(axis=1))",
        "1.0 / (1 + edges.degrees.min(axis=1))",
        "test_network.py",
    ),
    Fault(
        "laplacian delta",
        "network/weights.py",
        "delta = 2.0 / (smallest + largest)",
        "delta = 1.0 / (smallest + largest)",
        "test_network.py",
    ),
    Fault(
        "Chebyshev ratio",
        "network/averaging.py",
        "following = s / (2.0 - s * ratio)",
        "following = s / (2.0 - ratio)",
        "test_limits.py test_law.py",
    ),
    Fault("self weight", "network/network.py", "1.0 - row_sums(S))", "1.0 - 0.99 * row_sums(S))", LAW),
    Fault("Chebyshev step", "engines/round.py", "ab[0] * w - ab[1] * y", "ab[0] * w - 0.99 * ab[1] * y", LAW),
    Fault("Chebyshev count", "engines/round.py", "first, coefficients[1:])", "first, coefficients[2:])", LAW),
    Fault("order of colours", "engines/round.py", "turn(c, members[c], both)", "turn(c, members[-1 - c], both)", LAW),
    Fault("sweeps read old values", "engines/round.py", "        state, _ = both\n", "", LAW),
    Fault(
        "colours",
        "engines/round.py",
        "collectives.in_turn(color))",
        "collectives)",
        "test_silo.py",
    ),
    # noise
    Fault(
        "temperature",
        "engines/round.py",
        "root = sampler.temperature**0.5",
        "root = sampler.temperature",
        "test_law.py test_sample.py",
    ),
    Fault("noise scale", "engines/round.py", "scale = root *", "root = 1.01 * root\n    scale = root *", LAW),
    Fault(
        "another agent's noise",
        "engines/round.py",
        "return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf,",
        "return jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.roll(leaf, 1, axis=0),",
        LAW,
    ),
    Fault(
        "one agent's noise for all",
        "engines/round.py",
        "return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf,",
        "return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1],",
        LAW,
    ),
    Fault(
        "half of the noise twice",
        "engines/draws.py",
        "joined(parted(raw.normal), math",
        "joined(parted(raw.normal)[:1] * 2, math",
        LAW,
    ),
    Fault("minibatch scale", "posterior/potential.py", "jnp.mean(per_row) * shard.size", "jnp.sum(per_row)", LAW),
    Fault(
        "first minibatch",
        "samplers/gt_dula.py",
        "gradient = agent.gradient(position, noise.batch)\n        return GTDULAState(position, gradient, gradient)",
        "gradient = agent.gradient(position)\n        return GTDULAState(position, gradient, gradient)",
        LAW,
    ),
    Fault(
        "common scale", "samplers/protocol.py", "return agent.num_agents**-0.5", "return agent.num_agents**-1.0", LAW
    ),
    Fault(
        "common noise",
        "samplers/d_admms.py",
        "(agent.degree / agent.facts.degree_sum) ** 0.5",
        "(agent.facts.degree_sum / agent.degree) ** -0.4",
        LAW,
    ),
    Fault(
        "streams",
        "engines/draws.py",
        "words(Stream.LOCAL, math.prod(needs.local))",
        "words(Stream.NORMAL, math.prod(needs.local))",
        "test_noise.py test_sample.py test_hub.py test_law.py",
    ),
    Fault(
        "normals",
        "engines/noise.py",
        "2.0**0.5, dtype) * jax.lax.erf_inv",
        "1.99**0.5, dtype) * jax.lax.erf_inv",
        "test_noise.py",
    ),
    Fault(
        "noise of the round",
        "engines/loop.py",
        "draw_noise(problem, following, chains))\n    infos",
        "draw_noise(problem, carry.round, chains))\n    infos",
        "test_sample.py test_law.py test_noise.py",
    ),
    Fault(
        "prior of a part of the rows",
        "posterior/potential.py",
        "num_agents=parts * self.num_agents",
        "num_agents=self.num_agents",
        "test_streamed.py",
    ),
    Fault(
        "rows of the last chunk",
        "posterior/streamed.py",
        "np.clip(self.rows - first, 0, self.size)",
        "np.minimum(self.rows, self.size)",
        "test_streamed.py",
    ),
    Fault(
        "agents of the last piece",
        "posterior/totals.py",
        "new = first + np.arange(together) >= begun",
        "new = first + np.arange(together) >= first",
        "test_streamed.py",
    ),
    Fault(
        "parts of agents",
        "posterior/totals.py",
        "begun = piece // parts * together",
        "begun = piece * together",
        "test_streamed.py",
    ),
    Fault(
        "halves of neighbours",
        "engines/operators.py",
        "of(slice(half, None))])",
        "of(slice(columns.shape[0] - half))])",
        "test_exchange.py",
    ),
    Fault(
        "small quadratic forms",
        "posterior/quadratic.py",
        "product(self.hessian, x, _FEW)",
        "product(self.hessian, -x, _FEW)",
        "test_posterior.py test_law.py",
    ),
    Fault(
        "few columns",
        "base/linear.py",
        "A * jnp.expand_dims(x, 1 - axis)",
        "A * jnp.expand_dims(x[::-1], 1 - axis)",
        "test_linear.py test_glm.py",
    ),
    Fault(
        "few columns of many chains",
        "base/linear.py",
        "jnp.tensordot(first, x, (1, 1 - of_x)), 1",
        "jnp.tensordot(first, x[::-1], (1, 1 - of_x)), 1",
        "test_linear.py",
    ),
    Fault(
        "chains share",
        "engines/noise.py",
        "chain = jnp.arange(chains, dtype=jnp.uint32)",
        "chain = jnp.zeros(chains, dtype=jnp.uint32)",
        "test_noise.py",
    ),
    # engines
    Fault(
        "noise drawn beside that of the round",
        "engines/loop.py",
        "once_known(state, carry.round + 1)",
        "carry.round + 1",
        "test_compilation.py",
    ),
    Fault(
        "gathered neighbour",
        "engines/operators.py",
        "columns[row, slot], values[row, slot] = matrix.indices, matrix.data",
        "columns[row, slot], values[row, slot] = np.roll(matrix.indices, 1), matrix.data",
        "test_exchange.py",
    ),
    Fault(
        "summed neighbour",
        "engines/operators.py",
        "jax.device_put(matrix.indices)",
        "jax.device_put(1 - matrix.indices)",
        "test_exchange.py",
    ),
    Fault(
        "rounding of what is common",
        "engines/operators.py",
        "(rows if own is None else own[part] - rows)",
        "rows if own is None else values[part, k, None] * own[part] - values[part, k, None] * rows",
        "test_exchange.py",
    ),
    Fault(
        "Chebyshev differences",
        "engines/round.py",
        "ab[0] * (e + d - apart) - ab[1] * before",
        "ab[0] * (e + d - apart)",
        "test_exchange.py",
    ),
    Fault("transposed weights", "engines/operators.py", "matrix.toarray()", "matrix.toarray().T", "test_exchange.py"),
    Fault(
        "round of a schedule",
        "engines/loop.py",
        "assemble(problem, raw, chains), carry.round, order)",
        "assemble(problem, raw, chains), carry.round + 1, order)",
        LAW,
    ),
    Fault(
        "average",
        "engines/loop.py",
        "average = problem.collectives.total(x) / problem.num_agents",
        "average = x[0]",
        LAW,
    ),
    Fault(
        "halo",
        "engines/mesh/halo.py",
        "route = [(place, (place + shift) % devices)",
        "route = [(place, (place - shift) % devices)",
        "test_mesh.py",
    ),
    Fault(
        "mesh total",
        "engines/mesh/collectives.py",
        "jnp.where(along(self.active, x), x, 0).sum(axis=0)",
        "x.sum(axis=0)",
        "test_mesh.py",
    ),
    Fault("silo sum", "engines/silo/messages.py", "parts = [arrays, *(", "parts = [*(", "test_channels.py"),
    Fault(
        "silo label",
        "engines/silo/messages.py",
        "_WAYS * self._operation + way",
        "way",
        "test_channels.py test_silo.py",
    ),
    Fault(
        "silo pin", "engines/silo/handshake.py", "if peer.certificate == secure.certificate()", "", "test_channels.py"
    ),
    Fault("silo TLS version", "engines/silo/tls.py", "TLSVersion.TLSv1_3", "TLSVersion.TLSv1_2", "test_channels.py"),
    Fault(
        "silo attempt",
        "engines/silo/handshake.py",
        "if other.attempt != greeting.attempt",
        "if False",
        "test_channels.py",
    ),
    Fault(
        "silo greeting", "engines/silo/handshake.py", "if length > _LONGEST_GREETING", "if False", "test_channels.py"
    ),
    Fault(
        "silo stranger's time",
        "engines/silo/handshake.py",
        "self.called is None and time",
        "False and time",
        "test_channels.py",
    ),
    Fault(
        "silo callers",
        "engines/silo/connections.py",
        "if len(strangers) >= _MOST_STRANGERS",
        "if False",
        "test_channels.py",
    ),
    Fault(
        "silo key",
        "engines/silo/tls.py",
        "serialization.BestAvailableEncryption(self._password.encode())",
        "serialization.NoEncryption()",
        "test_channels.py",
    ),
    Fault(
        "thinning",
        "engines/loop.py",
        "carry = advance(problem, carry, thin, chains)",
        "carry = advance(problem, carry, thin + 1, chains)",
        "test_sample.py",
    ),
    Fault("kept agents", "engines/collectives.py", "return x[which]", "return x[: which.size]", "test_sample.py"),
    Fault(
        "infos",
        "engines/loop.py",
        "return before + now if",
        "return now if",
        "test_sample.py test_gibbs.py test_hub.py",
    ),
    # exact laws and tuning
    Fault("law's average", "tuning/law.py", "mean(axis=(0, 2))", "mean(axis=0).mean(axis=1) / n", LAW),
    Fault("law's first round", "tuning/law.py", "key = min(k, 1) if", "key = 0 if", LAW),
    Fault("law's last round", "tuning/law.py", "range(nearest, k)", "range(nearest, k + 1)", LAW),
    Fault("law's noise", "tuning/law.py", "(B @ B.T).toarray()", "(1.01 * B @ B.T).toarray()", LAW),
    Fault(
        "autocorrelation",
        "tuning/impulse_response.py",
        "sums.responses + responses",
        "sums.responses + 1.05 * responses",
        "test_response.py",
    ),
    Fault(
        "whitening",
        "tuning/whitened.py",
        "Coordinates(self.mean, np.linalg.cholesky(self.cov))",
        "Coordinates(self.mean, np.linalg.cholesky(self.cov).T)",
        "test_warmup.py",
    ),
    Fault("units", "posterior/newton.py", "curvature, most if most > 0 else 1.0) ** -0.5", "1.0, 1.0)", "test_mode.py"),
    Fault("saddle", "posterior/newton.py", "found.values[0] >= -_SADDLE", "found.values[0] >= -1e9", "test_mode.py"),
    Fault(
        "polynomial of softplus",
        "base/special.py",
        "0.07686637426659541,",
        "0.07686647426659541,",
        "test_softplus.py",
    ),
    Fault("halves that part", "tuning/pilot_run.py", "estimates.apart > first", "False", "test_warmup.py"),
    Fault(
        "Lanczos' directions",
        "tuning/pilot_run.py",
        "for known in 2 * basis",
        "for known in basis[:1]",
        "test_warmup.py",
    ),
    Fault("pilot run's step", "tuning/pilot_run.py", ".max()) ** -0.5", ".max()) ** 0.5", "test_warmup.py"),
    Fault("weights", "tuning/whitened.py", "value - lowest", "-(value - lowest)", "test_warmup.py"),
    Fault(
        "checkpoint's round",
        "sampling/checkpointing.py",
        "return max(0, round - self.recorder.burn_in) // self.recorder.thin",
        "return max(0, round - self.recorder.burn_in + 1) // self.recorder.thin",
        "test_checkpoint.py",
    ),
    Fault(
        "values from the centre",
        "posterior/quadratic.py",
        "level=jnp.zeros_like(self.level)",
        "level=self.level",
        "test_quadratic.py",
    ),
    Fault("functions of another posterior", "base/given.py", "Partial(Given(function))", "Partial(function)", IDENTITY),
    Fault("programs of one posterior", "base/given.py", "if isinstance(function, Partial)", "if False", IDENTITY),
    Fault("links as they were", "network/links.py", "return None, Given(schedule)", "return None, schedule", IDENTITY),
    Fault(
        "rows of a checkpoint",
        "engines/arrays.py",
        "                require_same_posterior(own, held)\n",
        "                pass\n",
        IDENTITY,
    ),
    Fault("first agent alone", "engines/behaviour.py", "if not same.all():", "if not same[0]:", IDENTITY),
    Fault(
        "rounding of values",
        "engines/behaviour.py",
        "_SAME * np.abs(before) + _CANCELLED * largest",
        "_SAME * largest",
        IDENTITY,
    ),
    Fault(
        "values in coordinates",
        "engines/behaviour.py",
        "key=key), post.in_parameters()",
        "key=key), post",
        IDENTITY,
    ),
    Fault("prior of a checkpoint", "engines/fingerprint.py", "map(_rounded, prior_values(post))", "()", IDENTITY),
    Fault("schedule of a checkpoint", "engines/fingerprint.py", "*_schedule(value)]", "]", IDENTITY),
    Fault("links of a checkpoint", "engines/fingerprint.py", "range(_LINK_ROUNDS)", "range(1)", IDENTITY),
    Fault(
        "method of a checkpoint",
        "sampling/checkpointing.py",
        "        self._require_same_rounds(carry)\n",
        "        pass\n",
        IDENTITY,
    ),
    Fault("format of a checkpoint", "engines/fingerprint.py", '!= mine["format"]:', "is False:", "test_checkpoint.py"),
    Fault("edited modules", "cli/config.py", "**data, **files,", "**data,", "test_user_modules.py"),
    Fault(
        "arrays in the other width",
        "base/widths.py",
        "return Partial(_InWidth(function.func), *function.args, **function.keywords)",
        "return function",
        IDENTITY,
    ),
    Fault(
        "bytes sent",
        "samplers/costs.py",
        "return exchanges, needs.exchanges * network.out_degrees",
        "return exchanges, network.out_degrees",
        "test_channels.py test_sample.py test_plan.py",
    ),
    # masks
    Fault("masks left out", "posterior/masks.py", "return added(words, mask)", "return words", "test_masks.py"),
    Fault(
        "masks of high words",
        "posterior/masks.py",
        "reshape(2, length)",
        "reshape(2, length) & np.uint64([[2**64 - 1], [0]])",
        "test_masks.py",
    ),
    Fault(
        "third derivatives of a first approximation",
        "samplers/by_sums/cubic.py",
        'np.einsum("pi,pi->p", of_t, z) / 6.0',
        'np.einsum("pi,pi->p", of_t, z) / 3.0',
        "test_few_sums.py",
    ),
    Fault(
        "first approximations that nothing fits",
        "samplers/by_sums/cubic.py",
        "_LEAST_EFFICIENCY = 0.05",
        "_LEAST_EFFICIENCY = -1.0",
        "test_few_sums.py",
    ),
    Fault(
        "fits whose expectation fell",
        "samplers/by_sums/importance.py",
        "before / _GROWTH < expected",
        "expected",
        "test_few_sums.py",
    ),
    Fault(
        "misleading gradients",
        "samplers/by_sums/adaptation.py",
        "min(1.0, step.size**0.5 / max(away, 1.0)) * step",
        "step",
        "test_few_sums.py",
    ),
    Fault(
        "sds of the one-shot estimate",
        "examine/meta_analysis.py",
        "np.sqrt(np.diagonal(np.linalg.inv(precision)))",
        "np.diagonal(precision) ** -0.5",
        "test_meta_analysis.py",
    ),
    Fault(
        "weights of Stein's identities",
        "samplers/by_sums/certificate.py",
        "shift = weight @ feature",
        "shift = 0.0 * (weight @ feature)",
        "test_few_sums.py",
    ),
    Fault(
        "masks of every sum",
        "posterior/masks.py",
        'count.to_bytes(8, "big") + bytes(8)\n',
        "bytes(16)\n",
        "test_masks.py",
    ),
    Fault("masks used twice", "posterior/masks.py", "self._last < count", "0 < count", "test_masks.py"),
    Fault("masks of a copy", "posterior/masks.py", "if os.getpid() != self._process:", "if False:", "test_masks.py"),
    Fault("masks of another run", "posterior/masks.py", "hashlib.sha256(run).digest()", 'b""', "test_masks.py"),
    Fault("masks' carry", "posterior/masks.py", "high + other_high + carry", "high + other_high", "test_masks.py"),
    Fault("masks' borrow", "posterior/masks.py", "high + (low == 0)", "high", "test_masks.py"),
    Fault("masks' range", "posterior/masks.py", "_RANGE_BITS = 62", "_RANGE_BITS = 64", "test_masks.py"),
    Fault(
        "masks' small numbers",
        "posterior/masks.py",
        "numbers < 0, negated(words), words)",
        "numbers < 0, ~words, words)",
        "test_masks.py",
    ),
    Fault("masks of what is too large", "posterior/masks.py", "os.urandom(16 *", "bytes(16 *", "test_masks.py"),
    Fault(
        "masks that do not cancel",
        "posterior/masks.py",
        "low[-1] != 0 or high[-1] > num_agents",
        "False",
        "test_masks.py",
    ),
    Fault(
        "masks, keys checked",
        "posterior/masks.py",
        "if publics[self.agent] != self.public:",
        "if False:",
        "test_masks.py",
    ),
    Fault("masked run, one site", "examine/agents.py", "if single and masks:", "if False:", "test_reweighting.py"),
    Fault(
        "run of another posterior", "examine/agents.py", "_require_density(run, agents)", "pass", "test_reweighting.py"
    ),
    Fault("masks of the run alone", "examine/agents.py", "or builder.masks", "or False", "test_reweighting.py"),
    Fault(
        "masked sums, numbered", "engines/silo/workers.py", "                self._count += 1\n", "", "test_masks.py"
    ),
    # the search for further modes and tails
    Fault(
        "landings",
        "samplers/by_sums/mode_search.py",
        "2.0 * risen / np.square",
        "0.1 * risen / np.square",
        "test_mode_search.py",
    ),
    Fault(
        "points below a tangent",
        "samplers/by_sums/mode_search.py",
        "at_origin[elsewhere] |= below",
        "pass",
        "test_mode_search.py",
    ),
    Fault(
        "modes near the heaviest points",
        "samplers/by_sums/importance.py",
        "if not batches.find_mode(job.target):",
        "if True:",
        "test_mode_search.py",
    ),
    Fault(
        "narrow mode within a wide one",
        "samplers/by_sums/mode_search.py",
        "& (here.value > at_origin - _DEEPER)",
        "",
        "test_mode_search.py",
    ),
    Fault(
        "sentence about modes that the search may miss",
        "samplers/by_sums/certificate.py",
        "if not (is_regular and lines.convex):",
        "if not lines.convex:",
        "test_mode_search.py",
    ),
    Fault(
        "mirror images and draws of the prior with the landings",
        "samplers/by_sums/mode_search.py",
        "landed = np.concatenate([landed, wide])",
        "pass",
        "test_mode_search.py",
    ),
    Fault(
        "draws of the prior among the scattered points",
        "samplers/by_sums/mode_search.py",
        "around[1::_OF_PRIOR] = np.resize",
        "np.resize",
        "test_mode_search.py",
    ),
    Fault(
        "half-lines of one parameter",
        "samplers/by_sums/mode_search.py",
        "lines.append(held[(np.abs(held @ np.concatenate(lines).T) < _NEW).all(axis=1)])",
        "pass",
        "test_mode_search.py",
    ),
    Fault(
        "half-lines of further modes",
        "samplers/by_sums/mode_search.py",
        "in zip(modes, search.around, strict=False):",
        "in zip(modes[:1], search.around, strict=False):",
        "test_mode_search.py",
    ),
    Fault(
        "harder look around the main mode",
        "samplers/by_sums/mode_search.py",
        "[main, *modes] if modes else []",
        "list(modes)",
        "test_mode_search.py",
    ),
    Fault(
        "chance of noticing a mode",
        "samplers/by_sums/mode_search.py",
        "2.0 * dim * np.log(width) < square",
        "2.0 * dim * np.log(width) < 2.0 * square",
        "test_mode_search.py",
    ),
    Fault(
        "sd that rests on few draws",
        "results/warnings.py",
        "ks[worst] <= SQUARES_K",
        "True",
        "test_mode_search.py",
    ),
    # formulas as data, and floors of columns
    Fault("formula unchecked", "models/grammar.py", "_Grammar(text).require_formula(tree)", "pass", "test_grammar.py"),
    Fault(
        "left of a formula",
        "models/grammar.py",
        "        self._require_response(tree.left)\n",
        "",
        "test_grammar.py",
    ),
    Fault(
        "function of any name",
        "models/grammar.py",
        'raise unknown_name_error("function in the formula", written, known)',
        "return",
        "test_grammar.py",
    ),
    Fault("contrast of any name", "models/grammar.py", "if coding not in _CODINGS:", "if False:", "test_grammar.py"),
    Fault(
        "arguments of any name",
        "models/grammar.py",
        " or not set(named) <= set(optional):",
        ":",
        "test_grammar.py",
    ),
    Fault("amounts", "data/cells.py", "_WITH_UNIT.fullmatch(_with_minus(text))", "False", "test_dialects.py"),
    Fault("rare texts", "data/cells.py", "for text in found) <= rare", "for text in found) <= 0", "test_dialects.py"),
    Fault("right separators", "data/files.py", "2 * several <= len(sheet.rows)", "True or 0", "test_dialects.py"),
    Fault("years as names", "data/files.py", "if not _is_name(", "if not (", "test_dialects.py"),
    Fault("labels as amounts", "data/cells.py", "(?!\\d+[a-gi-z]$)", "", "test_dialects.py"),
    Fault("numbers of nan", "data/cells.py", "~np.isfinite(values) & ~absent", "np.isinf(values)", "test_dialects.py"),
    Fault("spellings of missing", "data/cells.py", '"None", ', "", "test_dialects.py"),
    Fault("padded titles", "data/files.py", 'if "" not in names[1:] and', "if", "test_dialects.py"),
    Fault(
        "comments",
        "data/files.py",
        "return begin if _is_header(below.header, below.rows) else None",
        "return None",
        "test_dialects.py",
    ),
    Fault("names of data", "data/files.py", "or not _is_header(sheet.header, sheet.rows)", "", "test_dialects.py"),
    Fault("mixed factors", "data/columns.py", "if name in wanted.rules.coded", "if False", "test_dialects.py"),
    Fault("floor of columns", "data/policy.py", "0 < len(rows) - commonest < self.cells", "False", "test_glm.py"),
    Fault("floor of columns, alike", "data/policy.py", "_ALIKE = 1e-3", "_ALIKE = 0.0", "test_glm.py"),
    Fault("floor of one row", "data/policy.py", "_LEVERAGE = 0.9", "_LEVERAGE = 1.1", "test_glm.py"),
    Fault("floor of two rows", "data/policy.py", "_PAIR = 0.99", "_PAIR = 1.1", "test_glm.py"),
    Fault("columns that are one", "data/policy.py", "_COLLINEAR = 1e-12", "_COLLINEAR = 0.0", "test_glm.py"),
    Fault(
        "floor of arguments together",
        "models/formula.py",
        "[np.column_stack(list(numbers.values())) for numbers in values]",
        "[np.ones((len(frame), 1)) for frame in frames]",
        "test_glm.py",
    ),
    Fault(
        "floor of effects together", "models/formula.py", "if self.effects is None else", "if True else", "test_glm.py"
    ),
    Fault("tables without a policy", "data/studies.py", " and policy is not IN_MEMORY", "", "test_glm.py"),
    Fault(
        "floor of parts",
        "models/formula.py",
        "for x in (own, *self._numbers(call, frame, site))",
        "for x in (own,)",
        "test_glm.py",
    ),
    Fault(
        "floor of what is centred",
        "models/formula.py",
        "for x in (own, *self._numbers(call, frame, site))",
        "for x in self._numbers(call, frame, site)",
        "test_glm.py",
    ),
    Fault(
        "floor of weights",
        "models/tables.py",
        "*((str(named[k]), x) for k, x in beside.items())",
        "",
        "test_glm.py",
    ),
    Fault(
        "floor of a table's columns",
        "data/summaries.py",
        '{name for own in received for name in own["few"]}',
        "set()",
        "test_study.py test_collectives.py",
    ),
    Fault("masked sum of a silo", "engines/silo/worker.py", "add=lambda parts: added(*parts)", "", "test_masks.py"),
    # federations
    Fault(
        "part of a run in a study",
        "samplers/by_sums/method.py",
        "if interrupted and job.whole:",
        "if False:",
        "test_federation.py",
    ),
    Fault(
        "kinks of a coarse run",
        "samplers/by_sums/noisy_mode.py",
        "_UNLIKE * implied + doubt",
        "np.inf",
        "test_coarse.py",
    ),
    Fault(
        "section of a key",
        "models/sections.py",
        "if key not in known and owners",
        "if False and owners",
        "test_study.py",
    ),
    Fault(
        "levels that look alike before floors",
        "data/studies.py",
        "[*spellings(self.agreed.levels), *refusals[0]]",
        "refusals[0]",
        "test_dialects.py",
    ),
    Fault(
        "federation, own numbers",
        "federation/policy.py",
        "if not study.masks and not self.own_numbers:",
        "if False:",
        "test_federation.py",
    ),
    Fault(
        "federation, exact answers",
        "federation/policy.py",
        "if not study.coarse and not self.exact:",
        "if False:",
        "test_federation.py",
    ),
    Fault(
        "meter, limit",
        "federation/meter.py",
        "if least is not None and found.least < least:",
        "if False:",
        "test_meter.py",
    ),
    Fault(
        "meter, other studies",
        "federation/meter.py",
        "return reading([own, *others])",
        "return reading([own])",
        "test_meter.py",
    ),
    Fault(
        "meter, value at the origin",
        "federation/meter.py",
        "return found.at[:, 0].add(-along(cells, jnp.zeros_like(points[0]))[0]) if relative else found",
        "return found",
        "test_meter.py",
    ),
    Fault(
        "meter, clipped numbers",
        "posterior/coarse.py",
        "return ~self._hidden(noisy) & (np.abs(",
        "return (np.abs(",
        "test_meter.py",
    ),
    Fault("coarse, steep points", "posterior/coarse.py", " | (size > self.shown)", "", "test_coarse.py"),
    Fault(
        "coarse, steep expansions",
        "posterior/coarse.py",
        "self.expanded[1] * self._times(radius)[:, None]",
        "self.expanded[1]",
        "test_coarse.py",
    ),
    Fault(
        "ranges, rows decide",
        "data/ranges.py",
        "        return own[0]\n",
        "        return {name: sum(one[name] for one in own) for name in own[0]}\n",
        RANGES,
    ),
    Fault("ranges, unfit rows", "data/ranges.py", "fits &= is_known", "pass", RANGES),
    Fault(
        "ranges, no weight", "models/glm.py", "whole[name][fits] = values[:-1]", "whole[name][:] = values[-1]", RANGES
    ),
    Fault("ledger, no sum", "federation/ledger.py", "squares[shared] += other.mu**2", "squares[shared] += 0.0", LEDGER),
    Fault("ledger, other persons", "federation/ledger.py", "if other.person != own.person and", "if False and", LEDGER),
    Fault("ledger, other numbers", "federation/ledger.py", "number = _NUMBERS.number(text)", "number = None", LEDGER),
    Fault(
        "private, noise only", "samplers/by_sums/private_model.py", "return self.wider <= WIDEST", "return True", LEDGER
    ),
    Fault("ledger, few rows", "federation/ledger.py", "if any(0 < len(rows)", "if any(9e9 < len(rows)", FEW),
    Fault("ledger, few lost", "federation/ledger.py", "for rows in (own, other)", "for rows in (own,)", FEW),
    Fault("ledger, cells", "federation/ledger.py", "self._require_many(own.cells, other.cells)", "pass", FEW),
    Fault("ledger, repairs", "federation/program.py", "<= _COUNTS and refuses", "< 0 and refuses", FEW),
    Fault("ledger, both kinds", "federation/ledger.py", "mixed |= bool(shared.any())", "pass", LEDGER),
    Fault(
        "ledger, persons",
        "federation/ledger.py",
        "_plain(cells[place]) if",
        "_plain(cells[0]) if",
        LEDGER,
    ),
    Fault(
        "ledger, no limit", "federation/ledger.py", "and mu > _EXACTLY * strength", "and mu > 1e9 * strength", LEDGER
    ),
    Fault(
        "private, columns of two values",
        "samplers/by_sums/private_model.py",
        "for number, low, high in levels:",
        "for number, low, high in ():",
        "test_private.py",
    ),
    Fault(
        "private, weight of kernels",
        "samplers/by_sums/private_linear.py",
        "float(0.999 * (left",
        "float(1.2 * (left",
        "test_private.py",
    ),
    Fault(
        "private, normality",
        "samplers/by_sums/private_linear.py",
        "holds = off",
        "holds = 0.0 * off",
        "test_private.py",
    ),
    Fault(
        "private, norm of the dispersion",
        "samplers/by_sums/private_families.py",
        "xp.sqrt(squares + (dispersion[:, 1] / self.dispersed(xp)) ** 2)",
        "xp.sqrt(squares)",
        "test_private.py",
    ),
    Fault(
        "private, dispersion",
        "samplers/by_sums/private_families.py",
        "holds = off",
        "holds = 0.0 * off",
        "test_private.py",
    ),
    Fault(
        "private, covariance of scores",
        "samplers/by_sums/private_families.py",
        "covariance = root @",
        "covariance = 1.1 * root @",
        "test_private.py",
    ),
    Fault(
        "private, centres of scores",
        "samplers/by_sums/private_families.py",
        "scores - centre, 0.0",
        "scores, 0.0",
        "test_private.py",
    ),
    Fault(
        "federation, messages without masks",
        "federation/flower/board.py",
        "if not study.masks:\n            raise",
        "if False:\n            raise",
        "test_federation.py",
    ),
    Fault(
        "federation, signatures",
        "federation/entry.py",
        "if not is_signed(public[entry.site], _PURPOSE + line, proof):",
        "if False:",
        "test_federation.py",
    ),
    Fault(
        "federation, place of an entry",
        "federation/exchange.py",
        "        if (entry.study, entry.step, entry.site) != (self.study, step, site):",
        "        if False:",
        "test_federation.py",
    ),
    Fault(
        "federation, second entry of a step",
        "federation/exchange.py",
        "            if stored is not None:\n                raise",
        "            if False:\n                raise",
        "test_federation.py",
    ),
    Fault(
        "federation, earlier entries",
        "federation/exchange.py",
        "if entry.before != self.before:",
        "if False:",
        "test_federation.py",
    ),
    Fault(
        "federation, entry made again",
        "federation/exchange.py",
        "if self.site is not None and entries[self.site] is None:\n            plan_there",
        "if self.site is not None:\n            plan_there",
        "test_federation.py",
    ),
    Fault(
        "federation, plan of other numbers",
        "federation/exchange.py",
        "rtol=_APART, atol=_APART, equal_nan=True",
        "rtol=1e-3, atol=1e-3, equal_nan=True",
        "test_federation.py",
    ),
    Fault(
        "federation, recipe of points",
        "federation/exchange.py",
        "        _require_same_mixture(name, mixture, proposal)",
        "",
        "test_federation.py",
    ),
    Fault(
        "federation, digest of the plan",
        "federation/exchange.py",
        "            if entry.plan != chosen:",
        "            if False:",
        "test_federation.py",
    ),
    Fault(
        "federation, masks of a context",
        "federation/keys.py",
        'b"accord step 1" + context.encode()',
        'b"accord step 1"',
        "test_federation.py",
    ),
    Fault(
        "federation, noise of a context",
        "federation/keys.py",
        'b"accord noise 1" + context.encode()',
        'b"accord noise 1"',
        "test_federation.py",
    ),
    Fault(
        "federation, lines of cells",
        "federation/entry.py",
        "        return value.elsewhere",
        "        return str(value)",
        "test_federation.py",
    ),
    Fault(
        "federation, positions",
        "federation/program.py",
        "if before + points > self.policy.points:",
        "if False:",
        "test_federation.py",
    ),
    Fault(
        "federation, factors",
        "federation/exchange.py",
        "np.abs(change).max(initial=0.0))",
        "0.0)",
        "test_federation.py",
    ),
    Fault(
        "federation, wider message",
        "federation/engine.py",
        'Plan(f"{name}, wider, {self.sums}", {})',
        'Plan(f"{name}, wider, {self.sums}", parts)',
        "test_federation.py",
    ),
    Fault(
        "federation, offsets as positions",
        "federation/engine.py",
        "len(arguments[1]) if function is mean_expansion else 1",
        "1",
        "test_federation.py",
    ),
    Fault(
        "federation, noise of summaries",
        "federation/engine.py",
        "figures.leaves_of(noisy[0](self.noise_of(context)))",
        "figures.leaves_of(own[0])",
        "test_federation.py",
    ),
    Fault(
        "federation, links in a folder",
        "federation/exchange.py",
        "os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK",
        "os.O_RDONLY | os.O_NONBLOCK",
        "test_federation.py",
    ),
    Fault(
        "federation, refusals",
        "federation/exchange.py",
        "        if any(map(refuses, entries.values())):",
        "        if False:",
        "test_federation.py",
    ),
    Fault("federation, line ends", "federation/entry.py", '.removesuffix(b"\\r")', "", "test_carried_files.py"),
    Fault("federation, texts of others", "base/text.py", 'c if c.isprintable() else " "', "c", "test_carried_files.py"),
    # files from strangers
    Fault("run file, links", "results/netcdf.py", "if not isinstance(group.get(", "if not (group.get(", OUTPUT),
    Fault("run file, other files", "results/netcdf.py", "array.is_virtual or array.external", "False", OUTPUT),
    Fault("run file, cycles", "results/netcdf.py", "if _address(part) in met:", "if False:", OUTPUT),
    Fault("run file, filters", "results/netcdf.py", "get_nfilters()", "get_nfilters() > 9", OUTPUT),
    Fault("run file, sizes", "results/netcdf.py", "if declared > _MOST_DECLARED * size:", "if False:", OUTPUT),
    Fault("run file, long texts", "results/netcdf.py", "yield len(part[place])", "yield 0", OUTPUT),
    Fault(
        "run file, texts of attributes",
        "results/netcdf.py",
        "yield sum(len(str(one)) for one",
        "yield 0 * sum(len(str(one)) for one",
        OUTPUT,
    ),
    Fault("run file, finite draws", "results/netcdf.py", "        if count:", "        if False:", OUTPUT),
    Fault("run file, digest", "results/netcdf.py", "elif tree.attrs[_DIGEST] != digest(tree):", "elif False:", OUTPUT),
    Fault("table cell that is a formula", "base/text.py", '"@", "\\t"', '"@"', OUTPUT),
    # centred and non-centred effects of the fallback
    Fault("centring volume", "samplers/by_sums/centring.py", "-jnp.ones_like(volume)", "0.0 * volume", CENTRING),
    Fault("centring F", "samplers/by_sums/centring.py", "values - np.asarray(volume)", "values + 0.0", CENTRING),
    Fault("centring depth", "samplers/by_sums/centring.py", "fori_loop(0, depth,", "fori_loop(0, 1,", CENTRING),
    Fault("centring share", "samplers/by_sums/centring.py", "np.exp(-2.0 * log_scale[near])", "0.0", CENTRING),
    Fault("effects not normal", "models/bridges/split.py", "_alike(here[k], elsewhere[k]) and", "", CENTRING),
    Fault(
        "centring, spread of effects",
        "samplers/by_sums/centring.py",
        "apart, score = x[near] - x[near].mean(axis=0)",
        "apart, score = (x - location)[near] - (x - location)[near].mean(axis=0)",
        CENTRING,
    ),
    Fault("far start", "samplers/by_sums/start.py", "_OF_EFFECTS = 1e4, 100.0", "_OF_EFFECTS = 1e4, 1e99", CENTRING),
    Fault("degrees of freedom", "samplers/by_sums/chees.py", "_FREEDOM = 3.75", "_FREEDOM = 2.75", IMPORTANCE),
    Fault(
        "tail's gradient",
        "samplers/by_sums/chees.py",
        "1.0 / max(float(heaviest[worst]), 1e-3) - 1.0",
        "9.0",
        IMPORTANCE,
    ),
]


def run(fault: Fault, folder: Path) -> tuple[bool, str, float]:
    """Whether the quick tests catch a fault, the first test that does, and the seconds that took."""
    copy = folder / "src"
    shutil.rmtree(copy, ignore_errors=True)
    for name, package in PACKAGES.items():
        shutil.copytree(package, copy / name)
    file = copy / fault.package / fault.file
    text = file.read_text(encoding="utf-8")
    if text.count(fault.before) == 0:
        raise SystemExit(f"{fault.name}: {fault.file} does not hold {fault.before!r}")
    file.write_text(text.replace(fault.before, fault.after, 1), encoding="utf-8")
    path = os.pathsep.join([str(copy), *filter(None, [os.environ.get("PYTHONPATH")])])
    tests = [str(HERE / name) for name in fault.tests.split()]
    began = time.perf_counter()
    how = "-q -x --no-header -p no:cacheprovider -m".split()
    command = [sys.executable, "-m", "pytest", *how, "not slow", *tests]
    found = subprocess.run(
        command, cwd=HERE.parent, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    lines = [line for line in found.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    first = lines[0].removeprefix("FAILED ").split(" - ")[0] if lines else f"pytest ended with {found.returncode}"
    return found.returncode == 1, first.removeprefix("tests/"), time.perf_counter() - began


def main() -> None:
    chosen = [f for f in FAULTS if not sys.argv[1:] or any(word in f.name for word in sys.argv[1:])]
    survived = []
    with tempfile.TemporaryDirectory() as folder:
        for fault in chosen:
            caught, first, seconds = run(fault, Path(folder))
            print(f"| {fault.name} | {'caught' if caught else 'SURVIVED'} | {first} | {seconds:.0f} s |", flush=True)
            survived += [] if caught else [fault.name]
    print(f"{len(chosen)} faults, {len(survived)} not caught{': ' if survived else ''}{', '.join(survived)}")
    sys.exit(bool(survived))


if __name__ == "__main__":
    main()
