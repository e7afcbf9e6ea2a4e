"""The D-ADMMS paper."""
