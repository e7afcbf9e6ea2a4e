"""Results of a run: draws, traffic, diagnostics, findings and files. Plain arrays, with no method and no engine."""
