"""Recipes: each paper's experiments as settings of the one road, with the paper's figures beside ours."""

from typing import TYPE_CHECKING

from cutlayer.core.extras import require
from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.recipes.generation import NoisyGeneration
    from cutlayer.recipes.inference import Inference
    from cutlayer.recipes.labels import HiddenLabels
    from cutlayer.recipes.listing import Listed, listed
    from cutlayer.recipes.recipe import RECIPES, Order, Recipe, Report, Size, data_folder
    from cutlayer.recipes.sap import Sap
    from cutlayer.recipes.unsplit import SplitStudy
    from cutlayer.recipes.words import ReadWords

__all__ = [
    "RECIPES",
    "HiddenLabels",
    "Inference",
    "Listed",
    "NoisyGeneration",
    "Order",
    "ReadWords",
    "Recipe",
    "Report",
    "Sap",
    "Size",
    "SplitStudy",
    "data_folder",
    "listed",
]

require("recipes")
on_first_use(__name__)
