"""Federations: sites answer what their policies allow, and draws equal a local run's."""

import io
import json
import logging
import tomllib
from contextlib import suppress
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import accord
from accord.base.errors import DataError
from accord.cli import app
from accord.flower import (
    Flower,
    RefusedError,
    Site,
    SitePolicy,
    StudyDocument,
    audit,
    channel,
    errors,
    figures,
    wire,
)
from accord.flower.check import check
from accord.flower.engine import keep_draws
from accord.flower.keys import KeptMasks, is_signed, new_identity, signature
from accord.flower.study import hash_of
from accord.posterior.masks import added, encoded
from accord.samplers.by_sums.evaluations import value_of

SITES = ("north", "south", "west")
STUDY = """
[data]
sites = ["north", "south", "west"]
positive = {died = "yes"}

[model]
formula = "died ~ scale(age) + ward"
family = "bernoulli"

[priors]
ward = {name = "Normal", loc = 0.0, scale = 2.0}

[run]
draws = 200
"""


def rows_of(place, rows=90):
    rng = np.random.default_rng(place)
    age = rng.normal(50 + place, 9, rows).round(3)
    died = np.where(rng.random(rows) < 1 / (1 + np.exp(-(age - 50) / 9)), "yes", "no")
    return "\n".join(
        ["age,ward,died", *(f"{a},{w},{d}" for a, w, d in zip(age, rng.choice(["a", "b"], rows), died, strict=True))]
    )


class Federation:
    """Three sites below a folder, and a channel that asks them one after another."""

    def __init__(self, folder, study=STUDY, **changes):
        self.folder, self.study, self.seen, self.log = folder, StudyDocument(study), [], []
        peers = {}
        for place, name in enumerate(SITES):
            (folder / name).mkdir()
            (folder / name / "rows.csv").write_text(rows_of(place))
            peers[name] = new_identity(folder / name / "key")
        for name in SITES:
            self.write(name, peers, **changes.get(name, {}))

    def write(self, name, peers, **changes):
        values = {"site": name, "data": "rows.csv", "folder": "kept", "studies": [self.study.hash], "identity": "key"}
        values |= changes
        lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        peers = ["[peers]", *(f"{site} = {json.dumps(key)}" for site, key in peers.items())]
        (self.folder / name / "site.toml").write_text("\n".join(lines + peers))

    def site(self, name):
        return Site(SitePolicy.read(self.folder / name / "site.toml"), self.log.append)

    def __call__(self, requests):
        # a site is another process every time, which knows what is on its disk
        answers = {name: self.site(name).answer(request) for name, request in requests.items()}
        self.seen += [*requests.values(), *answers.values()]
        return answers

    def here(self):
        files = [self.folder / name / "rows.csv" for name in SITES]
        options = {"formula": self.study._arguments["formula"], "positive": {"died": "yes"}}
        return accord.models.glm(accord.data.study(files, **options), **self.study._arguments)


def drawn(engine, post, **options):
    return accord.sample(post, accord.Network.star(3), draws=200, engine=engine, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    federation = Federation(tmp_path_factory.mktemp("federation"))
    engine = Flower(federation.study, federation)
    run = drawn(engine, engine.model())
    keep_draws(engine, run.draws[:, :, 0], 0)
    return federation, engine, run


def test_draws_of_a_federation_equal_local_draws(finished):
    federation, _, run = finished
    expected = accord.sample(federation.here(), accord.Network.star(3), draws=200)
    assert run.certificate.holds and run.names == expected.names
    np.testing.assert_allclose(run.draws, expected.draws, rtol=1e-9, atol=1e-9)


def test_sites_keep_the_draws_of_a_run(finished):
    federation, engine, run = finished
    for name in SITES:
        with np.load(federation.folder / name / "kept" / "runs" / engine.session / "draws.npz") as kept:
            np.testing.assert_array_equal(kept["draws"], run.draws[:, :, 0])


def test_no_cell_and_no_part_of_a_sum_travels(finished):
    federation, _, _ = finished
    cells = np.concatenate(
        [np.loadtxt(federation.folder / n / "rows.csv", delimiter=",", skiprows=1, usecols=0) for n in SITES]
    )
    cells = cells[cells != cells.round()]
    for found in map(wire.read, federation.seen):
        said = [leaf for leaf in jax.tree.leaves(wire.revived(found.head)) if not isinstance(leaf, str)]
        numbers = np.concatenate([np.ravel(leaf) for leaf in [*said, *found.arrays.values()]] + [np.empty(0)])
        assert not np.isin(cells, numbers.astype(float)).any()
    # words of sums look like noise: bytes are as often any value as any other
    words = b"".join(
        found.arrays["words"].tobytes() for found in map(wire.read, federation.seen) if "words" in found.arrays
    )
    counts = np.bincount(np.frombuffer(words, np.uint8), minlength=256)
    assert len(words) > 50_000
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 255 + 5 * np.sqrt(2 * 255)


def test_an_audit_file_has_every_answer(finished):
    federation, engine, _ = finished
    lines = audit.read(federation.folder / "north" / "kept")
    answers = [found for found in federation.seen[::1] if b"session" not in found]
    assert {line["kind"] for line in lines} == {"hello", "key", "keys", "meet", "rows", "sum", "draws"}
    assert all(line["study"] == federation.study.hash and line["run"] == engine.session for line in lines)
    assert sum(line["kind"] == "sum" and line["points"] > 0 for line in lines) > 3
    assert len(answers) >= 3 * len(lines)
    assert (federation.folder / "north" / "kept" / "audit.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"studies": ["0" * 64]}, "does not allow the study of hash"),
        ({"columns": ["age", "died"]}, "does not allow the columns ward"),
        ({"site": "east"}, "the study lists the sites north, south, west"),
        ({"rows": 500}, "fewer than 500 rows"),
        ({"parameters": 0.001}, "parameters are more than 0.001 of the rows"),
        ({"points": 10}, "allows sums at 10 positions"),
        ({"identity": "none"}, "holds no private key"),
    ],
)
def test_a_site_refuses_by_its_policy(tmp_path, changes, text):
    federation = Federation(tmp_path, south=changes)
    engine = Flower(federation.study, federation)
    with pytest.raises(DataError, match=text):
        drawn(engine, engine.model())
    last = audit.read(tmp_path / "south" / "kept")[-1]
    assert text in json.dumps(last)
    assert last["study"] == federation.study.hash and last["run"] == engine.session and "kind" in last


def test_a_server_cannot_put_its_own_key_between(tmp_path):
    federation = Federation(tmp_path)
    new_identity(tmp_path / "foreign")

    def between(requests):
        answers = federation(requests)
        for name, found in answers.items():
            head = wire.read(found).head
            if name == "west" and "public" in head:
                answers[name] = wire.packet({**head, "public": wire.read(answers["north"]).head["public"]}).to_bytes()
        return answers

    with pytest.raises(RefusedError, match="the key that is given out for west is not signed by it"):
        Flower(federation.study, between).model()


def test_what_sites_agreed_on_stays(tmp_path):
    federation = Federation(tmp_path)
    engine = Flower(federation.study, federation)
    post = engine.model()
    with engine.placed(post) as placed:
        assert placed.sizes.tolist() == [90, 90, 90]
        engine._answers = [*engine._answers, {"more": 1}]
        with pytest.raises(RefusedError, match="there are more answers than questions"):
            placed.totals(accord.Network.star(3), masks=True)(value_of, points=np.zeros((1, 3)))


@pytest.mark.long
def test_unmasked_sums_need_a_policy_that_allows_them(tmp_path):
    study = STUDY.replace("draws = 200", "draws = 200\nmasks = false")
    (tmp_path / "a").mkdir()
    federation = Federation(tmp_path / "a", study, north={"own_numbers": True})
    with pytest.raises(RefusedError, match="south: refused, the study has no masks.*own_numbers"):
        Flower(federation.study, federation).model()
    (tmp_path / "b").mkdir()
    federation = Federation(tmp_path / "b", study, **dict.fromkeys(SITES, {"own_numbers": True}))
    engine = Flower(federation.study, federation)
    expected = accord.sample(federation.here(), accord.Network.star(3), draws=200)
    np.testing.assert_allclose(drawn(engine, engine.model()).draws, expected.draws, rtol=1e-9, atol=1e-9)


@pytest.mark.long
def test_a_site_gives_no_own_numbers_without_its_permission(tmp_path):
    """Whatever a server asks for, and whatever the policies of other sites."""
    for place, (masks, allowed, text) in enumerate(
        [
            (True, (), "south: refused, its own numbers reveal its rows, and the sums of this study are masked"),
            (True, SITES, "south: refused, its own numbers reveal its rows, and the sums of this study are masked"),
            (False, ("north", "west"), "south: refused, the study has no masks"),
        ]
    ):
        (tmp_path / str(place)).mkdir()
        study = STUDY.replace("draws = 200", f"draws = 200\nmasks = {json.dumps(masks)}")
        federation = Federation(tmp_path / str(place), study, **dict.fromkeys(allowed, {"own_numbers": True}))
        engine = Flower(federation.study, federation)
        if masks:
            engine.model()
        else:
            # the site's administrator learns it before any server asks
            found = check(federation.study, SitePolicy.read(tmp_path / str(place) / "south" / "site.toml"))
            assert text in found.wrong[0]
        # a server that knows what sites agreed on, and asks by itself
        for kind, name in (("own", "log likelihood"), ("own", "log density alone"), ("own", "value"), ("sum", "value")):
            question = wire.packet({"name": name, "of": "south", "arguments": 0, "at_once": None})
            head = {**question.head, "answers": wire.plain(engine._answers), "count": 99}
            head |= {"study": federation.study.text, "session": engine.session, "kind": kind}
            points = {"positions": np.zeros((2, 3)), "points": np.zeros((2, 3))}
            found = wire.read(federation.site("south").answer(wire.Packet(head, points).to_bytes()))
            assert "part" not in found.arrays
            if masks and kind == "sum":
                assert found.arrays.keys() == {"words"}
            else:
                assert found.head["refused"] and text in found.head["error"]
                assert text in audit.read(tmp_path / str(place) / "south" / "kept")[-1]["refused"]


@pytest.mark.long
def test_a_site_gives_its_own_numbers_where_its_policy_allows_them(tmp_path):
    study = STUDY.replace("draws = 200", "draws = 200\nmasks = false")
    federation = Federation(tmp_path, study, **dict.fromkeys(SITES, {"own_numbers": True}))
    engine = Flower(federation.study, federation)
    star, post, one_place = accord.Network.star(3), engine.model(), federation.here()
    run, here = drawn(engine, post), accord.sample(one_place, star, draws=200)
    run.save(tmp_path / "run.nc")
    loaded = accord.Run.load(tmp_path / "run.nc")
    left = accord.leave_out(loaded, post, star, 1, engine=engine)
    np.testing.assert_allclose(left.pull, accord.leave_out(here, one_place, star, 1).pull, rtol=1e-6, atol=1e-9)
    lines = [[line for line in audit.read(tmp_path / name / "kept") if line["kind"] == "own"] for name in SITES]
    assert [len(own) for own in lines] == [0, 1, 0] and lines[1][0]["question"] == "log likelihood"
    there, here_too = (
        accord.leave_each_out(run, post, star, engine=engine),
        accord.leave_each_out(here, one_place, star),
    )
    for found, expected in zip(there, here_too, strict=True):
        # a sentence where the weights are not to be relied on
        own, same = (one if isinstance(one, str) else one.pull for one in (found, expected))
        assert own == same if isinstance(own, str) else np.allclose(own, same, rtol=1e-6, atol=1e-9)
    there, here_too = accord.alone(run, post, star, engine=engine), accord.alone(here, one_place, star)
    for found, expected in zip(there, here_too, strict=True):
        np.testing.assert_allclose(found.points.mean, expected.points.mean, rtol=1e-6, atol=1e-9)
    # a question that reaches another site is not answered by it
    question = wire.packet({"name": "log likelihood", "of": "south"}, positions=np.zeros((1, 3)))
    (found,) = engine.ask_agreed("own", question, ["north"])
    assert found.arrays == {}


def test_a_masked_run_of_a_federation_asks_no_site_by_itself(finished):
    federation, engine, run = finished
    before, star = len(federation.seen), accord.Network.star(3)
    for ask in (accord.leave_each_out, accord.alone, partial(accord.leave_out, agent=1)):
        with pytest.raises(ValueError, match="No numbers of single sites: the sums of this run are masked"):
            ask(run, engine.model(), star, engine=engine)
    assert len(federation.seen) == before


@pytest.mark.long
def test_a_run_that_was_lost_goes_on_with_new_keys(tmp_path, finished):
    _, _, whole = finished
    federation, sums = Federation(tmp_path), []

    def lost(requests):
        kind = wire.read(next(iter(requests.values()))).head["kind"]
        sums.append(kind)
        if sums.count("sum") == 5:
            raise ConnectionError("the server was killed")
        return federation(requests)

    engine = Flower(federation.study, lost)
    with suppress(ConnectionError):
        drawn(engine, engine.model(), checkpoint=tmp_path / "sums")
    again = Flower(federation.study, federation)
    run = drawn(again, again.model(), checkpoint=tmp_path / "sums")
    np.testing.assert_allclose(run.draws, whole.draws, rtol=1e-9, atol=1e-9)


def test_masks_are_never_used_twice(tmp_path):
    own = [KeptMasks(tmp_path / name) for name in SITES]
    publics = [one.begin() for one in own]
    for place, one in enumerate(own):
        one.agree(place, publics, b"run")
    words = encoded([np.ones(3)], 3)
    total = added(*(KeptMasks(tmp_path / name).masked(1, words, b"what is asked") for name in SITES))
    np.testing.assert_array_equal(total, added(words, words, words))
    with pytest.raises(ValueError, match="the masks of sum 1 may have been used"):
        KeptMasks(tmp_path / "north").masked(1, words, b"something else")
    # of the very same question they are the same, and of two questions not
    parts = [KeptMasks(tmp_path / name).masked(2, words, name.encode()) for name in SITES]
    np.testing.assert_array_equal(KeptMasks(tmp_path / "north").masked(2, words, b"north"), parts[0])
    assert (added(*parts) != total).all()
    assert (tmp_path / "north" / "masks.json").stat().st_mode & 0o777 == 0o600


def test_small_and_large_figures_pass_masks():
    said = {"b": np.array([1e-20, -3e-9]), "a": 7, "c": 1e15}
    words = added(*(encoded(figures.leaves_of(said), 3) for _ in range(3)))
    found = figures.numbers_of(words, figures.shapes_of(said), 3)
    for name, value in said.items():
        np.testing.assert_allclose(found[name], 3 * np.asarray(value), rtol=1e-12)


def test_signatures(tmp_path):
    public = new_identity(tmp_path / "key")
    signed = signature(tmp_path / "key", b"text")
    assert is_signed(public, b"text", signed) and not is_signed(public, b"other", signed)
    assert not is_signed("none", b"text", signed) and (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        new_identity(tmp_path / "key")


@pytest.mark.parametrize(
    "old, new, text",
    [
        ("[model]", "[modle]", "did you mean 'model'"),
        ('formula = "died', 'formulas = "died', "must have a formula"),
        ("positive", 'files = "x.csv"\npositive', r"names no files"),
        ('"south", ', '"north", ', "different names"),
        ("draws = 200", 'draws = "many"', "draws"),
        ('family = "bernoulli"', 'famly = "bernoulli"', "famly"),
        ("scale = 2.0", "scale = true", "scale"),
        ("[run]", "[run", "not valid TOML"),
    ],
)
def test_a_study_that_is_wrong_is_refused_before_it_travels(old, new, text):
    with pytest.raises(ValueError, match=text):
        StudyDocument(STUDY.replace(old, new))


@pytest.mark.parametrize(
    "line, text",
    [
        ("rwos = 3", "rwos"),
        ("points = 0", "points"),
        ("own_numbers = 1", "own_numbers must be of the type bool"),
        ("[", "policy"),
    ],
)
def test_a_policy_that_is_wrong_names_its_file(tmp_path, line, text):
    path = tmp_path / "policy.toml"
    path.write_text(f'{line}\nsite = "a"\ndata = "b"\nfolder = "c"\nstudies = []\n')
    with pytest.raises(ValueError, match=text) as error:
        SitePolicy.read(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("found", [b"", b"nonsense", wire.packet({}, x=np.zeros(1)).to_bytes(), b"PK" + bytes(100)])
def test_what_is_no_request_is_answered_by_an_error(tmp_path, found):
    federation = Federation(tmp_path)
    answer = wire.read(federation.site("north").answer(found)).head
    assert "error" in answer and "Traceback" not in answer["error"]


def test_methods_that_gossip_are_refused(finished):
    _, engine, _ = finished
    with pytest.raises(TypeError, match="DESGLD sends messages between agents"):
        accord.sample(engine.model(), accord.Network.star(3), accord.samplers.DESGLD(0.1), draws=1, engine=engine)


def test_paths_of_a_policy_are_beside_it(tmp_path):
    federation = Federation(tmp_path)
    assert federation.site("north").policy.data == Path(tmp_path / "north" / "rows.csv")


class Nodes:
    """Nodes of sites that are connected at some polls only. Some of them never answer."""

    def __init__(self, federation, names, away=(), silent=(), broken=()):
        self.federation, self.names, self.away, self.looks = federation, names, dict(away), 0
        self.silent, self.broken, self.sent = set(silent), dict(broken), []

    def nodes(self):
        self.looks += 1
        return {node for node, name in self.names.items() if self.looks > self.away.get(name, 0)}

    def send(self, requests):
        self.sent += requests.items()
        first = len(self.sent) - len(requests)
        return {f"message {first + place}": node for place, node in enumerate(requests)}

    def replies(self, messages):
        found = {}
        for message in messages:
            node, request = self.sent[int(message.split()[1])]
            if node in self.broken:
                found[message] = channel.Broken(self.broken[node])
            # a node that has disconnected
            elif (node, self.looks) == (11, 3):
                found[message] = None
            elif node not in self.silent:
                found[message] = self.federation.site(self.names[node]).answer(request)
        return found


def asking(federation, nodes, log=lambda text: None):
    return Flower(federation.study, channel.NodeChannel(nodes, log, pause=0.01))


def test_sites_that_are_away_are_waited_for_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(channel, "_REPORT", 0.0)
    federation, log = Federation(tmp_path), []
    nodes = Nodes(federation, {11: "north", 22: "south", 33: "west"}, {"west": 4})
    assert asking(federation, nodes, log.append).model().names == federation.here().names
    waits = [text for text in log if "waiting" in text]
    assert waits[-1].startswith("question 1 (who is there): 2 of 3 have answered, waiting for west, ")
    # one line per request, without an empty list of sites
    over = [text for text in log if "waiting" not in text]
    assert over[0].startswith("question 1 (who is there): 3 of 3 have answered, ")
    assert [text.split(":")[0] for text in over[1:4]] == [
        "question 2 (public keys for masks)",
        "question 3 (all keys to all)",
        "question 4 (agreeing on the model)",
    ]
    assert not any("waiting for ," in text for text in log)


def test_a_server_without_sites_says_what_to_look_at(tmp_path, monkeypatch):
    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

        def sleep(self, seconds):
            if self.now > 1200.0:
                raise KeyboardInterrupt
            self.now += 5.0

    monkeypatch.setattr(channel, "time", Clock())
    federation, log = Federation(tmp_path), []
    with pytest.raises(KeyboardInterrupt):
        asking(federation, Nodes(federation, {}), log.append).model()
    assert log[0] == "question 1 (who is there): 0 of 3 have answered, waiting for north, south, west, 10 s"
    assert log[-1] == (
        "waiting for north, south, west for 3 min 20 s: no SuperNode of theirs is connected, or it does not answer. "
        "Are they running? (flwr supernode list)"
    )
    assert len(log) == 10


def test_sums_are_logged_by_number(tmp_path):
    federation, log = Federation(tmp_path), []
    nodes = Nodes(federation, {1: "north", 2: "south", 3: "west"})
    engine = asking(federation, nodes, log.append)
    with engine.placed(engine.model()) as placed:
        totals = placed.totals(accord.Network.star(3), masks=True)
        for _ in range(2):
            totals(value_of, points=np.zeros((1, 3)))
    assert [text.split(" (")[1].split(")")[0] for text in log[-2:]] == ["sum 1, value", "sum 2, value"]


def test_two_nodes_are_not_one_site(tmp_path):
    federation = Federation(tmp_path)
    nodes = Nodes(federation, {1: "north", 2: "north", 3: "west"})
    with pytest.raises(DataError, match="two nodes name the site north"):
        asking(federation, nodes).model()


def test_a_node_that_began_anew_stands_for_the_one_before(tmp_path):
    federation = Federation(tmp_path)
    nodes = Nodes(federation, {1: "north", 2: "south", 3: "west"})
    there = nodes.nodes

    def begun_anew():
        if nodes.looks == 3:
            # the one before is still among the nodes, and says nothing
            nodes.silent.add(2)
            nodes.names[4] = "south"
        return there()

    nodes.nodes = begun_anew
    assert asking(federation, nodes).model().names == federation.here().names
    assert 4 in {node for node, _ in nodes.sent}


def test_a_refusal_is_not_hidden_behind_a_site_that_is_silent(tmp_path, monkeypatch):
    monkeypatch.setattr(channel, "_GRACE", 0.05)
    monkeypatch.setattr(channel, "_REPORT", 0.5)
    federation = Federation(tmp_path, west={"studies": []})
    nodes = Nodes(federation, {1: "north", 2: "south", 3: "west"}, silent={1})
    with pytest.raises(RefusedError, match="west: refused, its policy does not allow the study"):
        asking(federation, nodes).model()
    # and none without one: the silent site is waited for
    with pytest.raises(TimeoutError):
        asking(federation, Nodes(Federation(_in(tmp_path / "b")), {1: "north"}), _impatient).model()


def _in(folder):
    folder.mkdir()
    return folder


def _impatient(text):
    raise TimeoutError(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({1: "north", 2: "south", 3: "west"}, "^south answers with an error: Python is missing$"),
        ({2: "south", 3: "west"}, r"^SuperNode 2 \(one of north, south\) answers with an error: Python is missing$"),
    ],
)
def test_an_error_of_flower_names_its_site(tmp_path, monkeypatch, names, text):
    monkeypatch.setattr(channel, "_GRACE", 0.2)
    federation = Federation(tmp_path)
    nodes = Nodes(federation, names, broken={2: "Python is missing"})
    with pytest.raises(DataError, match=text):
        asking(federation, nodes).model()


def test_what_went_wrong_is_the_last_line_and_no_traceback(caplog):
    log, logger = [], "flwr of a test"
    with pytest.raises(errors.StudyEndedError) as caught, errors.ended_in_words(log.append, logger):
        Flower(StudyDocument(STUDY), lambda requests: {"north": _refusal()}).model()
    assert log == ["the study ended: north: refused, for no reason"]
    # as Flower logs it
    log = logging.getLogger(logger)
    log.error("ServerApp raised an exception", exc_info=caught.value)
    log.error("Exit Code: 201\n\nAn unhandled exception occurred in the ServerApp.")
    log.error("something else")
    assert [record.getMessage() for record in caplog.records] == ["something else"]


def test_a_defect_keeps_its_traceback():
    log = []
    with pytest.raises(ZeroDivisionError), errors.ended_in_words(log.append):
        1 / 0  # noqa: B018
    assert log == []


def _refusal():
    return wire.packet({"error": "north: refused, for no reason", "refused": True, "site": "north"}).to_bytes()


def test_a_node_whose_site_refuses_says_why(tmp_path):
    federation = Federation(tmp_path, west={"studies": []})
    nodes = Nodes(federation, {1: "north", 2: "south", 3: "west"})
    with pytest.raises(DataError, match="west: refused, its policy does not allow the study"):
        asking(federation, nodes).model()


def test_effects_of_local_groups_are_refused_before_any_request(tmp_path):
    text = STUDY.replace("+ ward", "+ (1 | ward)")
    with pytest.raises(ValueError, match="that no group of ward has rows at two sites: write site:ward"):
        StudyDocument(text)
    (tmp_path / "study.toml").write_text(text)
    said = CliRunner().invoke(app, ["flower", "hash", str(tmp_path / "study.toml")])
    assert said.exit_code == 1 and "write site:ward" in said.output
    for right in ("(1 | site:ward)", "(1 | site)", "(1 + age | ward:site)"):
        assert StudyDocument(STUDY.replace("+ ward", f"+ {right}").replace("ward = {", "age = {")).hash


def test_effects_of_groups_are_no_parameters_of_a_study():
    text = STUDY.replace("+ ward", "+ (1 | site:ward)").replace("ward = {", "age = {")
    with pytest.raises(ValueError, match='effects = "parameters" needs the rows of all sites in one process'):
        StudyDocument(text.replace("[model]", '[model]\neffects = "parameters"'))
    assert StudyDocument(text.replace("[model]", "[model]\nnodes = 30")).hash


@pytest.mark.parametrize(
    ("formula", "more", "columns"),
    [
        ("y ~ scale(age) + C(stage) + (1 + dose | site:ward)", "", {"y", "age", "stage", "dose", "ward"}),
        ("y ~ site + (1 | site)", "", {"y", "site"}),
        ("prop(a, b) ~ log(x) + offset(log(q))", "", {"a", "b", "x", "q"}),
        ("y['yes'] ~ crp + crp_missing", 'missing = "indicator"', {"y", "crp"}),
        ("y ~ crp + crp_missing", "", {"y", "crp", "crp_missing"}),
    ],
)
def test_a_study_knows_the_columns_that_files_must_have(formula, more, columns):
    text = f'[data]\nsites = ["a", "b", "c"]\n{more}\n[model]\nformula = "{formula}"\nweights = "times"\n'
    assert StudyDocument(text).needed_columns == columns | {"times"}


def test_a_misspelled_column_is_logged_at_its_own_site(tmp_path):
    # a name so long that ciphers and keys do not hold it by chance
    federation = Federation(tmp_path, STUDY.replace("age", "age_at_admission"))
    for site in SITES:
        path, own = tmp_path / site / "rows.csv", "Age_at_admission," if site == "north" else "age_at_admission,"
        path.write_text(path.read_text().replace("age,", own, 1))

    text = (
        r"north \(rows.csv\): there is no column 'age_at_admission', which south has "
        r"\(names must match exactly\)$"
    )
    with pytest.raises(DataError, match=text):
        Flower(federation.study, federation).model()
    assert federation.log == [
        "rows.csv has no column 'age_at_admission', which the study needs. It has 'Age_at_admission' "
        "(names must match exactly)"
    ]
    noted = [line["absent"] for line in audit.read(tmp_path / "north" / "kept") if "absent" in line]
    assert noted == [{"age_at_admission": "Age_at_admission"}]
    # names of its other columns stay at the site
    assert not any(b"Age_at" in content for content in federation.seen)
    assert not any("absent" in line for line in audit.read(tmp_path / "south" / "kept"))


def _rename_age(path):
    path.write_text(path.read_text().replace("age,", "Age,", 1))


@pytest.mark.parametrize(
    ("changes", "damage", "text"),
    [
        ({}, None, None),
        ({"studies": []}, None, "wrong: north: refused, its policy does not allow the study of hash"),
        ({"columns": ["age", "died"]}, None, "wrong: north: refused, its policy does not allow the columns ward"),
        ({"identity": "none"}, None, "holds no private key"),
        ({"identity": "../south/key"}, None, "its key in `peers` does not belong to its `identity`"),
        ({"rows": 500}, None, "wrong: north (rows.csv): refused, there are fewer than 500 rows"),
        ({"parameters": 0.001}, None, "wrong: north: 3 parameters are more than 0.001 of the rows"),
        ({}, _rename_age, "wrong: rows.csv has no column 'age', which the study needs. It has 'Age'"),
        ({}, Path.unlink, "wrong: north (rows.csv): there is no such file"),
        (
            {},
            lambda path: path.write_text(path.read_text().replace(",a,", ",b,")),
            "perhaps: with rows like these at all sites, column 'ward' is the same in every row",
        ),
    ],
)
def test_a_site_can_look_whether_it_can_take_part(tmp_path, changes, damage, text):
    Federation(tmp_path, north=changes)
    (tmp_path / "study.toml").write_text(STUDY)
    if damage is not None:
        damage(tmp_path / "north" / "rows.csv")
    arguments = ["flower", "check", str(tmp_path / "study.toml"), str(tmp_path / "north" / "site.toml")]
    said = CliRunner().invoke(app, arguments)
    may = text is None or text.startswith("perhaps")
    assert said.exit_code == (0 if may else 1) and ("north can take part" in said.output) == may
    assert text is None or text in said.output
    assert text is not None or "90 rows; age (number), ward (factor), died (yes-no)" in said.output
    # nothing is sent or stored
    assert not (tmp_path / "north" / "kept").exists()


def test_the_command_line_writes_an_app_a_hash_and_a_key(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    command = CliRunner()
    found = command.invoke(app, ["flower", "hash", str(tmp_path / "study.toml")])
    assert found.output.strip() == StudyDocument(STUDY).hash
    made = command.invoke(app, ["flower", "app", str(tmp_path / "app"), "--study", str(tmp_path / "study.toml")])
    assert made.exit_code == 0 and StudyDocument(STUDY).hash in made.output
    assert (tmp_path / "app" / "accord_study" / "study.toml").read_text() == STUDY
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"]["output"] == str(tmp_path / "app-results")
    again = command.invoke(app, ["flower", "app", str(tmp_path / "app"), "--study", str(tmp_path / "study.toml")])
    assert again.exit_code == 1 and "is not empty" in again.output
    key = command.invoke(app, ["flower", "key", str(tmp_path / "key")])
    assert is_signed(key.output.strip(), b"x", signature(tmp_path / "key", b"x"))
    wrong = command.invoke(app, ["flower", "hash", str(tmp_path / "none.toml")])
    assert wrong.exit_code == 1 and "none.toml" in wrong.output


def test_a_request_that_comes_again_has_the_very_same_answer(tmp_path):
    federation = Federation(tmp_path)
    engine = Flower(federation.study, federation)
    engine.model()
    request = federation.seen[-6]
    assert wire.read(request).head["kind"] == "meet"
    lines = len(audit.read(tmp_path / "north" / "kept"))
    assert federation.site("north").answer(request) == federation.seen[-3]
    # an older one is not kept, and its masks are not used again
    rounds = [federation.seen[first : first + 6] for first in range(0, len(federation.seen) - 6, 6)]
    older = next(one[0] for one in rounds if "words" in wire.read(one[3]).arrays)
    assert "differ from the earlier ones of this run" in wire.read(federation.site("north").answer(older)).head["error"]
    assert len(audit.read(tmp_path / "north" / "kept")) == lines + 2


# --- formulas ---


@pytest.mark.parametrize(
    "formula",
    [
        "surv.__builtins__.get.__class__.__call__('x') ~ age",
        "prop.__globals__.get('x') ~ age",
        "died ~ np.log.__class__(age)",
        "died ~ age + (1 | open('x'))",
    ],
)
def test_an_approved_formula_runs_no_code_at_a_site(formula, tmp_path, monkeypatch):
    from formulae.terms import call_resolver

    # the server sends the text, whose hash somebody approved without reading it
    federation, text = Federation(tmp_path), STUDY.replace("died ~ scale(age) + ward", formula)
    with pytest.raises(ValueError, match="unknown function in the formula|cannot be read"):
        StudyDocument(text)
    federation.write("north", {}, studies=[hash_of(text)])
    looked_up = []
    monkeypatch.setattr(call_resolver, "get_function_from_module", lambda name, env: looked_up.append(name))
    for kind in ("hello", "meet"):
        request = wire.packet({"study": text, "session": "0" * 16, "kind": kind, "answers": []}).to_bytes()
        answer = wire.read(federation.site("north").answer(request)).head
        assert "unknown function" in answer["error"] or "cannot be read" in answer["error"]
    assert looked_up == []


def test_a_site_refuses_a_column_of_one_person(tmp_path):
    ages = [float(line.split(",")[0]) for line in rows_of(0).splitlines()[1:]]
    formula = f"died ~ center(I((age == {max(ages)}) * (age - 3)))"
    federation = Federation(tmp_path, STUDY.replace("died ~ scale(age) + ward", formula).replace("ward = ", "age = "))
    with pytest.raises(DataError, match=r"^north: refused, in center\(.*fewer than 3 rows differ") as caught:
        Flower(federation.study, federation).model()
    assert str(max(ages) - 3) not in str(caught.value)


# --- a server that lies ---


def lying(federation, change):
    """A channel that changes what each site is asked: `change(site, head, arrays)`."""

    def channel(requests):
        changed = {}
        for site, request in requests.items():
            found = wire.read(request)
            changed[site] = wire.Packet(*change(site, dict(found.head), dict(found.arrays))).to_bytes()
        return federation(changed)

    return channel


def test_a_server_cannot_say_for_a_site_what_kind_its_columns_are(tmp_path):
    federation = Federation(tmp_path)

    def change(site, head, arrays):
        # the first answers are what is wrong with the files
        if head["kind"] == "meet" and len(head["answers"]) > 1:
            for own in head["answers"][1]:
                # cells would be levels, whose names are shared
                own["kinds"]["age"] = "factor"
        return head, arrays

    with pytest.raises(RefusedError, match="its own answer came back changed"):
        Flower(federation.study, lying(federation, change)).model()


def test_a_server_cannot_leave_out_what_a_site_refuses(tmp_path):
    federation = Federation(tmp_path, south={"rows": 500})

    def silenced(requests):
        answers = federation(requests)
        found = wire.read(answers["south"])
        if found.head.get("own") and "refused" in str(found.head["own"]):
            answers["south"] = wire.Packet(found.head | {"own": []}, found.arrays).to_bytes()
        return answers

    with pytest.raises(RefusedError, match="south: refused, its own answer came back changed"):
        Flower(federation.study, silenced).model()


def test_sites_that_are_asked_for_different_things_have_masks_that_do_not_cancel(tmp_path):
    federation = Federation(tmp_path)

    def change(site, head, arrays):
        if head["kind"] == "sum" and site != "south":
            arrays["points"] = arrays["points"] * np.nan
        return head, arrays

    engine = Flower(federation.study, lying(federation, change))
    with engine.placed(engine.model()) as placed:
        totals = placed.totals(accord.Network.star(3), masks=True)
        with pytest.raises(RuntimeError, match="did not cancel"):
            totals(accord.samplers.by_sums.evaluations.slope_of, points=np.zeros((2, 3)))


def test_data_that_changes_in_a_run_is_noticed(tmp_path):
    federation = Federation(tmp_path)
    engine = Flower(federation.study, federation)
    with engine.placed(engine.model()) as placed:
        path = tmp_path / "north" / "rows.csv"
        path.write_text("\n".join(path.read_text().splitlines()[:-30]) + "\n")
        with pytest.raises(DataError, match="north: its data has changed since this run began"):
            placed.totals(accord.Network.star(3), masks=True)(value_of, points=np.zeros((1, 3)))


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda head, arrays: head | {"drawn": [-5, 0, 0]}, "invalid points|without"),
        (lambda head, arrays: head | {"name": "own cells"}, "it answers value, slope"),
        (lambda head, arrays: head | {"session": "answered"}, "of a run"),
        (lambda head, arrays: head | {"session": "../../elsewhere"}, "of a run"),
        (lambda head, arrays: (arrays.update(points=np.zeros((1, 9))), head)[1], "points must be of shape"),
        (lambda head, arrays: (arrays.update(points=np.zeros((10_000_000, 3), np.float32)), head)[1], "too many"),
    ],
)
@pytest.mark.long_from(2)
def test_questions_that_no_server_of_accord_asks_are_refused(tmp_path, change, text):
    federation = Federation(tmp_path)

    def changed(site, head, arrays):
        return (change(head, arrays), arrays) if head["kind"] == "sum" else (head, arrays)

    engine = Flower(federation.study, lying(federation, changed))
    with engine.placed(engine.model()) as placed, pytest.raises(DataError, match=text):
        placed.totals(accord.Network.star(3), masks=True)(value_of, points=np.zeros((1, 3)))


def test_a_packet_does_not_become_larger_when_it_is_read():
    stream = io.BytesIO()
    np.savez_compressed(stream, head=np.frombuffer(b"{}", np.uint8), x=np.zeros(10_000_000))
    with pytest.raises(ValueError, match="bytes are not a packet"):
        wire.read(stream.getvalue())
    with pytest.raises(ValueError, match="no numbers"):
        wire.revived({"shape": [1], "type": "S900000000", "values": ["a"]})


def test_masks_of_two_sites_hide_nothing(tmp_path):
    study = STUDY.replace('"north", "south", "west"', '"north", "south"')
    federation = Federation(tmp_path, study)
    request = wire.packet({"study": study, "session": "0" * 16, "kind": "hello"}).to_bytes()
    assert "fewer than 3 sites" in wire.read(federation.site("north").answer(request)).head["error"]


def test_classes_of_numbers_are_reported_if_enough_rows_have_them(tmp_path):
    study = STUDY.replace('"died ~ scale(age) + ward"', '"age ~ ward"').replace('"bernoulli"', '"categorical"')
    federation = Federation(tmp_path, study, **dict.fromkeys(SITES, {"parameters": 1000.0}))
    with pytest.raises(DataError, match=r"\d+ of \d+ classes of the response have fewer than 3 rows"):
        Flower(federation.study, federation).model()


# --- what a dishonest server, or an administrator in a hurry, tries ---


@pytest.mark.parametrize("above", ["\n", "\n\n", "  \n"])
def test_a_blank_first_line_lets_no_column_through(tmp_path, above):
    federation = Federation(tmp_path, south={"columns": ["age", "died"]})
    path = tmp_path / "south" / "rows.csv"
    path.write_text(above + path.read_text())
    with pytest.raises(DataError, match="does not allow the columns ward|more cells|cannot be read|has no name"):
        drawn(engine := Flower(federation.study, federation), engine.model())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rows = 500", r"rows in \[peers\]: a public key is what .* found 500. Other keys .* above \[peers\]"),
        ('west = "xx"', "a public key is what"),
        ('west = "M3f0..."', "a public key is what"),
    ],
)
def test_keys_of_a_policy_that_slip_into_its_peers_are_an_error(tmp_path, text, said):
    Federation(tmp_path)
    path = tmp_path / "north" / "site.toml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("west")]
    path.write_text("\n".join([*lines, text]))
    with pytest.raises(ValueError, match=said):
        SitePolicy.read(path)


@pytest.mark.parametrize("found", ["A" * 64, "abc", "0" * 63 + " "])
def test_a_hash_that_can_match_nothing_is_an_error(tmp_path, found):
    with pytest.raises(ValueError, match="studies, entry 1: a hash is 64 hexadecimal digits in lower case"):
        Federation(tmp_path, north={"studies": [found]}).site("north")


def test_the_first_row_of_a_file_without_a_header_stays(tmp_path):
    federation = Federation(tmp_path)
    path = tmp_path / "south" / "rows.csv"
    path.write_text("anna meier,hiv positive,yes\n" + "".join(path.read_text().splitlines(True)[1:]))
    with pytest.raises(DataError):
        drawn(engine := Flower(federation.study, federation), engine.model())
    assert not any(word in content for content in federation.seen for word in (b"anna", b"hiv"))


def test_lines_of_unreadable_cells_stay_at_their_site(tmp_path):
    # line numbers would reveal the rows of a chosen cell
    cell = rows_of(0).splitlines()[7].split(",")[0]
    federation = Federation(tmp_path, STUDY.replace("[model]", f'blanks = ["{cell}"]\n[model]'))
    with pytest.raises(DataError, match="column 'age': some cells have no value: .* The site's own log") as raised:
        drawn(engine := Flower(federation.study, federation), engine.model())
    assert "line 8" not in f"{raised.value}" and not any(b"line 8" in content for content in federation.seen)
    assert any("column 'age': line 8 has no value" in text for text in federation.log)


def test_no_site_reports_summaries_of_its_own(finished):
    federation, engine, _ = finished
    values = []
    for content in federation.seen:
        found = wire.read(content)
        if "own" in found.head:
            values += jax.tree.leaves(wire.revived(found.head["own"]))
    own = [np.loadtxt(federation.folder / n / "rows.csv", delimiter=",", skiprows=1, usecols=0) for n in SITES]
    figures_of = [value for age in own for value in (age.mean(), age.std(), age.sum(), *np.quantile(age, [0.25, 0.5]))]
    numbers = [float(one) for one in values if isinstance(one, int | float)]
    # rows of each site are known, and levels by their names
    assert {90.0} <= set(numbers) and "a" in values
    assert not any(np.isclose(one, figures_of, rtol=1e-6).any() for one in numbers)


def test_requests_that_come_again_are_answered_in_two_runs_at_once(tmp_path):
    federation = Federation(tmp_path)
    engines = [Flower(federation.study, federation) for _ in range(2)]
    kept = {}

    def again(requests):
        # the other run asks in between, and every request comes twice
        answers = federation(requests)
        if not kept:
            kept["other"] = True
            engines[1]._begin()
        assert federation(requests) == answers
        return answers

    engines[0].channel = again
    engines[0]._begin()


def test_invalid_run_options_are_refused_before_a_study_is_sent():
    for line, said in (("draws = 0", "draws in .run. must be"), ("chains = -1", "chains"), ("seed = -1", "seed")):
        with pytest.raises(ValueError, match=said):
            StudyDocument(STUDY.replace("draws = 200", line))
    with pytest.raises(ValueError, match="not valid TOML"):
        StudyDocument(STUDY + "x = " + "[" * 5000)
    assert StudyDocument("\ufeff" + STUDY).hash == StudyDocument(STUDY).hash


def test_what_a_site_keeps_and_is_damaged_is_named(tmp_path):
    federation = Federation(tmp_path)
    engine = Flower(federation.study, federation)
    engine.model()
    (found,) = (tmp_path / "north" / "kept").glob("points-*.txt")
    found.write_text("")
    with pytest.raises(DataError, match=r"north: its file points-.*\.txt is damaged"):
        drawn(engine, engine.model())
    found.write_text("0")
    (tmp_path / "north" / "kept" / "runs" / engine.session / "answers.json").write_text("")
    with pytest.raises(DataError, match="north: its files of this run are damaged, see its audit file"):
        drawn(engine, engine.model())
    (tmp_path / "west" / "rows.csv").unlink()
    with pytest.raises(DataError, match="west: its policy's `data` names no file"):
        drawn(engine := Flower(federation.study, federation), engine.model())
