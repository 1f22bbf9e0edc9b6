"""Targets that are this project with a number of workers: how they are called."""

NUMBERS = (1, 2, 4)


def name_of(workers: int) -> str:
    return f"workers-{workers}"


NUMBER_OF = {name_of(number): number for number in NUMBERS}
"""by name"""
