"""`python -m accord` is the command line."""

from .cli import app

app()
