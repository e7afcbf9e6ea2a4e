"""`python -m accord` is the command line."""

from .cli.commands import app

app()
