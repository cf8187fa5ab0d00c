"""Recipes: each paper's experiments as settings of the one road, with the paper's figures beside ours."""

from cutlayer.recipes.recipe import RECIPES, Order, Recipe, Report, Size, data_folder
from cutlayer.recipes.sap import Sap

__all__ = ["RECIPES", "Order", "Recipe", "Report", "Sap", "Size", "data_folder"]
