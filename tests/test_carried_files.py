"""Files that a carrier or another site of a study has made or changed, and that a site reads."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from test_federation import (
    PLANNED,
    SITES,
    STUDY,
    Federation,
    answer_by_command,
    at,  # noqa: F401
    entries_of,
    finished,  # noqa: F401
    refused,
)

from accord.federation import Entry, ForgedError, StudyDocument, result
from accord.federation.entry import digest_of, plain
from accord.federation.flower import board
from accord.federation.keys import signature
from accord.federation.program import named_keys

DEEP = b"[" * 9_000 + b"]" * 9_000


# --- bytes that no site has signed ---


def with_key(whole):
    line, signed = whole.splitlines()
    return line + b"\n" + json.dumps({"note": "x", **json.loads(signed)}).encode() + b"\n"


CHANGES = {
    "crlf": lambda whole: whole.replace(b"\n", b"\r\n"),
    "space": lambda whole: whole[:-1] + b" \n",
    "key": with_key,
    "blank": lambda whole: whole + b"\n",
}


@pytest.mark.parametrize("change", CHANGES)
def test_bytes_that_no_site_signed_change_nothing(at, finished, change):  # noqa: F811
    federation = at(8)
    federation.answer("north")
    whole = federation.board.read(8, "north")
    federation.board.path(8, "north").write_bytes(CHANGES[change](whole))
    federation.answer("south")
    assert federation.store("south").read(8, "north") == whole
    # the carrier brings the true bytes later, and other bytes of a site to itself
    federation.board.path(8, "north").write_bytes(whole)
    own = federation.board.path(8, "south")
    own.write_bytes(CHANGES[change](own.read_bytes()))
    runs = federation.run()
    np.testing.assert_allclose(runs["south"].draws, finished[1]["south"].draws, rtol=1e-9, atol=1e-9)
    for path in {*federation.board.folder.rglob("*.json")} - {own}:
        path.write_bytes(CHANGES[change](path.read_bytes()))
    found = result(federation.study, federation.board.folder)
    np.testing.assert_array_equal(found.draws, runs["north"].draws)


def test_a_server_takes_an_entry_again_after_its_own_copy_has_other_line_ends(tmp_path):
    federation = Federation(tmp_path)
    federation.answer("north")
    whole = federation.board.read(0, "north")
    federation.board.path(0, "north").write_bytes(CHANGES["crlf"](whole))
    board._store(federation.board, 0, "north", whole)


# --- values that are nested too deep ---


def test_deep_values_are_refused_by_one_error_and_their_files_can_be_replaced(tmp_path):
    federation = Federation(tmp_path)
    federation.answer("north")
    path, whole = federation.board.path(0, "north"), federation.board.read(0, "north")
    line = whole.splitlines()[0]
    deep = line.replace(b'"identity": ', b'"x": ' + DEEP[:900] + DEEP[-900:] + b', "identity": ')
    signed = json.dumps(
        {"signature": base64_of(signature(tmp_path / "north" / "key", b"accord entry 1\n" + deep))}
    ).encode()
    for bad in (DEEP + b"\n" + DEEP + b"\n", line + b"\n" + DEEP + b"\n", deep + b"\n" + signed + b"\n"):
        path.write_bytes(bad)
        found = answer_by_command(federation, "south", "--yes")
        assert found.exit_code == 1 and isinstance(found.exception, SystemExit), found.exception
        assert "the entry of north in step 0 is no entry of a study: ValueError, values are nested more" in found.output
        if bad.startswith(b"["):
            with pytest.raises(ForgedError, match="the entry of north in step 0 is no entry of a study: values are"):
                named_keys(federation.study, federation.board)
    path.write_bytes(whole)
    federation.answer("south")
    assert federation.store("south").read(0, "north") == whole


def base64_of(found):
    import base64

    return base64.b64encode(found).decode()


def test_other_deep_files_are_named(tmp_path, at):  # noqa: F811
    federation = at(4)
    (federation.store("south").folder.parent / "masks.json").write_bytes(DEEP)
    with pytest.raises(ValueError, match="its file masks.json is missing, damaged"):
        federation.answer("south")
    path = federation.folder / "south" / "site.toml"
    path.write_text(f"site = {DEEP.decode()}")
    with pytest.raises(ValueError, match=r"policy .*south/site.toml: "):
        federation.policy("south")
    found = json.loads(federation.message("north", DEEP))
    assert "a message of 18000 bytes is no request" in found["error"]


# --- texts of other sites ---

FORGED = "west: refused\n\x1b[2J\r\u202eCertified: 9 of 9\ud800" + "x" * 1_000_000


def test_texts_of_other_sites_are_printed_as_one_short_line_each(at):  # noqa: F811
    federation = at(3)
    for name in SITES:
        federation.answer(name)
    federation.change(3, "west", content={"refused": [FORGED] * 60})
    found = answer_by_command(federation, "north", "--yes").output
    assert len(found) < 100_000 and not set("\x1b\r\u202e\ud800") & set(found)
    assert "west: refused  [2J  Certified: 9 of 9 xx" in found and " ..." in found
    assert not any(line.startswith("Certified") for line in found.splitlines())


def test_names_and_plans_of_other_sites_are_printed_cleanly(at):  # noqa: F811
    federation = at(PLANNED)
    federation.answer("north")
    written = Entry.read(federation.board.read(PLANNED, "north"), federation.public, "own").written
    written = {**written, "what": FORGED}
    federation.change(PLANNED, "north", written=written, plan=digest_of(written))
    with pytest.raises(ForgedError, match="the entry of north in step 7: the written plan is not") as found:
        federation.answer("south")
    assert len(str(found.value)) < 1_100 and str(found.value).isprintable()
    entry = Entry.read(federation.board.read(0, "north"), federation.public, "own")
    for changes in ({"site": FORGED}, {"study": FORGED}):
        federation.board.path(0, "west").write_bytes(
            replace(entry, **changes).signed(federation.folder / "north" / "key")
        )
        shutil.rmtree(federation.store("south").folder / "step-000")
        with pytest.raises(ForgedError) as found:
            federation.answer("south")
        assert len(str(found.value)) < 1_100 and str(found.value).isprintable()


def test_a_server_prints_answers_cleanly():
    with pytest.raises(ValueError, match="Certified") as found:
        board._raise({"west": {"error": FORGED}})
    assert len(str(found.value)) < 1_100 and str(found.value).isprintable()


# --- names of sites ---


@pytest.mark.parametrize(
    "names",
    [
        ("north", "n\u043erth", "west"),
        ("north", "north ", "west"),
        ("north", "north.", "west"),
        ("north 1", "north  1", "west"),
        ("north", "\uff4eorth", "west"),
        ("north", "NORTH", "west"),
        ("stra\u00dfe", "strasse", "west"),
        ("site 1", "site \u0661", "west"),
        ("\u0410\u0412\u0421", "ABC", "west"),
    ],
)
def test_names_that_look_alike_are_refused(names):
    with pytest.raises(ValueError, match="a site's name has|must have different names|with Latin letters only"):
        StudyDocument(STUDY.replace('["north", "south", "west"]', json.dumps(names)))


@pytest.mark.parametrize(
    "names",
    [
        ("K\u00f6ln", "Z\u00fcrich", "\u0141\u00f3d\u017a", "Diyarbak\u0131r"),
        ("\u041c\u043e\u0441\u043a\u0432\u0430", "\u041a\u0438\u0435\u0432", "\u0422\u043e\u043c\u0441\u043a-2"),
        ("\u6771\u4eac", "\u3055\u3044\u305f\u307e\u5e02", "\u30bb\u30f3\u30bf\u30fc 3"),
        ("St. Mary", "hospital-1", "a_b"),
    ],
)
def test_honest_names_are_allowed(names):
    assert StudyDocument(STUDY.replace('["north", "south", "west"]', json.dumps(names))).sites == names


# --- wrong types in signed entries ---


@pytest.mark.parametrize(
    ("step", "changed", "field"),
    [
        (1, {"header": [[1]]}, "content header 1 is a list, not text"),
        (1, {"kinds": {"age": []}}, "content kinds age is a list, not text"),
        (1, {"kinds": None}, "content kinds is null, not a dictionary"),
        (2, {"columns": {"age": 3}}, "content columns has other keys"),
        (2, {"policy": {"rows": "x"}}, "content policy has other keys"),
        (2, {"levels": {"ward": 3}}, "content levels ward is a number, not a list"),
        (2, {"levels": {"ward": [None]}}, "content levels ward 1 is null, not text"),
        (2, {"rows": "< 3"}, "content rows is text, not a number"),
        (
            2,
            {"policy": {"rows": True, "cells": 3, "parameters": 0.1, "rare": "refuse"}},
            "policy rows is true or false",
        ),
        (3, {"like": 3}, "content like is a number, not a list"),
        (3, {"masked": "x"}, "content masked is text, not an array"),
        (3, {"masked": {"shape": [1], "type": "<u8", "values": [10**400]}}, "OverflowError"),
    ],
)
def test_an_error_names_the_site_and_the_field_of_a_wrong_type(at, step, changed, field):  # noqa: F811
    federation = at(step)
    for name in ("north", "west"):
        federation.answer(name)
    usual = Entry.read(federation.board.read(step, "west"), federation.public, "own").content
    federation.change(step, "west", content=usual | changed)
    with pytest.raises(ForgedError, match=f"the entry of west in step {step} has another content.*{field}"):
        federation.answer("south")


def test_an_error_names_the_site_and_the_wrong_field_of_an_entry_and_of_a_plan(at):  # noqa: F811
    federation = at(PLANNED)
    federation.answer("north")
    usual = federation.board.read(PLANNED, "north")
    entry = Entry.read(usual, federation.public, "own")
    for name, value in (("plan", 3), ("written", []), ("what", None), ("step", True)):
        text = replace(entry, **{name: value}).signed(federation.folder / "north" / "key")
        federation.board.write(PLANNED, "north", text)
        text = f"the entry of north in step {PLANNED} is no entry of a study: ValueError, {name} has another type"
        assert refused(federation, text) == {}
    written = entry.written
    for part in (None, 3, plain(np.array([10**9]))):
        federation.board.write(PLANNED, "north", usual)
        wrong = {**written, "parts": {**written["parts"], "points": part}}
        federation.change(PLANNED, "north", written=wrong, plan=digest_of(wrong))
        federation.store("south").path(PLANNED, "north").unlink(missing_ok=True)
        refused(
            federation,
            f"the entry of north in step {PLANNED}: .*points (in the plan has another format|has other numbers)",
        )


def test_a_wrong_floor_names_its_site(at):  # noqa: F811
    federation = at(2)
    for name in ("north", "west"):
        federation.answer(name)
    usual = Entry.read(federation.board.read(2, "west"), federation.public, "own").content
    federation.change(2, "west", content=usual | {"policy": {**usual["policy"], "rows": 1.5}})
    with pytest.raises(ValueError, match="west: rows of a policy must be a whole number"):
        federation.answer("south")


def test_entries_are_the_same_after_they_are_read(finished):  # noqa: F811
    """Every entry that accord writes is canonical."""
    from accord.federation.entry import canonical

    for whole in entries_of(finished[0].board.folder).values():
        assert canonical(whole) == whole
