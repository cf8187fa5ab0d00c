"""What is read over what is learnt, an option a mark."""

from __future__ import annotations

from pathlib import Path

from cutlayer.recipes.labels.config import LabelsConfig
from cutlayer.recipes.labels.readings import ON_LABELS
from cutlayer.recipes.labels.report import TITLES, Results, reading
from cutlayer.recipes.picture import save_picture

_MARKS = dict(zip(ON_LABELS, ("o", "s", "^", "D"), strict=True))
_COLOURS = dict(zip(ON_LABELS, ("#440154", "#31688e", "#35b779", "#d95f02"), strict=True))
"""Told apart in grey, too."""


def draw_response(results: Results, config: LabelsConfig, path: Path, *, model: str) -> None:
    """Recovery and accuracy over ε, with the bound of reports.

    Raises:
        StorageError: The file cannot be written.
    """
    from matplotlib.figure import Figure

    drawn = sorted(
        (option for _, option in results.classifier if option.epsilon is not None), key=lambda each: each.epsilon or 0
    )
    epsilons = [option.epsilon or 0 for option in drawn]
    figure = Figure(figsize=(7, 4.6), layout="constrained")
    figure.suptitle(f"Labels of {config.task.title} under randomised response: {model}")
    axes = figure.add_subplot()
    for name in ON_LABELS:
        found = [(epsilon, reading(option, name)) for epsilon, option in zip(epsilons, drawn, strict=True)]
        known = [(epsilon, each.success) for epsilon, each in found if each is not None and each.success is not None]
        axes.errorbar(
            [epsilon for epsilon, _ in known],
            [100 * success.value for _, success in known],
            yerr=[100 * success.standard_error for _, success in known],
            fmt=f"{_MARKS[name]}-",
            color=_COLOURS[name],
            label=f"read: {TITLES[name]}",
            capsize=2,
            markersize=5,
        )
    axes.plot(epsilons, [100 * (each.bound or 0) for each in drawn], "k:", label="bound of reports")
    accuracies = [(option.epsilon or 0, option.accuracy) for option in drawn if option.accuracy is not None]
    axes.plot([at for at, _ in accuracies], [100 * each.value for _, each in accuracies], "k--", label="accuracy")
    axes.set(xlabel="ε of each label", ylabel="%", ylim=(45, 102))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save_picture(figure, path)
