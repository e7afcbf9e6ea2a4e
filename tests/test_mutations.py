"""The seeded faults fit the sources, so that `python tests/mutations.py` tries all of them."""

from mutations import FAULTS, HERE, PACKAGES


def test_every_fault_has_a_place_of_its_own_and_tests_that_are_there():
    for fault in FAULTS:
        assert (PACKAGES[fault.package] / fault.file).read_text().count(fault.before) == 1, fault.name
        assert fault.before != fault.after
        assert all((HERE / name).is_file() for name in fault.tests.split()), fault.name
