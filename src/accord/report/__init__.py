"""The report of a run: a page that says what was asked, what was found, and whether it can be relied on."""
