"""Coarse answers of a site in R: noise, rounding and widths as in Python, in a study with sites in Python."""

import json
import subprocess

import jax
import numpy as np
import pytest
import scipy.stats
from test_federation import COARSE, SITES, Federation, back, drawn_here
from test_r_site import HAS_R, PLANNED, RSCRIPT, SITE, R, refused, run_mixed, site_in_r, words_of

from accord.base.errors import DataError
from accord.data.collectives import sums_of
from accord.federation import Entry, result
from accord.federation.engine import CoarseStudyTotals
from accord.federation.entry import digest_of, revived
from accord.federation.exchange import Plan
from accord.federation.keys import SiteMasks
from accord.posterior.coarse import FLAG, Coder, Noise
from accord.posterior.masks import integers_under_masks

pytestmark = pytest.mark.skipif(not HAS_R, reason="needs Rscript with the packages jsonlite and openssl")

# No option of `[run]` but the positions, which R needs.
WITH_R = f"{COARSE}points = true\n"
# Most standard errors of a mean or a variance of the noise.
MOST = 5.0


def in_r(folder, program, asked=None):
    """The JSON that a program in R prints, which has the functions of a site."""
    (folder / "program.R").write_text(f"source('{R / 'accord-site.R'}')\n{program}")
    (folder / "asked.json").write_text(json.dumps(asked))
    words = [str(RSCRIPT), "program.R", "asked.json"]
    out = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)


READ = "asked <- fromJSON(commandArgs(TRUE)[1], simplifyVector = FALSE)\n"


# --- noise ---

NORMALS = """
secret <- as.raw(1:32)
normals <- normals_of(secret, "one")
first <- normals(3)
again <- normals_of(secret, "one")
cat(json(list(many = normals(200000), same = identical(first, again(3)), next_one = identical(normals(4), again(4)),
              other = normals_of(secret, "other")(200000), secret = normals_of(as.raw(2:33), "one")(3),
              first = first, none = length(normals(0)))))
"""


def spread(z):
    """The mean and the variance of numbers that should be standard normal, in standard errors from 0 and 1."""
    z = np.asarray(z)
    return z.mean() * z.size**0.5, (z.var() - 1.0) * (z.size / 2.0) ** 0.5


def test_normal_numbers(tmp_path):
    found = in_r(tmp_path, NORMALS.replace("again(4))", "{ again(200000); again(4) })"))
    many, other = np.array(found["many"]), np.array(found["other"])
    assert found["same"] and found["next_one"] and found["none"] == 0
    assert np.abs(spread(many)).max() < MOST
    assert scipy.stats.kstest(many, "norm").pvalue > 1e-6
    assert abs(np.corrcoef(many, other)[0, 1]) < MOST / many.size**0.5
    assert abs(np.corrcoef(many[1:], many[:-1])[0, 1]) < MOST / many.size**0.5
    assert not np.isclose(found["first"], found["secret"]).any()


class Given:
    """Given normal numbers, one after another."""

    def __init__(self, numbers):
        self.numbers, self.used = np.asarray(numbers), 0

    def standard_normal(self, size):
        first, self.used = self.used, self.used + int(np.prod(size))
        return self.numbers[first : self.used].reshape(size)


SUMS = (
    READ
    + """
x <- matrix(unlist(asked$x), ncol = 4, byrow = TRUE)
given <- function() { used <- 0; function(n) { used <<- used + n; unlist(asked$normals)[used - n + seq_len(n)] } }
cat(json(list(exact = sums_of(x, unlist(asked$centre)), noisy = sums_of(x, unlist(asked$centre), given()),
              none = sums_of(x[0, ], unlist(asked$centre), given()))))
"""
)


def test_noise_of_summaries_equals_that_in_python(tmp_path):
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(50.0, 9.0, 40), np.ones(40), rng.normal(1e6, 1e-3, 40), rng.normal(0, 4.1, 40)])
    centre, normals = np.array([2.0, 0.0, 1e6, -1.0]), rng.standard_normal(8)
    asked = {"x": x.tolist(), "centre": centre.tolist(), "normals": normals.tolist()}
    found = in_r(tmp_path, SUMS, asked)
    np.testing.assert_allclose(found["exact"], sums_of(x, centre), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found["noisy"], sums_of(x, centre, Given(normals)), rtol=1e-12, atol=1e-12)
    assert found["none"] == [[0] * 4] * 2


CODERS = (
    READ
    + """
named <- function(coder) c(coder[c("first", "noise", "grid", "width", "added", "value", "near")],
                           list(shown = pmin(coder$shown, 1e300)))
cat(json(lapply(asked, function(one) named(
  if (one$kind == "origin") coder_of_origin(one$sites, one$first)
  else coder_of(one$kind, unlist(one$radius), one$sites, one$dim, one$rows)))))
"""
)


def test_noise_grids_and_widths_equal_those_in_python(tmp_path):
    """No number of a site with R has less noise, or another grid, than at a site with Python."""
    rng = np.random.default_rng(1)
    asked, expected = [], []
    for sites, dim, rows in [(3, 3, 270), (4, 1, 40), (7, 12, 3000), (20, 31, 10**6), (100, 2, 10**7)]:
        noise = Noise(sites, dim, rows)
        for kind in ("value", "slope", "expansion", "jet"):
            for radius in (
                np.zeros(1),
                np.append(np.abs(rng.standard_normal(6)) * 10.0 ** rng.integers(-3, 9, 6), [0.0, dim**0.5 + 3.0]),
                np.array([dim**0.5, 0.3]),
            ):
                asked.append({"kind": kind, "radius": radius.tolist(), "sites": sites, "dim": dim, "rows": rows})
                expected.append(noise.coder(kind, radius))
        noise = Noise(sites, dim, rows)
        expected.append(noise.coder_of_origin())
        noise.origins[b""] = 0.0
        expected.append(noise.coder_of_origin())
        asked += [{"kind": "origin", "sites": sites, "first": first} for first in (True, False)]
    found = in_r(tmp_path, CODERS, asked)
    widths = set()
    for own, one, what in zip(found, expected, asked, strict=True):
        np.testing.assert_array_equal(np.ravel(own.pop("first")) - 1, one.first)
        for name, numbers in own.items():
            expected_ones = np.minimum(getattr(one, name), 1e300)
            np.testing.assert_allclose(np.ravel(numbers), expected_ones, rtol=1e-14, err_msg=f"{name} of {what}")
        widths |= set(np.ravel(own["width"]))
    assert widths == {2, 3, 4}


MESSAGES = (
    READ
    + """
cat(json(lapply(asked, function(one) {
  coder <- lapply(one$coder, function(x) unlist(lapply(x, revived)))
  message_of(unlist(lapply(one$noisy, revived)), coder, one$sites)
})))
"""
)


def test_rounded_and_clipped_numbers_equal_those_in_python(tmp_path):
    rng = np.random.default_rng(2)
    noise = Noise(3, 2, 100)
    radius = np.array([0.0, 1.0, 4.0, 5.0, 40.0, 3e4])
    # ordinary, with ties, beyond the range, far beyond it, without mass, and not finite
    sizes = np.array([1.0, 100.0, 3e3, 1e5, 3e6, 1e12, np.inf])
    asked, expected = [], []
    for kind in ("value", "slope", "expansion", "jet"):
        coder = noise.coder(kind, radius)
        coders = [coder, coder.wider()] if (coder.width < 4).any() else [coder]
        for wide in (*coders, coder.beside(noise.coder_of_origin())):
            for _ in range(40):
                noisy = rng.choice(sizes, wide.noise.size, p=[0.7, 0.1, 0.1, 0.05, 0.02, 0.02, 0.01])
                noisy = np.where(np.isfinite(noisy), noisy * rng.standard_normal(wide.noise.size), np.inf)
                noisy = np.where(rng.random(noisy.size) < 0.1, (np.rint(noisy) + 0.5) * wide.grid, noisy)
                if rng.random() < 0.5:
                    # nothing that must not be clipped
                    noisy = np.where(np.abs(noisy) < 50.0, noisy, np.inf)
                fields = {name: np.minimum(getattr(wide, name), 1e300).tolist() for name in Coder._fields[2:]}
                fields["first"] = (wide.first + 1).tolist()
                numbers = [{"float": "inf"} if np.isinf(one) else one for one in noisy]
                asked.append({"coder": fields, "noisy": numbers, "sites": 3})
                expected.append(wide.message(noisy))
    found = in_r(tmp_path, MESSAGES, asked)
    for own, one in zip(found, expected, strict=True):
        np.testing.assert_array_equal(own, one)
    assert 0.1 < np.mean([one[-1] for one in expected]) < 0.9


# --- a study ---


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    federation = Federation(tmp_path_factory.mktemp("mixed"), WITH_R, **dict.fromkeys(SITES, {"exact": False}))
    return federation, *run_mixed(federation)


@pytest.fixture
def at(mixed, tmp_path):
    """A copy of the finished study before a step."""
    return lambda step: back(mixed[0], tmp_path / f"before {step}", step)


def asked_at(federation, folder, name=SITE):
    """The step, the coder and the exact numbers of each message of a site with noise.

    A site with Python computes them, which has the rows and the entries of the site, and makes none of them again.
    """
    found, usual = [], CoarseStudyTotals._sender

    def sender(self, coder, question):
        with jax.enable_x64(True):
            (part,) = question.answered(self.exact.model.totals_here())
        found.append((self.exact.sums.exchange.step, coder, part, question))
        return usual(self, coder, question)

    copy = back(federation, folder, 10**6)
    before = {path: path.read_bytes() for path in copy.store(name).folder.rglob(f"{name}.json")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CoarseStudyTotals, "_sender", sender)
        copy.answer(name)
    assert {path: path.read_bytes() for path in before} == before
    return found


def content_of(federation, step, name=SITE):
    return Entry.read(federation.store(name).read(step, name), federation.public, name)


def levels_of(federation, step, coder, name=SITE):
    """The integers of a site's message, without masks, and its flag."""
    entry, whole = content_of(federation, step, name), coder.beside(FLAG)
    numbers = whole.unpacked(revived(entry.content)["coarse"])
    agent, keys = SiteMasks(federation.store(name).folder.parent)._keys_for(entry.before + entry.plan)
    masks = integers_under_masks(np.zeros_like(numbers), whole.mask, agent, keys, step + 1)
    plain = (numbers - masks) & whole.mask
    half = np.left_shift(1, 8 * whole.width - 1)
    levels = np.where(plain >= half, plain - 2 * half, plain)
    return levels[:-1], levels[-1]


def errors_of(federation, asked, name=SITE):
    """The noise of each number of a site in its expected sds, by kind of number."""
    found = {}
    for step, coder, part, _ in asked:
        levels, flag = levels_of(federation, step, coder, name)
        assert flag == 0
        z = (levels * coder.grid - part - coder.added) / np.sqrt(coder.noise**2 + coder.grid**2 / 12.0)
        fits = np.abs(levels) < coder.most
        kinds = np.where(coder.value, "value", np.where(coder.first == np.arange(part.size), "origin", "derivative"))
        for kind in np.unique(kinds):
            found.setdefault(kind, []).append(z[fits & (kinds == kind)])
    return {kind: np.concatenate(parts) for kind, parts in found.items()}


def assert_standard(errors):
    """Mean and variance of the noise are right."""
    for kind, z in errors.items():
        mean, variance = spread(z)
        assert abs(mean) < MOST, (kind, z.size, mean)
        assert z.size < 30 or abs(variance) < MOST, (kind, z.size, variance)


@pytest.mark.slow
def test_draws_with_a_site_in_r_agree_with_the_pooled_posterior(mixed):
    federation, runs, output = mixed
    expected = drawn_here(federation)
    mean, sd = expected.average.mean(axis=(0, 1)), expected.average.std(axis=(0, 1))
    for run in (*runs.values(), result(federation.study, federation.board.folder)):
        np.testing.assert_array_equal(run.draws, runs["north"].draws)
        assert run.certificate.holds and run.names == expected.names
        # as in a study of three sites with Python
        assert np.abs((run.average.mean(axis=(0, 1)) - mean) / sd).max() < 0.3
        assert np.abs(np.log(run.average.std(axis=(0, 1)) / sd)).max() < 0.2
    assert "the study is finished" in output and "ward[b]" in output
    plans = [json.loads(path.read_text().splitlines()[0]) for path in federation.board.folder.rglob("north.json")]
    asked = {plan["written"].get("what") for plan in plans}
    assert {"expansion_of", "mode_of", "jet_of", "slope_of and value_of"} <= asked


@pytest.mark.slow
def test_noise_of_a_site_in_r_has_the_public_sds(mixed, tmp_path):
    federation = mixed[0]
    asked = asked_at(federation, tmp_path / "replayed")
    errors = errors_of(federation, asked)
    assert errors["value"].size > 1000 and errors["derivative"].size > 500 and errors["origin"].size == 1
    assert_standard(errors)
    assert scipy.stats.kstest(errors["value"], "norm").pvalue > 1e-6
    # sums of all sites have the noise of three
    others = {name: asked_at(federation, tmp_path / name, name) for name in federation.sites[:2]}
    z = []
    for number, (step, coder, part, _) in enumerate(asked):
        parts = [part, *(own[number][2] for own in others.values())]
        contents = [revived(content_of(federation, step, name).content)["coarse"] for name in (*others, SITE)]
        whole = coder.beside(FLAG)
        total = coder.decoded(whole.added_up([whole.unpacked(one) for one in contents])[:-1])
        apart = total - np.sum(parts, axis=0) - 3 * coder.added
        z.append((apart / np.sqrt(3 * (coder.noise**2 + coder.grid**2 / 12.0)))[total < 1e11])
    assert_standard({"sum": np.concatenate(z)})


CHANGED = """
usual <- normals_of
normals_of <- function(...) { normals <- usual(...); function(n) normals(n) * %s }
main(commandArgs(TRUE)[-1])
"""


def with_noise_times(federation, factor):
    """Let a site whose noise has another size answer."""
    program = federation.folder / "changed.R"
    program.write_text(f"source(commandArgs(TRUE)[1])\n{CHANGED % factor}")
    rscript, site, *words = words_of(federation, "answer", "--yes")
    out = subprocess.run(
        [rscript, str(program), site, *words], capture_output=True, text=True, check=False, timeout=300
    )
    assert out.returncode == 0, out.stderr


def step_of_most_numbers(federation, folder):
    step, coder, *_ = max(asked_at(federation, folder), key=lambda one: one[1].noise.size)
    return step, coder


@pytest.mark.slow
def test_without_noise_a_site_in_r_sends_the_rounded_numbers_of_python(mixed, at, tmp_path):
    compared = 0
    for step, *_ in asked_at(mixed[0], tmp_path / "replayed"):
        federation = at(step)
        federation.answer("north")
        with_noise_times(federation, 0)
        _, coder, part, _ = asked_at(federation, tmp_path / f"again {step}")[-1]
        levels, flag = levels_of(federation, step, coder)
        expected = coder.message(part + coder.added)
        np.testing.assert_array_equal(flag, expected[-1])
        apart = np.abs(levels * coder.grid - part - coder.added)
        fits = np.abs(levels) < coder.most
        assert (apart[fits] <= (0.5 + 1e-6) * coder.grid[fits]).all() and fits.mean() > 0.9
        # numbers between two levels may go to either side
        assert ((levels & coder.mask) == expected[:-1]).mean() > 0.999
        compared += fits.sum()
    assert compared > 1500


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_noise_of_another_size_is_noticed(mixed, at, tmp_path, factor):
    step, _ = step_of_most_numbers(mixed[0], tmp_path / "replayed")
    federation = at(step)
    federation.answer("north")
    with_noise_times(federation, factor)
    errors = errors_of(federation, asked_at(federation, tmp_path / "again")[-1:])
    with pytest.raises(AssertionError):
        assert_standard(errors)


@pytest.mark.slow
def test_an_entry_that_was_lost_before_it_left_is_made_with_the_same_noise(mixed, at):
    federation = at(PLANNED)
    federation.answer("north")
    found = []
    for _ in range(2):
        assert site_in_r(federation, "answer", "--yes").returncode == 0
        found.append(federation.board.read(PLANNED, SITE))
        federation.board.path(PLANNED, SITE).unlink()
        federation.store(SITE).path(PLANNED, SITE).unlink()
    assert found[0] == found[1] == mixed[0].board.read(PLANNED, SITE)


@pytest.mark.slow
def test_the_keys_of_the_site_stay_there(mixed):
    federation = mixed[0]
    kept = federation.store(SITE).folder.parent
    state = json.loads((kept / "masks.json").read_text())
    sent = b"".join(path.read_bytes() for path in federation.board.folder.rglob("*.json"))
    sent += (kept.parent / "audit.jsonl").read_bytes()
    for key in (state["noise"], *state["keys"].values()):
        assert len(key) == 44 and key.encode() not in sent
    assert "private" not in state and (kept / "masks.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_masked_numbers_are_not_shown(at):
    federation = at(PLANNED)
    federation.answer("north")
    found = site_in_r(federation, text="y\n")
    assert found.returncode == 0 and "with noise and rounded, at 1 position" in found.stdout
    assert "coarse" not in found.stdout and "base64" not in found.stdout
    (line,) = [one for one in federation.audit(SITE) if one.get("step") == PLANNED][-1:]
    assert line["sent"] == "numbers under masks"


# --- numbers that do not fit ---


def clipped(self, noisy):
    """A message whose flag asks for wider numbers."""
    return np.append(self.rounded(noisy)[0], 1)


@pytest.fixture
def wider(at, monkeypatch):
    """A study before the wider message of a step."""

    def make(step):
        federation = at(step)
        with monkeypatch.context() as patch:
            patch.setattr(Coder, "message", clipped)
            federation.answer("north")
        assert site_in_r(federation, "answer", "--yes").returncode == 0
        federation.answer("south")
        federation.answer("north")
        return federation

    return make


@pytest.mark.slow
def test_wider_numbers_have_the_same_noise(mixed, wider, tmp_path):
    step, coder = step_of_most_numbers(mixed[0], tmp_path / "replayed")
    assert (coder.width < 4).any()
    federation = wider(step)
    assert content_of(federation, step + 1, "north").written["what"].endswith(", wider, 1")
    points = (federation.store(SITE).folder.parent / "points.txt").read_text()
    found = site_in_r(federation, "answer", "--yes")
    assert found.returncode == 0 and "the numbers of the step before, in more bytes" in found.stdout
    assert (federation.store(SITE).folder.parent / "points.txt").read_text() == points
    narrow, wide = levels_of(federation, step, coder)[0], levels_of(federation, step + 1, coder.wider())[0]
    fits = np.abs(narrow) < coder.most
    np.testing.assert_array_equal(narrow[fits], wide[fits])
    assert fits.mean() > 0.9 and wide.size == narrow.size


def another_plan(federation, step, **changes):
    """The first site's entry of a step with another plan."""
    written = content_of(federation, step, "north").written | changes
    federation.change(step, "north", written=written, plan=digest_of(written))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["value_of, wider, 1", "expansion_of, wider, 2", "expansion_of, wider, 1e0"])
def test_wider_numbers_of_another_step_are_refused(wider, what):
    federation = wider(PLANNED)
    assert content_of(federation, PLANNED + 1, "north").written["what"] == "expansion_of, wider, 1"
    another_plan(federation, PLANNED + 1, what=what)
    refused(federation, "the plan asks for wider numbers of another step")


@pytest.mark.slow
def test_wider_numbers_that_no_site_needs_are_refused(at):
    federation = at(PLANNED + 1)
    federation.answer("north")
    another_plan(federation, PLANNED + 1, what="expansion_of, wider, 1", parts={})
    refused(federation, "the plan asks for wider numbers, and no number was clipped")


@pytest.mark.slow
def test_plans_that_a_site_cannot_answer_are_refused(at):
    federation = at(PLANNED)
    federation.answer("north")
    written = content_of(federation, PLANNED, "north").written
    for radii, message in (
        (None, "the plan has no radii"),
        ({"shape": [2], "type": "<f8", "values": [0.0, 0.0]}, "the plan has no radii"),
        ({"shape": [1], "type": "<f8", "values": [-1.0]}, "the plan has no radii"),
        ({"shape": [1], "type": "<f8", "values": [{"float": "inf"}]}, "the plan has no radii"),
    ):
        parts = {name: part for name, part in written["parts"].items() if name != "radii"}
        another_plan(federation, PLANNED, parts=parts if radii is None else parts | {"radii": radii})
        refused(federation, message)
        federation.store(SITE).path(PLANNED, "north").unlink()
    another_plan(federation, PLANNED, what="mean_expansion")
    refused(federation, "evaluates mean_expansion: a site with R evaluates only value_of")


def twice_as_wide(parts):
    """Other coordinates, beside those that sites with Python read."""
    own = parts["coordinates"]
    factor = {**own["factor"], "values": [2.0 * x for x in own["factor"]["values"]]}
    parts["coordinates"] = own | {"drawn": [], "points": own | {"factor": factor}}


def not_counted(parts):
    """Drawn positions that look like none."""
    drawn = [part for part in parts.values() if "drawn" in part]
    for part in drawn:
        part["shape"] = [0, 3]
    assert drawn


def beyond_a_nul_character(parts):
    """Other drawn positions, under a key that R cuts to `points`. Sites with Python need no positions."""
    for part in parts.values():
        if "drawn" in part:
            part["points\0"] = part.pop("points")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "before_end", "message"),
    [
        (twice_as_wide, 4, "the plan has a part of another format"),
        (not_counted, 2, "the plan has a part of another format"),
        (beyond_a_nul_character, 2, "has a key twice or a NUL character"),
    ],
)
def test_a_plan_that_r_and_python_would_read_in_different_ways_is_refused(
    mixed, at, monkeypatch, change, before_end, message
):
    """Sites with Python take part in the plan, so that no other site would have to help the first one."""
    step = len(list(mixed[0].board.folder.glob("step-*"))) - before_end
    federation, usual = at(step), Plan.written

    def written(self, *, with_points=False):
        found = usual(self, with_points=with_points)
        if self.parts:
            change(found["parts"])
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Plan, "written", written)
        federation.answer("north")
    assert federation.answer("south").waits_for == (SITE,)
    refused(federation, message)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [{}, {"noise": ""}, {"noise": "AAAA"}])
def test_a_lost_key_of_the_noise_ends_the_study(at, lost):
    federation = at(PLANNED)
    path = federation.store(SITE).folder.parent / "masks.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps({name: key for name, key in state.items() if name != "noise"} | lost))
    federation.answer("north")
    refused(federation, "the key of this site's noise is lost")


@pytest.mark.slow
def test_sites_with_python_refuse_other_radii(at):
    federation = at(PLANNED)
    federation.answer("north")
    radii = {"shape": [1], "type": "<f8", "values": [0.5]}
    another_plan(
        federation, PLANNED, parts=content_of(federation, PLANNED, "north").written["parts"] | {"radii": radii}
    )
    with pytest.raises(DataError, match="radii has other numbers"):
        federation.answer("south")
