"""Recipes: each paper's experiments as settings of the one road, with the paper's figures beside ours."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.recipes.catalogue import RECIPES
    from cutlayer.recipes.options import RecipeOptions, Size, data_folder
    from cutlayer.recipes.recipe import Recipe, Report

__all__ = ["RECIPES", "Recipe", "RecipeOptions", "Report", "Size", "data_folder"]

on_first_use(__name__, extra="recipes")
