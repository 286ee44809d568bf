"""Prints the folder in which the packages have the names of those that they stand in for."""

import pathlib

print(pathlib.Path(__file__).parent / "drop_in")
