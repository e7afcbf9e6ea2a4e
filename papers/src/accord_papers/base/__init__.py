"""Argument checks, texts, figures and pages that all modules share."""
