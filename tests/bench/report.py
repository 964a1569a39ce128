"""A table of figures, each beside what it is held against."""

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One measured figure."""

    name: str
    value: str
    against: str
    """The goal, the limit, or what it was paired with."""


def show(title: str, figures: list[Figure]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    for heading in ("figure", "measured", "against"):
        table.add_column(heading, overflow="fold")
    for figure in figures:
        table.add_row(figure.name, figure.value, figure.against)
    Console(width=110).print(table)
