"""Which words of texts are replaced, by which, and at which eta: what the parts of recipe `rapt` have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, TypeAlias

from cutlayer.core import Cut, Spec, Tokens
from cutlayer.customer import FinetuneSpec
from cutlayer.customer.defaults import settle
from cutlayer.customer.derived import Privatizing, run_privatizing
from cutlayer.customer.reading import WordReading
from cutlayer.privacy import Words
from cutlayer.privacy.privatizers.words import WordsPrivatizer
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.read_releases import of_mechanism
from cutlayer.reports import Calibrated, etas_for_shares

Candidates: TypeAlias = Literal["category", "all"]
Draw: TypeAlias = Literal["noise", "exponential"]
CATEGORY: Final = "category"
ALL: Final = "all"
_CALIBRATION_SEED = 0


class Source(Spec):
    """A public model: what it is called, and what it is."""

    name: str
    fingerprint: str

    @classmethod
    def of(cls, name: str, lab: Lab) -> Source:
        """A model that a recipe names."""
        return cls(name=name, fingerprint=lab.model(_placed(name, lab), head=None).fingerprint)

    def placed(self, lab: Lab) -> str:
        """What to load: its folder, if this recipe made it."""
        return _placed(self.name, lab)


def made_here(name: str, lab: Lab) -> Path:
    """The folder of a public model that a recipe makes by itself."""
    return lab.options.out / "models" / name


def _placed(name: str, lab: Lab) -> str:
    folder = made_here(name, lab)
    return str(folder) if folder.is_dir() else name


class Replacement(Spec):
    """Which words become others, and which these may be.

    Attributes:
        words: As of `privacy.Words`; and so `candidates` and `draw`.
        space: Gives words their vectors.
        components: Of its table, between which distances are measured; `None` for the table itself.
        noise: Whose noise is drawn, by the mechanism's name.
    """

    words: tuple[str, ...]
    candidates: Candidates
    draw: Draw = "noise"
    space: Source
    components: int | None = None
    noise: str = of_mechanism()

    def privacy(self, eta: float, lab: Lab) -> Words:
        """The mechanism at an eta."""
        space = self.space.placed(lab)
        if self.components is not None:
            space = f"{space}:{self.components}"
        return Words(
            eta=eta, words=self.words, candidates=self.candidates, draw=self.draw, space=space, noise=self.noise
        )

    def reading(self, lab: Lab) -> WordReading:
        """How texts are read as words."""

        def read() -> WordReading:
            found = self._privatizing(lab, 1.0, seed=0).reading
            if not isinstance(found, WordReading):
                raise TypeError("words are read")
            return found

        return lab.once(self, read)

    def privatizer(self, lab: Lab, eta: float, *, seed: int) -> WordsPrivatizer:
        """Draws words at an eta, with noise that repeats with the seed: of public text."""
        found = self._privatizing(lab, eta, seed=seed, reading=self.reading(lab)).privatizer
        if not isinstance(found, WordsPrivatizer):
            raise TypeError("words are drawn")
        return found

    def eta(self, lab: Lab, tokens: Tokens, share: float) -> float:
        """The eta that replaces about this share of all words; see `calibration`."""
        return self.calibration(lab, tokens)(share).eta

    def calibration(self, lab: Lab, tokens: Tokens, *, of_chosen: bool = False) -> Callable[[float], Calibrated]:
        """Finds the eta that replaces about a share of words; it raises `ConfigError` where none does.

        Args:
            lab: Where models and vocabularies are.
            tokens: Texts as names of words, as `reading` reads them.
            of_chosen: Whether shares are of the words that are drawn alone, else of all.
        """
        privatizer, names = self.privatizer(lab, 1.0, seed=0), tokens.values
        if of_chosen:
            names = names[privatizer.is_drawn(names)]

        def calibrated(share: float) -> Calibrated:
            (point,) = etas_for_shares(names, privatizer, [share], seed=_CALIBRATION_SEED)
            return point

        return calibrated

    def _privatizing(self, lab: Lab, eta: float, *, seed: int, reading: WordReading | None = None) -> Privatizing:
        cut = Cut(bottom=None)
        spec = settle(FinetuneSpec(privacy=self.privacy(eta, lab), cut=cut, unsafe_noise_seed=seed))
        # of the space's own model: whichever the vendor's is, the draws are the same
        return run_privatizing(lab.archive(cut, self.space.placed(lab)), lab.home(str(seed)), spec, reading=reading)
