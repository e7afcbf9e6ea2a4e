"""What a run says: draws, traffic, diagnostics, findings and files. Plain arrays; it knows no method and no engine."""
