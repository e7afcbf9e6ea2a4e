"""`python -m accord` is the command line."""

from .cli import start

start()
