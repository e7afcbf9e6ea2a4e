"""Output files: full disks, foreign files, untrusted and damaged files, and runs that exceed memory."""

import dataclasses
import errno
import io
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import h5py
import jax
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import accord
from accord.base import atomic, memory
from accord.cli import config, output
from accord.cli.commands import app
from accord.engines import fingerprint
from accord.engines.checkpoint import CheckpointStore
from accord.engines.fingerprint import claim
from accord.posterior.model_info import ModelInfo
from accord.results import netcdf
from accord.results.certificate import Certificate, Check
from accord.results.run import Traffic
from accord.samplers import (
    DESGLD,
    DGLMC,
    FALD,
    FSGLD,
    GTBAOAB,
    ChEES,
    HubSGLD,
    Importance,
    Replicated,
    SplitGTBAOAB,
    StaleSGLD,
)
from accord.samplers.by_sums import method as by_sums
from accord.samplers.by_sums.evaluations import expand
from accord.samplers.session import Job, Session
from accord.sampling.recorder import Recorder

# made-up draws are few
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def run_of(draws):
    average = np.random.default_rng(draws).normal(size=(2, draws, 3))
    kept = average[:, :, None] + np.arange(2.0)[:, None]
    statistics = {"consensus_error": np.zeros((2, draws))}
    traffic = Traffic(10, 10, np.full(2, 4000), np.full(2, 10))
    return accord.Run(average, np.arange(2), kept, statistics, ("x[a]", "x[b]", "x[c]"), (("x", (3,)),), traffic, 1.0)


# --- atomic files ---


FULL = """
import resource, sys
sys.path.insert(0, {tests!r})
from test_output import run_of
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
run = run_of(20_000)
try:
    run.save({path!r})
except OSError as error:
    print(error)
run_of(30).save({path!r} + ".small")
print(run.average.shape)
"""


@pytest.mark.long
def test_a_full_disk_keeps_the_old_file_and_the_process(tmp_path):
    path = tmp_path / "run.nc"
    run_of(10).save(path)
    before = path.read_bytes()
    script = FULL.format(tests=str(Path(__file__).parent), path=str(path))
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    # HDF5 would abort the process at exit if it could not close a file
    assert (found.returncode, found.stdout.splitlines()) == (
        0,
        [f"[Errno {errno.EFBIG}] could not be written: File too large: '{path}'", "(2, 20000, 3)"],
    ), found.stderr
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.nc", "run.nc.small"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
def test_a_small_disk_that_is_full(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        run_of(10).save(disk / "run.nc")
        before = (disk / "run.nc").read_bytes()
        with pytest.raises(OSError, match=f"could not be written: No space left on device: '{disk}/run.nc'"):
            run_of(20_000).save(disk / "run.nc")
        assert (disk / "run.nc").read_bytes() == before and len(list(disk.iterdir())) == 1
        # a smaller file fits
        run_of(20).save(disk / "run.nc")
        assert accord.Run.load(disk / "run.nc").average.shape == (2, 20, 3)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_file_is_on_disk_before_it_is_renamed(tmp_path, monkeypatch):
    path, events = tmp_path / "file", []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(atomic.os, "fsync", lambda file: (events.append("fsync"), fsync(file)))
    monkeypatch.setattr(atomic.os, "replace", lambda *names: (events.append("replace"), replace(*names)))
    (tmp_path / "file.partial").write_bytes(b"left by a crash")
    (tmp_path / "file.partial").chmod(0o644)
    atomic.write_whole(path, b"content", 0o600)
    assert events == ["fsync", "replace", "fsync"]
    assert path.read_bytes() == b"content" and path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def torn(path):
    path.write_bytes(path.read_bytes()[:9000])


def without(name, attribute=None):
    def take(path):
        with h5py.File(path, "a") as file:
            if attribute is None:
                del file[name]
            else:
                file.attrs[attribute] = name

    return take


BROKEN = {
    "nothing": (Path.unlink, FileNotFoundError, "there is no file"),
    "torn": (torn, ValueError, "is not a complete netCDF file"),
    "text": (lambda path: path.write_text("hello"), ValueError, "is not a complete netCDF file"),
    "empty": (lambda path: path.write_bytes(b""), ValueError, "is not a complete netCDF file"),
    "folder": (lambda path: (path.unlink(), path.mkdir()), ValueError, "is not a complete netCDF file"),
    "another's": (without("theirs", "format"), ValueError, "is not a run written by accord"),
    "no draws": (without("average"), ValueError, "is not a complete accord run"),
    "no traffic": (without("traffic"), ValueError, "is not a complete accord run"),
    "settings": (without("{", "settings"), ValueError, "is not a complete accord run"),
    "certificate": (without("[1]", "certificate"), ValueError, "is not a complete accord run"),
    "rounds": (without("many", "rounds"), ValueError, "is not a complete accord run"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.long_from(5)
def test_errors_of_files_that_are_no_runs_name_the_file(tmp_path, name):
    spoil, error, message = BROKEN[name]
    path = tmp_path / "run.nc"
    run_of(10).save(path)
    accord.Run.load(path)
    spoil(path)
    with pytest.raises(error) as caught:
        accord.Run.load(path)
    assert type(caught.value) is error and str(path) in str(caught.value) and message in str(caught.value)


# --- untrusted files ---


def linked(make):
    """Replace the draws by a link from `make`."""

    def take(path):
        other = path.with_name("other.nc")
        shutil.copy(path, other)
        with h5py.File(path, "a") as file:
            del file["average"]
            file["average"] = make(other)

    return take


def replaced(name, **how):
    """Replace an array by one with other storage."""

    def take(path):
        with h5py.File(path, "a") as file:
            old = file[name]
            shape, dtype, scales = old.shape, old.dtype, [dim[0] for dim in old.dims]
            del file[name]
            given = {key: value(path) if callable(value) else value for key, value in how.items()}
            new = file.create_dataset(name, **{"shape": shape, "dtype": dtype} | given)
            for dim, scale in zip(new.dims, scales, strict=True):
                dim.attach_scale(scale)

    return take


def virtual(path):
    other = path.with_name("other.nc")
    shutil.copy(path, other)
    with h5py.File(path, "a") as file:
        scales = [dim[0] for dim in file["average/x"].dims]
        layout = h5py.VirtualLayout(file["average/x"].shape, "f8")
        layout[...] = h5py.VirtualSource(other, "average/x", layout.shape)
        del file["average/x"]
        new = file.create_virtual_dataset("average/x", layout)
        for dim, scale in zip(new.dims, scales, strict=True):
            dim.attach_scale(scale)


def raw(path):
    other = path.with_name("other.raw")
    other.write_bytes(np.arange(60.0).tobytes())
    return [(str(other), 0, 480)]


def within(change):
    def take(path):
        with h5py.File(path, "a") as file:
            change(file)

    return take


def bomb(file):
    """Draws that are declared but not stored."""
    del file["average"]
    group = file.create_group("average")
    for name, size in (("chain", 2), ("draw", 1_000_000), ("x_dim_0", 3)):
        group.create_dataset(name, (size,), ">f4").make_scale(name)
    x = group.create_dataset("x", (2, 1_000_000, 3), "f8")
    for dim, name in zip(x.dims, ("chain", "draw", "x_dim_0"), strict=True):
        dim.attach_scale(group[name])


def many_texts(file):
    """Names that all refer to one text of a hundred thousand letters."""
    del file["average/x_dim_0"]
    names = file["average"].create_dataset("x_dim_0", (300,), h5py.string_dtype())
    names[0] = "a" * 100_000
    names.make_scale("x_dim_0")
    # a text is an address in the file: all addresses become the first
    own = names.id.get_offset()
    file.flush()
    with Path(file.filename).open("r+b") as stream:
        stream.seek(own)
        first = stream.read(16)
        stream.seek(own)
        stream.write(300 * first)


def put(name, value):
    def change(file):
        file[name] = value(file)

    return within(change)


def scaled(file):
    """A statistic with an axis of chains only."""
    file["sample_stats"].create_dataset("more", data=np.zeros(2)).dims[0].attach_scale(file["sample_stats/chain"])


def shared_text(path):
    """Attributes of forty groups that refer to one long text, stored once."""
    with h5py.File(path, "a") as file:
        for k in range(40):
            file.create_group(f"more{k}").attrs["text"] = ("x" * 60_001) if k == 0 else ("y" * 977)
    content = path.read_bytes()

    def references(length, letter):
        # 4 bytes of length and 12 of an address. The heap also has the length before the text.
        starts = [found.start() for found in re.finditer(re.escape(struct.pack("<I", length)), content)]
        return [at for at in starts if content[at + 8 : at + 12] != 4 * letter]

    (long,) = references(60_001, b"x")
    spoiled = bytearray(content)
    for at in references(977, b"y"):
        spoiled[at : at + 16] = content[long : long + 16]
    path.write_bytes(spoiled)


def values_of(name, value):
    def change(file):
        file[name][...] = value

    return within(change)


def attribute(name, value):
    def change(file):
        file.attrs[name] = value

    return within(change)


def settings(**changes):
    return attribute("settings", json.dumps(changes))


def checks(*found):
    return attribute("certificate", json.dumps(found))


CERTIFIED = Certificate((Check("effective draws", 500.0, 400.0, True, "500 effective draws"),))
ASKED = json.loads(ModelInfo().to_json())
ATTACKS = {
    "external link": (linked(lambda other: h5py.ExternalLink(other, "/average")), "'/average' is a link"),
    "soft link": (linked(lambda other: h5py.SoftLink("/posterior")), "'/average' is a link"),
    "soft link to nothing": (linked(lambda other: h5py.SoftLink("/nowhere")), "'/average' is a link"),
    "link in a group": (put("average/y", lambda file: h5py.SoftLink("/average/x")), "'/average/y' is a link"),
    "virtual": (virtual, "'/average/x' stores its values in another file"),
    "external storage": (replaced("average/x", external=raw), "'/average/x' stores its values in another file"),
    "root in itself": (put("more", lambda file: file["/"]), "'/more' is a second name"),
    "cycle": (put("average/up", lambda file: file["average"]), "'/average/up' is a second"),
    "root in a group": (put("average/up", lambda file: file["/"]), "'/average/up' is a second"),
    "one array twice": (put("average/y", lambda file: file["average/x"]), "is a second name"),
    "groups in groups": (within(lambda file: file["average"].create_group("g")), "'/average/g' is neither"),
    "type": (put("kind", lambda file: np.dtype("f8")), "'/kind' is neither"),
    "compressed": (replaced("average/x", compression="gzip", chunks=True), "'/average/x' is compressed"),
    "references": (replaced("average/x", dtype=h5py.ref_dtype), "'/average/x' contains neither numbers"),
    "regions": (replaced("average/x", dtype=h5py.regionref_dtype), "'/average/x' contains neither numbers"),
    "lists": (replaced("average/x", dtype=h5py.vlen_dtype("f8")), "'/average/x' contains neither numbers"),
    "texts": (replaced("average/x", dtype=h5py.string_dtype()), "'/average/x' contains neither numbers"),
    "compounds": (replaced("average/x", dtype=[("a", "f8")]), "'/average/x' contains neither numbers"),
    "bomb": (within(bomb), "take more than 2 times its"),
    "texts of attributes": (shared_text, "take more than 2 times its"),
    "chunks that are not there": (
        replaced("average/x", shape=(2, 1_000_000, 3), chunks=True),
        "take more than 2 times",
    ),
    "texts that are one": (within(many_texts), "'/average/x_dim_0' take more than 2 times"),
    "reference as attribute": (
        within(lambda file: file.attrs.create("settings", file.ref, dtype=h5py.ref_dtype)),
        "has an attribute 'settings'",
    ),
    "compound as attribute": (attribute("rounds", np.array((1,), [("a", "f8")])), "has an attribute 'rounds'"),
    "many texts as attribute": (attribute("more", ["a" * 30_000] * 3000), "has an attribute 'more'"),
    "deep settings": (attribute("settings", "[" * 100_000 + "]" * 100_000), "nested too deeply"),
    "deep certificate": (attribute("certificate", "[" * 100_000), "nested too deeply"),
    "deep model": (attribute("model_info", '{"a":' * 100_000), "nested too deeply"),
    "long settings": (attribute("settings", json.dumps({"a": "b" * 34_000_000})), "longer than 33,554,432"),
    "numbers for settings": (attribute("settings", 3.0), "attribute settings is missing, no text"),
    "list for settings": (attribute("settings", "[1]"), "attribute settings is no dict"),
    "no names": (within(lambda file: file.attrs.__delitem__("names")), "attribute names is missing"),
    "other names": (attribute("names", '["a", "b"]'), "its draws have shape (2, 10, 3)"),
    "numbers for names": (attribute("names", "[1, 2, 3]"), "names are no texts"),
    "no rounds": (within(lambda file: file.attrs.__delitem__("rounds")), "'rounds'"),
    "no model": (attribute("model_info", "{}"), "'edges'"),
    "a list for a model": (attribute("model_info", json.dumps({**ASKED, "model": ["a"]})), "a text is of type list"),
    "a network of others": (
        attribute("model_info", json.dumps({**ASKED, "edges": [[0, 9]]})),
        "its network has edges to other agents",
    ),
    "sites that are numbers": (settings(sites=[1, 2]), "setting sites"),
    "too few sites": (settings(sites=["north"]), "setting sites has no name for each agent"),
    "sds that are texts": (settings(sds={"age": "x"}), "setting sds"),
    "rounds without end": (attribute("rounds", np.inf), "cannot convert float infinity"),
    "a certificate of texts": (checks(["draws", 1.0, 1.0, "no", "fine"]), "its certificate contains something other"),
    "a certificate without checks": (checks(), "its certificate has no checks"),
    "agents": (within(lambda file: file.attrs.__setitem__("agents", "[7, 7]")), "kept agents are not distinct numbers"),
    "statistics": (within(scaled), "statistic 'more'"),
    "traffic": (within(lambda file: file.__delitem__("traffic/bytes_sent")), "bytes_sent"),
}


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.long_from(8)
def test_untrusted_files_are_refused_with_a_reason(tmp_path, name):
    spoil, message = ATTACKS[name]
    path = tmp_path / "run.nc"
    run_of(10).save(path)
    spoil(path)
    with pytest.raises(ValueError) as caught:
        accord.Run.load(path)
    assert type(caught.value) is ValueError and str(path) in str(caught.value) and message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_finite_draws_are_certified(tmp_path):
    """The digest does not help: an attacker who changes draws can write a matching digest."""
    path, run = tmp_path / "run.nc", dataclasses.replace(run_of(10), certificate=CERTIFIED)
    run.save(path)
    assert accord.Run.load(path).certificate.holds
    for name in ("average", "kept"):
        draws = getattr(run, name).copy()
        draws[0, 0] = np.nan
        dataclasses.replace(run, **{name: draws}).save(path)
        with pytest.raises(ValueError, match=r"it is certified, but \d numbers of its draws.* are not finite"):
            accord.Run.load(path)
    # draws without a certificate may be infinite
    dataclasses.replace(run, average=draws[:, :, 0], certificate=None).save(path)
    assert np.isnan(accord.Run.load(path).average[0, 0]).all()


CHANGED = {
    "draws": values_of("average/x", 0.0),
    "draws of agents": values_of("posterior/x", 0.0),
    "statistics": values_of("sample_stats/consensus_error", 1.0),
    "names": attribute("names", '["a", "b", "C"]'),
    "labels": values_of("average/x_dim_0", "a"),
    "certificate": checks(["effective draws", 1.0, 1.0, True, "fine"]),
    "settings": settings(seed=1),
    "rounds": attribute("rounds", 11),
    "forecast": within(lambda file: file["forecast"].attrs.__setitem__("temperature", 1.0)),
    "digest": attribute("sha256", "0" * 64),
}


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.long_from(5)
def test_changes_since_a_run_was_saved_are_detected(tmp_path, name):
    path = tmp_path / "run.nc"
    dataclasses.replace(run_of(10), certificate=CERTIFIED).save(path)
    CHANGED[name](path)
    with pytest.raises(ValueError, match=r"run.nc has changed since it was saved: its SHA-256 digest"):
        accord.Run.load(path)


def test_files_without_a_digest_load_with_a_warning(tmp_path):
    tree = run_of(10).to_datatree()
    tree.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    with pytest.warns(UserWarning, match="run.nc has no digest: another program or an earlier accord wrote it"):
        assert accord.Run.load(tmp_path / "run.nc").names == ("x[a]", "x[b]", "x[c]")
    run_of(10).save(tmp_path / "own.nc")
    within(lambda file: file.attrs.__delitem__("sha256"))(tmp_path / "own.nc")
    with pytest.warns(UserWarning, match="own.nc has no digest: another program or an earlier accord wrote it"):
        accord.Run.load(tmp_path / "own.nc")


# --- untrusted names in tables ---


def test_no_cell_of_a_table_is_a_formula(folder):
    names = ("=1+1", "-2", "@a", "+b", "\tc", "\rd", "plain\r=1", "e=f")
    average = np.random.default_rng(0).normal(-5.0, 1.0, (2, 50, len(names)))
    run = dataclasses.replace(
        run_of(50), average=average, kept=average[:, :, None].repeat(2, axis=2), names=names, variables=(("x", (8,)),)
    )
    text = output._as_csv(run.summary(["=north", "-1"])).decode()
    table = pd.read_csv(io.StringIO(text), index_col="parameter", keep_default_na=False)
    assert table.index.tolist() == [*(f"'{name}" for name in names[:5]), "'\nd", "plain\n=1", "e=f"]
    assert set(table["worst agent"]) <= {"'=north", "'-1"}
    # negative numbers stay numbers
    np.testing.assert_allclose(table["average mean"], average.mean(axis=(0, 1)), rtol=1e-4)
    assert (table["average mean"] < 0).all()


@pytest.mark.parametrize("place", ["nowhere/run.nc", "folder"])
def test_the_error_of_save_names_the_path(tmp_path, place):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=f"could not be written: .*: '{tmp_path / place}'"):
        run_of(3).save(tmp_path / place)
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("content", ["[]", "3", "{", '"text"'])
def test_a_foreign_checkpoint_folder_is_named(tmp_path, content):
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"{path} was not written by accord"):
        claim(tmp_path, {"seed": "1"})
    assert path.read_text() == content


def test_a_foreign_checkpoint_is_skipped_with_a_warning(tmp_path):
    import hashlib

    store = CheckpointStore(tmp_path / "kept", "tag")
    store.write(1, {"x": np.ones(3)})
    theirs = tmp_path / "kept" / "round-000000000002.npz"
    theirs.write_bytes(b"whole" + hashlib.sha256(b"whole").digest())
    with pytest.warns(UserWarning, match=f"{theirs} was not written by accord and is skipped"):
        assert store.rounds() == [1]


# --- foreign files ---

JOB = """
[data]
files = "site-*.csv"
target = "y"
[model]
name = "logistic_regression"
[network]
name = "path"
[method]
name = "DESGLD"
step_size = 0.02
[run]
draws = {draws}
burn_in = 5
chains = 2
output = "out"
{more}
"""


TORN = "run.nc without the record of its run, as after an interrupted write"


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for site in range(2):
        pd.DataFrame({"x": rng.normal(size=12), "y": np.arange(12) % 2}).to_csv(
            tmp_path / f"site-{site}.csv", index=False
        )
    return tmp_path


def start(folder, draws=20, more=""):
    path = folder / "job.toml"
    path.write_text(JOB.format(draws=draws, more=more))
    return CliRunner().invoke(app, ["run", str(path), "--quiet"])


@pytest.mark.parametrize("name", ["run.nc", "summary.csv", "config.toml"])
@pytest.mark.parametrize("more", ["", 'checkpoint = "kept"'])
def test_a_foreign_file_is_not_overwritten(folder, name, more):
    theirs = folder / "out" / name
    theirs.parent.mkdir()
    theirs.write_text("my notes")
    result = start(folder, more=more)
    # a file of draws without a copy of the configuration is not read
    what = TORN if name == "run.nc" else f"another file {name}"
    assert result.exit_code == 1 and f"holds {what}: add --overwrite to replace it, or name" in result.stderr
    assert theirs.read_text() == "my notes" and len(list(theirs.parent.iterdir())) == 1
    assert not (folder / "kept").exists()


def job(folder, draws=20, more=""):
    path = folder / "job.toml"
    path.write_text(JOB.format(draws=draws, more=more))
    return output.Place(config.load(path), path.read_bytes())


@pytest.mark.parametrize("name", ["run.nc", "summary.csv", "config.toml"])
def test_a_file_written_during_the_run_is_not_overwritten(folder, name):
    place = job(folder)
    place.claim()
    for own in ("out", "out-2"):
        (folder / own).mkdir(exist_ok=True)
        (folder / own / name).write_text("my notes")
    with pytest.warns(UserWarning, match=f"now holds .*{name}.*: written to {folder / 'out-3'}"):
        written, _ = place.write(run_of(20))
    assert written == folder / "out-3" and accord.Run.load(written / "run.nc").average.shape == (2, 20, 3)
    assert all((folder / own / name).read_text() == "my notes" for own in ("out", "out-2"))


def test_two_runs_with_one_folder_both_keep_their_draws(folder):
    first, second = job(folder), job(folder)
    first.claim(), second.claim()
    assert first.write(run_of(20))[0] == folder / "out"
    with pytest.warns(UserWarning, match="written to"):
        assert second.write(run_of(20))[0] == folder / "out-2"


def test_a_run_may_replace_its_own_beginning(folder):
    place = job(folder, draws=20, more='checkpoint = "kept"')
    place.claim()
    place.write(run_of(10))
    place.claim()
    assert place.write(run_of(15))[0] == folder / "out"
    summary = folder / "out" / "summary.csv"
    summary.write_text(summary.read_text() + "# seen by me\n")
    with pytest.raises(ValueError, match=r"holds another file summary.csv: add --overwrite"):
        place.claim()
    # a finished run is returned
    summary.unlink()
    assert place.write(run_of(20))[0] == folder / "out"
    assert place.claim().average.shape == (2, 20, 3)


def change_data(folder):
    path = folder / "site-1.csv"
    path.write_text(path.read_text().replace(",1", ",0", 1))


def foreign(folder):
    run_of(20).save(folder / "out" / "run.nc")


def comment(folder):
    path = folder / "out" / "config.toml"
    path.write_text(f"# mine\n{path.read_text()}")


OTHERS = {
    "configuration": (lambda folder: None, 21, "another run (draws in [run] is 21, and was 20)"),
    "data": (change_data, 20, "another run (with other data)"),
    "version": (lambda folder: None, 20, "another run (accord is another, and was "),
    "no digests": (lambda folder: shutil.rmtree(folder / "out" / ".inputs"), 20, TORN),
    "a killed process": (lambda folder: (folder / "out" / ".inputs" / "run.json").unlink(), 20, TORN),
    "sites": (
        lambda folder: (folder / "site-1.csv").rename(folder / "site-5.csv"),
        20,
        'another run (sites is ["site-0", "site-5"], and was ["site-0", "site-1"])',
    ),
    "torn": (lambda folder: torn(folder / "out" / "run.nc"), 20, "another run (with another run.nc)"),
    "foreign draws": (foreign, 20, "another run (with another run.nc)"),
    "data beside a comment": (
        lambda folder: (change_data(folder), comment(folder)),
        20,
        "another run (with other data)",
    ),
    "a comment": (comment, 20, "another run (config.toml, in comments or spaces)"),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.long_from(1)
def test_a_repeated_command_shows_its_run_or_names_the_difference(folder, name, monkeypatch):
    change, draws, message = OTHERS[name]
    assert start(folder).exit_code == 0
    before = (folder / "out" / "run.nc").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(config, "_drawn", lambda *arguments, **options: pytest.fail("it is drawn again"))
        again = CliRunner().invoke(app, ["run", str(folder / "job.toml")])
        assert again.exit_code == 0 and "finished before: nothing in" in again.stdout and "R-hat" in again.stdout
        assert start(folder).stdout == ""
    assert (folder / "out" / "run.nc").read_bytes() == before
    change(folder)
    if name == "version":
        monkeypatch.setattr(fingerprint, "__version__", "another")
    before = (folder / "out" / "run.nc").read_bytes()
    result = start(folder, draws)
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert result.exit_code == 1 and f"error: the output folder {folder / 'out'} holds {message}" in line
    assert line.endswith(": add --overwrite to replace it, or name another folder with --output")
    assert (folder / "out" / "run.nc").read_bytes() == before
    replaced = CliRunner().invoke(app, ["run", str(folder / "job.toml"), "--quiet", "--overwrite"])
    assert replaced.exit_code == 0 and not (folder / "out-2").exists()
    assert accord.Run.load(folder / "out" / "run.nc").average.shape == (2, draws, 2)
    # the folder now has this run
    assert start(folder, draws).exit_code == 0


@pytest.mark.parametrize(
    ("before", "after", "difference"),
    [
        ("[run]\nseed = 1\ndraws = 5", "[run]\nseed = 2", "seed in [run] is 2, and was 1"),
        ("[method]\nname = 'A'", "[run]\nseed = 2", "seed in [run] is 2, and was left out"),
        ("[run]\nseed = 2\n[method]\nname = 'A'", "[run]\nseed = 2", 'name in [method] is left out, and was "A"'),
        (
            "[network]\nlinks = {loss = 0.1}",
            "[network]\nlinks = {loss = 0.2}",
            "links.loss in [network] is 0.2, and was 0.1",
        ),
        (
            "[data]\nfiles = ['a']",
            f"[data]\nfiles = ['{'b' * 99}']",
            f'files in [data] is ["{"b" * 58}..., and was ["a"]',
        ),
        ("[run]\nseed = 1", "[run] # mine\nseed = 1", "config.toml, in comments or spaces"),
        ("my notes", "[run]\nseed = 1", "config.toml"),
    ],
)
def test_the_difference_of_two_configurations_is_a_key_and_its_values(before, after, difference, tmp_path):
    (tmp_path / "config.toml").write_text(before)
    assert output._difference_of_configs(after.encode(), tmp_path / "config.toml") == difference


@pytest.fixture
def usual():
    """Python's handler of Ctrl-C, as background processes may ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# Functions that run after the last draw, by method.
AFTER = {
    "DESGLD": [
        (Recorder, "measure"),
        (Recorder, "run"),
        (accord.Run, "save"),
        (accord.Run, "summary"),
        (output.Place, "_texts"),
    ],
    "Importance": [(by_sums, "in_both_scales"), (accord.Run, "save")],
}


@pytest.mark.parametrize(("method", "place"), [(method, place) for method, places in AFTER.items() for place in places])
@pytest.mark.long_from(1)
def test_ctrl_c_after_the_last_draw_leaves_a_whole_folder(folder, usual, monkeypatch, method, place):
    whole = getattr(*place)

    def pressed(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        return whole(*arguments, **options)

    job(folder)
    path = folder / "job.toml"
    if method != "DESGLD":
        path.write_text(
            re.sub(r'(?s)name = "DESGLD".*?(?=\[run\])|burn_in = 5', "", path.read_text()).replace(
                "[method]\n", f'[method]\nname = "{method}"\n'
            )
        )
    with monkeypatch.context() as patch:
        patch.setattr(*place, pressed)
        result = CliRunner().invoke(app, ["run", str(path), "--quiet"])
    assert result.exit_code == 130, result.output
    assert f"interrupted after the last draw: all files of the run are in {folder / 'out'}" in result.stderr
    run = accord.Run.load(folder / "out" / "run.nc")
    assert run.average.shape[1] == 20 and "interrupted" not in run.settings
    again = CliRunner().invoke(app, ["run", str(path)])
    assert again.exit_code == 0 and "finished before: nothing in" in again.stdout


def test_a_second_ctrl_c_stops_writing_and_the_next_command_reports_it(folder, usual, monkeypatch):
    def pressed(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(output.Place, "_texts", pressed)
        result = start(folder)
    assert result.exit_code == 130 and result.stderr.splitlines()[-1] == "interrupted"
    assert f"holds {TORN}: add --overwrite" in start(folder).stderr
    assert CliRunner().invoke(app, ["run", str(folder / "job.toml"), "--overwrite"]).exit_code == 0
    assert start(folder).exit_code == 0


@pytest.mark.parametrize("code", [0, 1, 130])
def test_an_interrupted_command_exits_without_jax_cleanup(code, monkeypatch, capsys):
    ends = []
    monkeypatch.setattr("accord.cli.app", lambda: sys.exit(code))
    monkeypatch.setattr(os, "_exit", ends.append)
    with pytest.raises(SystemExit):
        accord.cli.start()
    assert ends == ([130] if code == 130 else [])


def test_missing_files_of_a_finished_run_are_written_again(folder):
    assert start(folder).exit_code == 0
    summary, notes = folder / "out" / "summary.csv", folder / "out" / "summary.txt"
    before = summary.read_bytes()
    summary.unlink()
    notes.write_text("my notes")
    result = CliRunner().invoke(app, ["run", str(folder / "job.toml")])
    assert result.exit_code == 0 and f"finished before: wrote summary.csv again in {folder / 'out'}." in result.stdout
    assert summary.read_bytes() == before and notes.read_text() == "my notes"


def test_warnings_are_below_the_notes_of_a_summary(folder, monkeypatch):
    def measured(self):
        warnings.warn("a line\n  and another", stacklevel=2)
        warnings.warn("a library's own", DeprecationWarning, stacklevel=2)

    monkeypatch.setattr(Recorder, "measure", measured)
    site = folder / "site-1.csv"
    site.write_text(site.read_text() + ",1\n")
    assert "no value" in start(folder).stderr
    path = folder / "job.toml"
    path.write_text(path.read_text().replace("[data]", '[data]\nmissing = "drop"'))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = CliRunner().invoke(app, ["run", str(path), "--quiet"])
    assert result.exit_code == 0
    lines = (folder / "out" / "summary.txt").read_text().splitlines()
    warned = [line.removeprefix("Warning: ") for line in lines if line.startswith("Warning: ")]
    # after the notes, in order
    assert lines[-len(warned) :] == [f"Warning: {text}" for text in warned]
    assert warned[:2] == ["rows with a missing cell are left out: 1 at site-1", "a line and another"]
    found = accord.Run.load(folder / "out" / "run.nc").warnings()
    assert found and {" ".join(text.split()) for text in found} <= set(warned[2:])
    assert " ".join(result.stderr.split()).count("warning: ") >= len(warned) and "library" not in " ".join(warned)


def test_digests_of_rows_are_readable_by_their_owner_only(folder):
    assert start(folder).exit_code == 0
    own = folder / "out" / ".inputs"
    assert own.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in own.iterdir()} == {"run.json": 0o600, "key": 0o600}


def test_a_system_error_has_no_errno(folder):
    (folder / "out").write_text("my notes")
    result = start(folder)
    assert result.exit_code == 1 and "out is a file: name another with --output" in result.stderr
    result = CliRunner().invoke(app, ["run", str(folder / "job.toml"), "--output", str(folder / "out" / "deep")])
    assert result.exit_code == 1 and "error: Not a directory: " in result.stderr and "Errno" not in result.stderr


def test_a_configuration_in_its_output_folder_stays(folder):
    path = folder / "config.toml"
    path.write_text(JOB.format(draws=20, more="").replace('"out"', '"."'))
    place = output.Place(config.load(path), path.read_bytes())
    place.claim()
    assert place.write(run_of(20))[0] == folder and path.read_bytes() == place.config
    assert (folder / "run.nc").exists() and (folder / "summary.csv").exists()


def refuse(folder):
    own = netcdf.write_whole

    def write(path, *arguments):
        if path.is_relative_to(folder):
            raise OSError(errno.ENOSPC, "could not be written: No space left on device", str(path))
        own(path, *arguments)

    return write


@pytest.mark.long
def test_draws_that_do_not_fit_on_the_disk_are_kept_elsewhere(folder, monkeypatch):
    monkeypatch.setattr(netcdf, "write_whole", refuse(folder / "out"))
    result = start(folder)
    assert result.exit_code == 1
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert f"No space left on device: '{folder / 'out' / 'run.nc'}'. The draws are in " in line
    kept = Path(line.rpartition("The draws are in ")[2])
    assert accord.Run.load(kept).average.shape == (2, 20, 2)
    kept.unlink()
    kept.parent.rmdir()


def test_without_any_space_both_paths_are_named(folder, monkeypatch):
    monkeypatch.setattr(netcdf, "write_whole", refuse(Path("/")))
    result = start(folder)
    assert result.exit_code == 1 and "No space left" in result.stderr
    assert ", and the temporary folder cannot be written either: " in result.stderr


# --- memory ---


def posterior():
    return accord.models.gaussian(np.zeros(3), np.ones(3))


@pytest.mark.parametrize("method", [None, Importance(), DESGLD(0.1)])
def test_draws_that_exceed_memory_are_refused_before_the_start(method, monkeypatch):
    post, network = posterior(), accord.Network.complete(3)
    for draws, chains in ((10**14, 4), (4, 10**14), (10**30, 1)):
        with pytest.raises(ValueError, match=rf"draws = {draws:,} in {chains:,} chains, .* of memory: draw fewer"):
            accord.sample(post, network, method, draws=draws, chains=chains)
    needed = 4 * 50 * 2 * (1 if method is None or isinstance(method, Importance) else 4)
    monkeypatch.setattr(memory, "memory_bytes", lambda: needed - 1.0)
    with pytest.raises(ValueError, match="this machine has"):
        accord.sample(post, network, method, draws=50, chains=2)


def test_draws_that_just_fit_are_drawn(monkeypatch):
    monkeypatch.setattr(memory, "memory_bytes", lambda: 4.0 * 2 * (50 * 4 + 3 * 3))
    run = accord.sample(
        posterior(), accord.Network.complete(3), accord.Rounds(DESGLD(0.1), burn_in=0), draws=50, chains=2
    )
    assert run.draws.shape == (2, 50, 3, 1)


def test_states_that_exceed_memory_are_refused_before_the_start(monkeypatch):
    # one byte less than draws and states need
    monkeypatch.setattr(memory, "memory_bytes", lambda: 4.0 * 2 * (50 * 4 + 3 * 3) - 1.0)
    with pytest.raises(ValueError, match="1.6 kB at least, and the states of 3 agents 72 B; this machine has 1.6"):
        accord.sample(posterior(), accord.Network.complete(3), DESGLD(0.1), draws=50, chains=2)
    monkeypatch.setattr(memory, "memory_bytes", lambda: 1e6)
    with pytest.raises(ValueError, match="use fewer chains, or spread the agents"):
        accord.sample(posterior(), accord.Network.complete(3), DESGLD(0.1), draws=1, chains=100_000, keep="average")


def test_states_of_links_have_to_fit(monkeypatch):
    # for each of two neighbours an unsent message and the messages of three rounds in transit
    needed = 4.0 * 2 * (50 * 4 + 3 * (3 + 2 * 4))
    network = accord.Network.complete(3).links(delay=3)
    monkeypatch.setattr(memory, "memory_bytes", lambda: needed - 1.0)
    with pytest.raises(ValueError, match="the states of 3 agents and their links 264 B; this machine has 1.8"):
        accord.sample(posterior(), network, accord.Rounds(DESGLD(0.1), burn_in=0), draws=50, chains=2)
    monkeypatch.setattr(memory, "memory_bytes", lambda: needed)
    run = accord.sample(posterior(), network, accord.Rounds(DESGLD(0.1), burn_in=0), draws=50, chains=2)
    assert run.draws.shape == (2, 50, 3, 1)


def wide(dim=100_000, agents=3, rows=2):
    """A logistic regression of many columns, all zero."""
    return accord.models.logistic_regression([(np.zeros((rows, dim), np.float32), np.arange(rows) % 2.0)] * agents)


@pytest.mark.parametrize(
    "method, said",
    [
        (None, "7 at a time of 100,000 x 100,000 numbers each, take 560 GB at least; this machine has 25 GB"),
        (ChEES(), "Newton's method"),
        (DESGLD(), "an agent's Hessian and its eigenvalues"),
        (GTBAOAB(), "an agent's Hessian and its eigenvalues"),
        (SplitGTBAOAB(1e-3, 1.0, mix_rounds=1), "the agents' models, 3 at a time of 100,000 x 100,000"),
        (FSGLD(1e-6), "the agents' models"),
        (Replicated("nuts", warmup=20), "the states of Replicated .1 agents, 1 chains, 120 GB each."),
    ],
)
def test_matrices_that_exceed_memory_are_refused(method, said, monkeypatch):
    monkeypatch.setattr(memory, "memory_bytes", lambda: 25e9)
    with pytest.raises(ValueError, match=said):
        accord.sample(wide(), accord.Network.ring(3), method, draws=100, chains=1, progress=False)


def test_fewer_draws_are_no_remedy_for_too_many_parameters(monkeypatch):
    monkeypatch.setattr(memory, "memory_bytes", lambda: 1e9)
    with pytest.raises(ValueError, match="grow with the square of 100,000 parameters; use a round-based method"):
        # the points do not fit either
        accord.sample(wide(), accord.Network.ring(3), draws=10_000, progress=False)


def test_covariances_have_to_fit_with_their_inverses(monkeypatch):
    given = np.zeros((3, 10)), np.broadcast_to(np.eye(10), (3, 10, 10))
    monkeypatch.setattr(memory, "memory_bytes", lambda: 4.0 * 3 * 100 * 8 - 1)
    with pytest.raises(ValueError, match="covariances, their eigenvalues and inverses, 12 at a time of 10 x 10"):
        accord.models.gaussian(*given)
    monkeypatch.setattr(memory, "memory_bytes", lambda: 4.0 * 3 * 100 * 8)
    assert accord.models.gaussian(*given).dim == 10


def test_a_plan_and_a_covariance_are_refused_too(monkeypatch):
    monkeypatch.setattr(memory, "memory_bytes", lambda: 25e9)
    with pytest.raises(ValueError, match="take 560 GB at least"):
        accord.plan(wide(), accord.Network.ring(3), progress=False)
    shards = [(np.eye(2, 20), np.zeros(2))] * 2000
    many = accord.models.linear_regression(shards, 1.0)
    with pytest.raises(ValueError, match="covariances of the states of 2,000 agents .* 3 at a time of 40,000 x 40,000"):
        accord.law(many, accord.Network.ring(2000), DESGLD(1e-4))


def test_a_method_without_matrices_runs_on_many_parameters(monkeypatch):
    monkeypatch.setattr(memory, "memory_bytes", lambda: 25e9)
    run = accord.sample(
        wide(), accord.Network.ring(3), accord.Rounds(DESGLD(1e-3), burn_in=0), draws=1, chains=1, keep="average"
    )
    assert run.average.shape == (1, 1, 100_000)


@pytest.mark.long
def test_matrices_that_just_fit_are_made(monkeypatch):
    post, network = wide(dim=30), accord.Network.complete(3)
    with jax.enable_x64(True):
        sums = Session(Job(post, network))
        needed = (3 + 4) * 30**2 * 8
        monkeypatch.setattr(memory, "memory_bytes", lambda: needed)
        assert expand(sums, post.init).finite
        monkeypatch.setattr(memory, "memory_bytes", lambda: needed - 1)
        with pytest.raises(ValueError, match="7 at a time of 30 x 30"):
            expand(sums, post.init)
    # diagonals need one agent's matrix at a time
    needed_by_diagonals = 3 * 30**2 * 8
    monkeypatch.setattr(memory, "memory_bytes", lambda: needed_by_diagonals)
    assert accord.tuning.warm_up(post, network, dense=0).coordinates.factor.shape == (30,)
    monkeypatch.setattr(memory, "memory_bytes", lambda: needed_by_diagonals - 1)
    with pytest.raises(ValueError, match="3 at a time of 30 x 30"):
        accord.tuning.warm_up(post, network, dense=0)
    # one quadratic form per agent
    shards = [(np.eye(2, 30), np.zeros(2))] * 3
    monkeypatch.setattr(memory, "memory_bytes", lambda: 3 * 30**2 * 8)
    accord.models.linear_regression(shards, 1.0)
    monkeypatch.setattr(memory, "memory_bytes", lambda: 3 * 30**2 * 8 - 1)
    with pytest.raises(ValueError, match="quadratic forms of the agents, 3 at a time"):
        accord.models.linear_regression(shards, 1.0)


@pytest.mark.parametrize("method, doubles", [(None, 7), (Importance(), 7), (ChEES(), 7)])
def test_points_are_in_double_precision_and_have_weights(method, doubles, monkeypatch):
    monkeypatch.setattr(memory, "memory_bytes", lambda: 25e9)
    for draws, chains in ((5 * 10**9, 1), (1, 5 * 10**9)):
        with pytest.raises(ValueError, match=f"draws = {draws:,} in {chains:,} chains, .* take 280 GB at least"):
            accord.sample(posterior(), accord.Network.complete(3), method, draws=draws, chains=chains)
    monkeypatch.setattr(memory, "memory_bytes", lambda: 100.0 * 4 * 8 * doubles - 1)
    with pytest.raises(ValueError, match="and their weighted points take"):
        accord.sample(posterior(), accord.Network.complete(3), method, draws=100, chains=4)


def test_points_that_just_fit_are_drawn(monkeypatch):
    monkeypatch.setattr(memory, "memory_bytes", lambda: 100.0 * 4 * 8 * 7)
    run = accord.sample(posterior(), accord.Network.complete(3), Importance(), draws=100, chains=4)
    assert run.draws.shape[:2] == (4, 100)


def test_words_of_minibatches_have_to_fit(monkeypatch):
    post, network = wide(dim=5, agents=2, rows=20), accord.Network.ring(2)
    # a position of five normals and 20 words of an agent and chain, three times, and a draw of both and the average
    states, draws = 2 * 1000 * 4 * (3 * 25), 1000 * 4 * 3 * 5
    monkeypatch.setattr(memory, "memory_bytes", lambda: states + draws - 1)
    with pytest.raises(ValueError, match="with a round's random words 600 kB; .* local steps or a smaller batch_size"):
        accord.sample(post, network, accord.Rounds(DESGLD(1e-6, batch_size=20), burn_in=0), draws=1, chains=1000)
    monkeypatch.setattr(memory, "memory_bytes", lambda: states + draws)
    run = accord.sample(post, network, accord.Rounds(DESGLD(1e-6, batch_size=20), burn_in=0), draws=1, chains=1000)
    assert run.draws.shape == (1000, 1, 2, 5)


def test_gradients_of_all_rows_have_to_fit(monkeypatch):
    post, network = wide(dim=1, agents=2, rows=100), accord.Network.ring(2)
    needed = 4 * 2 * 100 * 1000
    monkeypatch.setattr(memory, "memory_bytes", lambda: needed - 1)
    with pytest.raises(ValueError, match="gradients of 100 rows at 2 agents in 1,000 chains, .* take 800 kB at least"):
        accord.sample(post, network, accord.Rounds(DESGLD(1e-6), burn_in=0), draws=1, chains=1000)
    monkeypatch.setattr(memory, "memory_bytes", lambda: needed)
    run = accord.sample(post, network, accord.Rounds(DESGLD(1e-6), burn_in=0), draws=1, chains=1000)
    assert run.draws.shape == (1000, 1, 2, 1)


def test_a_history_has_to_fit(monkeypatch):
    network, method = accord.Network.complete(3), StaleSGLD(1e-6, 999)
    with pytest.raises(ValueError, match="the states of StaleSGLD .3 agents, 2 chains, .* of memory"):
        accord.sample(posterior(), network, StaleSGLD(1e-14, 10**12), draws=1, chains=2)
    with pytest.raises(ArithmeticError, match="responses of StaleSGLD's states .* of memory: there is no"):
        accord.sample(posterior(), network, StaleSGLD(staleness=10**12), draws=1, chains=2)
    # the position, and the last thousand gradients
    needed = 3 * 3 * 2 * 4 * 1001
    monkeypatch.setattr(memory, "memory_bytes", lambda: needed - 1)
    with pytest.raises(ValueError, match="StaleSGLD .3 agents, 2 chains, 4 kB each"):
        accord.sample(posterior(), network, accord.Rounds(method, burn_in=0), draws=1, chains=2)
    monkeypatch.setattr(memory, "memory_bytes", lambda: needed)
    assert accord.sample(posterior(), network, accord.Rounds(method, burn_in=0), draws=1, chains=2).draws.shape == (
        2,
        1,
        3,
        1,
    )


@pytest.mark.parametrize(
    "method", [DGLMC(rho=0.1, step_size=1e-9, local_steps=10**9), HubSGLD(1e-9, 10**9), FALD(1e-9, 10**9)]
)
def test_rounds_with_too_many_random_numbers_are_refused(method, monkeypatch):
    # for any memory
    monkeypatch.setattr(memory, "memory_bytes", lambda: np.inf)
    with pytest.raises(ValueError, match=f"a round of {type(method).__name__} takes 1.,000,000,00. random numbers"):
        accord.sample(wide(dim=5), accord.Network.ring(3), method, draws=1, chains=1)
    monkeypatch.setattr(memory, "memory_bytes", lambda: 25e9)
    with pytest.raises(ValueError, match="with a round's random words 36 GB; .* use fewer chains, fewer local steps"):
        accord.sample(posterior(), accord.Network.ring(3), method, draws=1, chains=1)


def test_edges_have_to_fit(monkeypatch):
    with pytest.raises(ValueError, match=r"edges of a complete network of 100,000,000 agents take 160 PB at least"):
        accord.Network.complete(10**8)
    monkeypatch.setattr(memory, "memory_bytes", lambda: 32 * 10 - 1)
    with pytest.raises(ValueError, match=r"10 edges of a complete network of 5 agents take 320 B at least"):
        accord.Network.complete(5)
    monkeypatch.setattr(memory, "memory_bytes", lambda: 32 * 10)
    assert len(accord.Network.complete(5).edges) == 10


@pytest.mark.parametrize(
    ("made", "edges"),
    [
        (lambda: accord.Network.ring(10**11), "100,000,000,000 edges of a ring-shaped"),
        (lambda: accord.Network.star(10**11), "99,999,999,999 edges of a star-shaped"),
        (lambda: accord.Network.path(10**11), "99,999,999,999 edges of a path-shaped"),
        (lambda: accord.Network.empty(10**11), "0 edges of an empty"),
        (lambda: accord.Network.grid(200_000, 200_000), "79,999,600,000 edges of a grid-shaped"),
        (lambda: accord.Network.tree(40), "1,099,511,627,774 edges of a tree-shaped"),
        (lambda: accord.Network.erdos_renyi(10**6, 0.5, seed=0), "249,999,750,000 edges of a random"),
        (lambda: accord.Network.regular(10**9, 10, seed=0), "5,000,000,000 edges of a random regular"),
    ],
)
def test_networks_that_exceed_memory_are_refused_before_they_are_made(made, edges, monkeypatch):
    monkeypatch.setattr(memory, "memory_bytes", lambda: 1e12)
    with pytest.raises(ValueError, match=f"^{edges} network of .* agents take .* this machine has 1 TB of memory"):
        made()


def test_draws_of_pooled_nuts_that_exceed_memory_are_refused():
    with pytest.raises(ValueError, match=r"draws = 10,000,000,000 in 4 chains, .* draw fewer"):
        accord.posterior.reference.nuts(posterior(), draws=10**10)
    for wrong in ({"draws": 0}, {"chains": 0}, {"warmup": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            accord.posterior.reference.nuts(posterior(), **wrong)


def test_draws_of_shards_that_exceed_memory_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="draw fewer"):
        accord.samplers.combine.consensus(posterior(), draws=10**14)
    monkeypatch.setattr(memory, "memory_bytes", lambda: 25e9)
    for combine in (accord.samplers.combine.bfi, accord.samplers.combine.surrogate):
        with pytest.raises(ValueError, match="an agent's Hessian and its eigenvectors, 3 at a time of 100,000 x 100"):
            combine(wide(), draws=10)


def test_memory_is_limited_by_the_container(tmp_path, monkeypatch):
    has = memory.memory_bytes()
    assert 1e8 < has < 1e15
    monkeypatch.setattr(memory, "_CONTAINER", tmp_path / "memory.max")
    (tmp_path / "memory.max").write_text("1000000\n")
    assert memory.memory_bytes() == 1e6
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.memory_bytes() >= has


def test_a_command_refuses_draws_that_exceed_memory(folder):
    result = start(folder, draws=10**14)
    assert result.exit_code == 1 and "of memory: draw fewer" in result.stderr
    assert not list((folder / "out").iterdir())
