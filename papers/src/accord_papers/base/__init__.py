"""Checks, texts, figures and pages that the other rooms share."""
