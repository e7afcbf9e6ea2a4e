"""Questions about a finished run: what its agents answer about their data, models compared, and the page of a run."""
