"""Cells that need no model, for tests of the engine; in a module of their own, as workers import them by name."""

from __future__ import annotations

from pydantic import BaseModel

from cutlayer.core import DataError
from cutlayer.recipes.lab import Cell
from cutlayer.recipes.long_table import Measure


class Halves(BaseModel):
    share: float


class HalfCell(Cell):
    """Halves a number; fails above 8."""

    number: float

    @property
    def name(self):
        return f"half-of-{self.number:g}-s{self.seed}"

    @classmethod
    def result_type(cls):
        return Halves

    def run(self, lab):
        if self.number > 8:
            raise DataError(f"{self.number:g} is too large.")
        lab.scratch(self).mkdir(parents=True)
        return Halves(share=self.number / 2 / 10 + self.seed / 100)

    def clear(self, lab):
        lab.scratch(self).rmdir()

    def measures(self, result):
        yield Measure("success", result.share, 0.01, 100, attack="halving")
        yield Measure("kept", 1 - result.share, attack="halving", axes={"half": "other"})


class SumCell(Cell):
    """Adds halves of numbers, which are computed before."""

    numbers: tuple[float, ...]

    @property
    def needs(self):
        return tuple(HalfCell(number=number) for number in self.numbers)

    @classmethod
    def result_type(cls):
        return Halves

    def run(self, lab):
        return Halves(share=sum(lab.result(cell).share for cell in self.needs))

    def measures(self, result):
        yield Measure("success", result.share)
