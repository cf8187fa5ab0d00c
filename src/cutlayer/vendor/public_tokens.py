"""Public text that a vendor trains on, as token ids in files, however much it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutlayer.core import DataError, Ragged
from cutlayer.core.files import make_folder, sync_file, write_whole
from cutlayer.models.batches import epoch_batches
from cutlayer.wire.denoisers import Corpus

PublicFile: TypeAlias = tuple[str, Iterable[tuple[str, ...]]]
"""What a file of public text is called, and its rows, of which the first text counts."""

_KEPT_BACK = 500
"""Texts that are measured on, and not learnt from; a tenth of all where there are fewer."""
DRAWN_TOGETHER: Final = 16
"""Steps whose texts are drawn together and dealt by length: else more than half of all places were padding."""
_CHUNK = 2000
"""Texts that are tokenised together."""


class PublicTokens:
    """Public texts as token ids in files, so that memory does not grow with them.

    Args:
        folder: That of the files.
    """

    def __init__(self, folder: Path) -> None:
        told = json.loads((folder / "corpus.json").read_bytes())
        self.corpora = tuple(Corpus(**each) for each in told["corpora"])
        self._ids = np.memmap(folder / "ids.bin", dtype="<u4", mode="r")
        self._ends = np.memmap(folder / "ends.bin", dtype="<u8", mode="r")

    def __len__(self) -> int:
        return len(self._ends)

    @classmethod
    def write(
        cls,
        folder: Path,
        sources: Sequence[PublicFile],
        tokenise_some: Callable[[list[str]], Ragged],
        on_text: Callable[[int], object],
    ) -> PublicTokens:
        """Writes texts without a token left out; files that are there whole are taken as they are.

        Args:
            folder: Of the files; made if it is not there.
            sources: Texts, by what they are called.
            tokenise_some: Turns texts into ids.
            on_text: Told how many texts were read.

        Raises:
            DataError: No text has a token.
        """
        if (folder / "corpus.json").exists():
            return cls(folder)
        make_folder(folder)
        corpora, read, end = list[dict[str, object]](), 0, 0
        with open(folder / "ids.bin", "wb") as ids, open(folder / "ends.bin", "wb") as ends:
            for name, source in sources:
                digest, kept = hashlib.sha256(), 0
                for some in _chunks(source):
                    _add(digest, some)
                    tokens = tokenise_some(some)
                    lengths = tokens.lengths[tokens.lengths > 0].numpy()
                    ids.write(tokens.values.numpy().astype("<u4").tobytes())
                    ends.write((end + lengths.cumsum()).astype("<u8").tobytes())
                    end, kept, read = end + int(lengths.sum()), kept + len(lengths), read + len(some)
                    on_text(read)
                corpora.append({"name": name, "sha256": digest.hexdigest(), "texts": kept})
        if not end:
            raise DataError("No public text has a token.", remedy="Give files with text in that column.")
        for name in ("ids.bin", "ends.bin"):  # what says that they are whole comes after them, after a power cut, too
            sync_file(folder / name)
        write_whole(folder / "corpus.json", json.dumps({"corpora": corpora}).encode())
        return cls(folder)

    @property
    def kept_back(self) -> list[int]:
        """Texts that are measured on, by number: spread over all files, whatever each is about."""
        count = min(_KEPT_BACK, max(1, len(self) // 10))
        return [number * len(self) // count for number in range(count)]

    @property
    def learnt_from(self) -> int:
        """How many texts are not kept back."""
        return len(self) - len(self.kept_back)

    def learnt(self, places: NDArray[np.int64]) -> list[int]:
        """The texts that stand at places `[n]` among those that are not kept back, by number."""
        kept = np.array(self.kept_back)
        numbers: list[int] = (places + np.searchsorted(kept - np.arange(len(kept)), places, side="right")).tolist()
        return numbers

    def of_step(self, step: int, *, size: int, seed: tuple[int, ...]) -> list[int]:
        """Texts that a step of a training learns from, by number: drawn with other steps' texts, and of like lengths.

        Which step has short texts and which long ones is drawn, too. A step's texts depend on its number alone, so that
        a stopped training goes on with those that it would have had.

        Args:
            step: Its number.
            size: Texts of a step.
            seed: Of the draws.
        """
        together, place = divmod(step, DRAWN_TOGETHER)
        rng = np.random.Generator(np.random.PCG64([*seed, together, 1]))
        places = rng.integers(self.learnt_from, size=DRAWN_TOGETHER * size)
        drawn = np.array(self.learnt(places))
        batches = epoch_batches(self.lengths(drawn), batch_size=size, rng=rng, group_by_length=True)
        numbers: list[int] = drawn[batches[place]].tolist()
        return numbers

    def lengths(self, numbers: NDArray[np.int64]) -> Tensor:
        """Tokens of some texts, `[n]` int64."""
        ends, before = self._ends[numbers], np.where(numbers > 0, self._ends[numbers - 1], 0)
        return torch.from_numpy((ends - before).astype(np.int64))

    def select(self, numbers: Sequence[int]) -> Ragged:
        """Ids of some texts, in that order."""
        starts = [int(self._ends[number - 1]) if number else 0 for number in numbers]
        parts = [self._ids[start : int(self._ends[number])] for start, number in zip(starts, numbers, strict=True)]
        lengths = torch.tensor([len(part) for part in parts])
        return Ragged(torch.from_numpy(np.concatenate(parts).astype(np.int64)), lengths)


def digest_of(texts: Iterable[tuple[str, ...]]) -> str:
    """What tells public texts from others: hexadecimal SHA-256 of all, one after the other."""
    digest = hashlib.sha256()
    for some in _chunks(texts):
        _add(digest, some)
    return digest.hexdigest()


def _add(digest: hashlib._Hash, texts: list[str]) -> None:
    for text in texts:
        content = text.encode()
        digest.update(len(content).to_bytes(8) + content)


def _chunks(texts: Iterable[tuple[str, ...]]) -> Iterator[list[str]]:
    some = list[str]()
    for text, *_ in texts:
        some.append(text)
        if len(some) == _CHUNK:
            yield some
            some = []
    if some:
        yield some
