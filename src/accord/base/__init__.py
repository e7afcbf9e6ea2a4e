"""Helpers shared by all packages of accord. They import only each other."""
