"""The command line as `python -m accord`."""

from .cli import start

start()
