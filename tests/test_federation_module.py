"""Studies whose model is a function of NumPyro that sites have installed and approved by its file's hash."""

import hashlib
import json

import jax
import numpy as np
import pandas as pd
import pytest
from test_federation import SITES, Federation, entries_of, everything

import accord
from accord.base.errors import DataError
from accord.federation import RefusedError, StudyDocument, result

MODULE = """
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def hospitals(x, died, ward, wards):
    b = numpyro.sample("b", dist.Normal(0, 2).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("ward", wards):
        effect = numpyro.sample("effect", dist.Normal(0, tau))
    with numpyro.plate("rows", len(died)):
        numpyro.sample("died", dist.Bernoulli(logits=x @ b / 50 + effect[ward]), obs=died)


def loud(x, died, ward, wards):
    if len(died) > 20:
        raise ValueError(f"row {float(x[0, 0])}")
    hospitals(x, died, ward, wards)
"""
NAME = "approved_hospitals"


def study(function="hospitals", **model):
    model = {"hash": hashlib.sha256(MODULE.encode()).hexdigest(), "local": "ward", "integers": ["died"], **model}
    lines = [f"{key} = {json.dumps(value)}" for key, value in model.items()]
    return "\n".join(
        [
            f"[data]\nsites = {json.dumps(SITES)}",
            f'[model]\nnumpyro = "{NAME}:{function}"',
            *lines,
            '[model.arguments]\nx = ["one", "age"]\ndied = "died"\nward = {group = "ward"}\nwards = {groups = "ward"}',
            "[run]\ndraws = 200\ncoarse = false\n",
        ]
    )


def rows(place, count=80):
    rng = np.random.default_rng(place)
    age = rng.normal(0, 20, count).round(3)
    columns = {"one": 1, "age": age, "ward": rng.integers(3, 6, count), "died": rng.integers(0, 2, count)}
    return pd.DataFrame(columns)


@pytest.fixture
def federation(tmp_path, monkeypatch):
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / f"{NAME}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "installed")

    def make(text=None, **changes):
        text = study() if text is None else text
        approved = f"{{{NAME} = {json.dumps(hashlib.sha256(MODULE.encode()).hexdigest())}}}"
        found = Federation(tmp_path, text, **changes)
        for place, name in enumerate(SITES):
            (tmp_path / name / "rows.csv").write_text(rows(place).to_csv(index=False))
            policy = tmp_path / name / "site.toml"
            if "modules" not in changes.get(name, {}):
                policy.write_text(f"modules = {approved}\n" + policy.read_text())
        return found

    return make


def here():
    """The same model of rows in this process."""
    scope = {}
    exec(MODULE, scope)
    shards = []
    for place in range(3):
        own = rows(place)
        _, group = np.unique(own["ward"], return_inverse=True)
        x = own[["one", "age"]].to_numpy(float)
        shards.append({"x": x, "died": own["died"].to_numpy(), "ward": group, "wards": int(group.max()) + 1})
    return accord.from_numpyro(scope["hospitals"], shards, local="ward")


@pytest.mark.slow
def test_draws_equal_the_draws_of_one_process_and_effects_stay(federation):
    found = federation()
    # each answer compiles the model again, which takes memory
    runs = found.run(between=jax.clear_caches)
    # sites evaluate nothing far from the prior
    expected = accord.sample(here().finely().near_prior(10.0), accord.Network.star(3), draws=200)
    for run in (*runs.values(), result(found.study, found.board.folder)):
        assert run.certificate.holds and run.names == expected.names
        np.testing.assert_allclose(run.draws, expected.draws, rtol=1e-9, atol=1e-9)
    assert not any("effect" in name for name in expected.names)
    assert b"effect" not in everything(found)
    assert all(any((found.folder / name / "kept").rglob("*latents*")) for name in SITES)


@pytest.mark.parametrize(
    ("modules", "text"),
    [({}, "does not allow the module approved_hospitals of hash"), ({NAME: "0" * 64}, "to add the hash to `modules`")],
)
def test_a_site_refuses_code_that_is_not_approved(federation, tmp_path, modules, text):
    found = federation()
    policy = tmp_path / "south" / "site.toml"
    lines = policy.read_text().splitlines()
    inner = ", ".join(f"{name} = {json.dumps(value)}" for name, value in modules.items())
    policy.write_text("\n".join([f"modules = {{{inner}}}", *lines[1:]]))
    with pytest.raises(RefusedError, match=text):
        found.answer("south")
    assert text in found.audit("south")[-1]["refused"] and not entries_of(found.store("south").folder)


def test_a_changed_file_is_not_run(federation, tmp_path):
    found = federation()
    ran = tmp_path / "ran"
    path = tmp_path / "installed" / f"{NAME}.py"
    path.write_text(MODULE + f"\nopen({str(ran)!r}, 'w')\n")
    with pytest.raises(DataError, match="differs here: its file has another hash"):
        found.run()
    assert not ran.exists()
    path.unlink()
    with pytest.raises(DataError, match="is not installed here as one file"):
        found.run()


def test_errors_of_a_model_quote_no_row(federation):
    found = federation(study("loud"))
    with pytest.raises(DataError) as caught:
        found.run()
    assert "could not be read: ValueError in loud, line 18 of" in str(caught.value)
    cell = str(rows(0)["age"][0])
    assert cell not in str(caught.value) and b"row 1.0" not in everything(found)
    entries = [[step, site, text.decode()] for (step, site), text in found.board.all(SITES).items()]
    answer = found.message("west", json.dumps({"study": found.text, "since": 0, "entries": entries}).encode())
    assert b"row 1.0" not in answer and "could not be read" in json.loads(answer)["error"]


def test_columns_hold_for_modules(federation):
    found = federation(south={"columns": ["age", "died"]})
    with pytest.raises(RefusedError, match="does not allow the columns one, ward"):
        found.answer("south")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rows": 100}, "no study of fewer than 100 rows"),
        ({"parameters": 0.01}, "3 parameters are more than 0.01 of the rows"),
    ],
)
def test_floors_hold_for_modules(federation, change, text):
    found = federation(north=change)
    with pytest.raises(DataError, match=text):
        found.run()
    assert any(text in line.get("refused", "") for line in found.audit("north"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"hash": "abc"}, "must be the SHA-256 of the module's file, found 'abc'"),
        ({"integers": "died"}, "integers in .* must be a list of columns, found 'died'"),
        ({"family": "bernoulli"}, "family"),
    ],
)
def test_a_wrong_document_is_named(change, text):
    with pytest.raises(ValueError, match=text):
        StudyDocument(study(**change))


def test_arguments_are_made_of_columns():
    text = study().replace('died = "died"', 'died = {count = "died"}')
    with pytest.raises(ValueError, match=r"died in \[model.arguments\] must be a column, a list of columns"):
        StudyDocument(text)
    with pytest.raises(ValueError, match='must be "module:function", found'):
        StudyDocument(study().replace(f"{NAME}:hospitals", "os.path:join"))
    with pytest.raises(ValueError, match="nothing but sites"):
        StudyDocument(study().replace("[model]", 'missing = "drop"\n[model]'))


def test_a_column_of_other_numbers_than_integers_is_named(federation, tmp_path):
    found = federation(study(integers=["died", "age"]))
    with pytest.raises(DataError, match="column 'age' has non-integer numbers"):
        found.run()
