"""A sample of each row of the table of faults."""

import json

import pytest
from page import PAGE, REPORT, with_table
from rows import ROWS
from table import GOOD, Outcome, Row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.part}: {row.fault}")
def test_nothing_is_silent_lost_hanging_or_bare(row: Row, unhooked):
    outcomes = list(row.outcomes(range(row.sample)))
    assert all(outcome.is_good for outcome in outcomes), outcomes


def test_faults_have_names_of_their_own():
    names = [(row.part, row.fault) for row in ROWS]
    assert len(set(names)) == len(names)
    assert {outcome.is_good for outcome in Outcome} == {True, False}


def test_page_shows_the_counts_of_the_report():
    rows = json.loads(REPORT.read_text())["rows"]
    page = PAGE.read_text()
    assert page == with_table(page, rows)
    assert {(row["part"], row["fault"]) for row in rows} == {
        (r.part, r.fault) for r in ROWS
    }
    assert not any(set(row["outcomes"]) - GOOD for row in rows)
