"""Labels as a vendor may know them: randomised response, drawn once for each record.

Gradients show labels, whatever is done to the gradients afterwards. So the labels themselves are drawn before any
loss is computed from them, and all that follows is computed from what was drawn.

Ref: Warner 1965; Kairouz, Bonawitz and Ramage, "Discrete distribution estimation under local privacy",
arXiv:1602.07387; Ghazi et al., "Deep learning with label differential privacy", arXiv:2102.06062.
"""

from __future__ import annotations

import hashlib
import math
import struct
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from cutlayer.core import Claim, ConfigError, DataError, Fault, Guarantee, PrivacyError, Tokens
from cutlayer.privacy.charges import Charges, record
from cutlayer.privacy.context import token_lists
from cutlayer.privacy.randomness import NoiseKeys, generator
from cutlayer.privacy.release import IDENTITY_BYTES
from cutlayer.privacy.secret import CustomerSecret
from cutlayer.privacy.spec import LARGEST_EPSILON
from cutlayer.privacy.vault import Vault

RESPONSE: Final = "randomised response"
IN_CLEAR: Final = "none"
LABELS_SENT: Final = "Training labels were sent to the vendor as they are."
LABELS_SHOWN: Final = "Gradients show training labels: with a cross-entropy, the vendor reads each of them."
UNSAFE_LABELS: Final = "Labels were drawn from a seed: whoever knows it can undo the draw. Nothing is promised."
_UNCOVERED: Final = (
    "It is of each label by itself, given everything else: which classes there are, the texts, and whatever texts and "
    "other records' labels tell about it.",
    "A text that says its label says it all the same: what the vendor reads of texts is a matter of eta.",
    "Labels of texts that are asked about later are the model's answers, which the vendor computes.",
)
_KEPT: Final = struct.Struct("<ii16s")
_FORMER: Final = struct.Struct("<ii")


@dataclass(frozen=True)
class _Seen:
    """Names of a text: as it reads, by its ids, and to the letter."""

    read: bytes
    ids: bytes
    exact: bytes

    @classmethod
    def of(cls, text: Sequence[str], ids: Sequence[Sequence[int]]) -> _Seen:
        numbers = b"".join(struct.pack("<q", len(side)) + np.asarray(side, dtype="<i8").tobytes() for side in ids)
        return cls(b"text" + _joined([reads_as(part) for part in text]), b"ids" + numbers, _joined(text))


@dataclass(frozen=True)
class _Kept:
    """A record's report, the label that it was drawn from, and the draw's name."""

    report: int
    label: int
    identity: bytes

    @classmethod
    def read(cls, body: bytes, key: bytes) -> _Kept:
        """What the vault kept under a key; the first versions named draws by it."""
        if len(body) == _FORMER.size:
            report, label = _FORMER.unpack(body)
            return cls(report, label, key)
        return cls(*_KEPT.unpack(body))

    @property
    def body(self) -> bytes:
        return _KEPT.pack(self.report, self.label, self.identity)


@dataclass(frozen=True)
class ReportedLabels:
    """Labels of `n` texts as losses are computed from them, and what the ledger must know about them.

    Texts that the vendor can tell to be one are one record, with one report.

    Attributes:
        labels: `[n]` int64, what is reported.
        identities: 16 bytes for each different record: names its draw.
        contents: 16 bytes for each: keyed hash of its text as it reads.
        charges: What each costs, by its text as it reads and by its ids.
        digests: 16 bytes for each: keyed hash of its report, so that a second, different one shows.
        epsilon: Of one draw; infinite for labels in clear.
        outdated: Records that have another label now than when their report was drawn.
        unsafe: Whether they were drawn from a seed.
        bodies: What the vault keeps, by identity.
        record_of: `[n]` int64, each text's place among the records.
    """

    labels: Tensor = field(repr=False)
    identities: tuple[bytes, ...] = field(repr=False)
    contents: tuple[bytes, ...] = field(repr=False)
    charges: Charges = field(repr=False)
    digests: tuple[bytes, ...] = field(repr=False)
    epsilon: float
    outdated: int = 0
    unsafe: bool = False
    bodies: dict[bytes, bytes] = field(default_factory=dict, repr=False)
    record_of: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64), repr=False)

    def select(self, chosen: slice) -> ReportedLabels:
        """Those of some of the texts, with what the ledger must know about these."""
        places, record_of = self.record_of[chosen].unique(return_inverse=True)
        kept = places.tolist()
        return replace(
            self,
            labels=self.labels[chosen],
            identities=tuple(self.identities[place] for place in kept),
            contents=tuple(self.contents[place] for place in kept),
            charges=self.charges.select(places),
            digests=tuple(self.digests[place] for place in kept),
            record_of=record_of,
        )

    @property
    def mechanism(self) -> str:
        """Its name, for the ledger."""
        return IN_CLEAR if math.isinf(self.epsilon) else RESPONSE

    def keep(self, vault: Vault) -> None:
        """Keeps the reports, so that a record has the same one whatever becomes of its label.

        Args:
            vault: Where they are sealed.

        Raises:
            PrivacyError: Another process kept other reports meanwhile.
        """
        if vault.put_many(self.bodies) != self.bodies:
            raise PrivacyError(
                "Another run drew reports of the same records from other labels meanwhile.",
                remedy="Run the same command again: it takes the reports that were drawn first.",
            )

    def guarantee(self, *, spent: float) -> Guarantee:
        """What is promised of each label.

        Args:
            spent: The most that any of them was charged so far, over all runs.
        """
        if self.unsafe:
            return Guarantee.nothing(UNSAFE_LABELS)
        if math.isinf(self.epsilon):
            return Guarantee.nothing(LABELS_SHOWN)
        if math.isinf(spent):
            return Guarantee.nothing(
                "Another run trained on some of these labels as they are: its gradients showed them."
            )
        caveats: tuple[str, ...] = _UNCOVERED
        if spent > self.epsilon:
            caveats = (f"Of it, {self.epsilon:g} is this run's; other runs drew reports of their own.", *caveats)
        if self.outdated:
            caveats = (
                f"{self.outdated} records have another label now than when their report was drawn, and keep that "
                "report: to draw it again would tell that the label changed.",
                *caveats,
            )
        return Guarantee(
            claim=Claim.LABEL, budget=max(spent, self.epsilon), unit="epsilon", per="label", caveats=caveats
        )


class LabelResponse:
    """K-ary randomised response with one draw for each record.

    Pr[R(y) = y] = e^ε / (e^ε + K - 1), and each other label has probability 1 / (e^ε + K - 1), so that
    Pr[R(y) = z] <= e^ε Pr[R(y') = z] for all y, y' and z.

    A record is what the vendor can tell to be one text: texts that read alike (Unicode form, case and blanks apart),
    or whose tokens are alike. Its draw is keyed with the customer's secret, the record, ε and the classes: **not** with
    its label, and not with its place, the epoch or the run. So what is seen of equal texts, of an epoch after another
    and of another run is the same report again, from which nothing more follows.

    Args:
        epsilon: ε, above 0; infinite for labels as they are.
        secret: The customer's secret.

    Raises:
        ConfigError: ε is no such number, or so large that a draw would change next to nothing.
    """

    def __init__(self, epsilon: float, *, secret: CustomerSecret) -> None:
        if not (0 < epsilon <= LARGEST_EPSILON or epsilon == math.inf):
            raise ConfigError([Fault("label_epsilon", epsilon, f"must be above 0, and {LARGEST_EPSILON:g} at most")])
        self.epsilon = epsilon
        self._secret = secret
        self._noise_keys = NoiseKeys(secret)
        self._content_key = secret.content_key()
        self._identity_key = secret.derive("label identity")

    def draw(
        self, texts: Sequence[tuple[str, ...]], ids: Tokens, labels: Tensor, names: Sequence[str], *, vault: Vault
    ) -> ReportedLabels:
        """Reports of records: those that the vault keeps, the others drawn. Nothing is kept yet: see `keep`.

        Args:
            texts: `n` texts, or pairs.
            ids: Their tokens, not cut: two texts that the vendor is shown the same way are one record.
            labels: `[n]` int64, numbers of `names`; a record's label is its first text's.
            names: The classes. Other classes, or another order of theirs, make another draw.
            vault: Where reports are kept.

        Raises:
            DataError: There are fewer than two classes, or labels of another number than texts.
        """
        if len(names) < 2 or not len(labels) == len(texts) == len(ids):
            raise DataError(f"{len(labels)} labels of {len(names)} classes cannot be drawn for {len(texts)} texts.")
        settings = hashlib.blake2b(struct.pack("<d", self.epsilon) + _joined(names), key=self._identity_key).digest()
        sides = zip(*(token_lists(segment) for segment in ids.segments), strict=True)
        seen = [_Seen.of(text, row) for text, row in zip(texts, sides, strict=True)]
        record_of = _merged([(each.read, each.ids) for each in seen])
        records: dict[int, list[_Seen]] = {}
        for number, each in zip(record_of, seen, strict=True):
            records.setdefault(number, []).append(each)
        true = {number: int(labels[number]) for number in records}  # a record has its first text's number
        bodies, kept = self._kept(records, true, settings, len(names), vault)
        if math.isinf(self.epsilon):
            bodies, kept = {}, {number: replace(each, report=true[number]) for number, each in kept.items()}
        charges = (
            b"".join(
                record(_hash(name, self._content_key, b"label"), kept[number].identity, self.epsilon)
                for name in sorted({name for each in texts_of for name in (each.read, each.ids, each.exact)})
            )
            for number, texts_of in records.items()
        )
        return ReportedLabels(
            # without a draw, equal texts keep the labels that they have
            labels=labels.clone()
            if math.isinf(self.epsilon)
            else torch.tensor([kept[number].report for number in record_of]),
            identities=tuple(kept[number].identity for number in records),
            contents=tuple(_hash(texts_of[0].read, self._content_key, b"label") for texts_of in records.values()),
            charges=Charges.of(charges),
            digests=tuple(
                _hash(struct.pack("<i", kept[number].report), self._identity_key, kept[number].identity)
                for number in records
            ),
            epsilon=self.epsilon,
            outdated=0
            if math.isinf(self.epsilon)
            else sum(each.label != true[number] for number, each in kept.items()),
            unsafe=self._secret.is_unsafe,
            bodies=bodies,
            record_of=_places(record_of),
        )

    def _kept(
        self,
        records: Mapping[int, Sequence[_Seen]],
        true: Mapping[int, int],
        settings: bytes,
        classes: int,
        vault: Vault,
    ) -> tuple[dict[bytes, bytes], dict[int, _Kept]]:
        """What the vault is to keep of each record, under all of its names, and what it says.

        A record that joins some which were drawn apart before keeps the report of one of them.
        """
        names = {
            number: [
                _hash(name, settings, b"label name")
                for name in sorted({name for each in texts_of for name in (each.read, each.ids)})
            ]
            for number, texts_of in records.items()
        }
        # the first versions kept a report under its text, to the letter
        former = {
            number: [self._former(settings, each.exact) for each in texts_of] for number, texts_of in records.items()
        }
        keys = [key for number in records for key in (*names[number], *former[number])]
        found = {key: body for key, body in zip(keys, vault.get_many(keys), strict=True) if body is not None}
        bodies: dict[bytes, bytes] = {}
        kept = {}
        for number in records:
            known = next((key for key in (*names[number], *former[number]) if key in found), None)
            if known is None:
                identity, label = names[number][0], true[number]
                drawn = label if math.isinf(self.epsilon) else self._respond(identity, label, classes)
                kept[number] = _Kept(drawn, label, identity)
            else:
                kept[number] = _Kept.read(found[known], known)
            bodies |= {name: found.get(name, kept[number].body) for name in names[number]}
        return bodies, kept

    def _former(self, settings: bytes, exact: bytes) -> bytes:
        return hashlib.blake2b(settings + exact, key=self._identity_key, digest_size=IDENTITY_BYTES).digest()

    def _respond(self, identity: bytes, label: int, classes: int) -> int:
        rng = generator(self._noise_keys(identity))
        if rng.random() < keep_probability(self.epsilon, classes):
            return label
        other = int(rng.integers(classes - 1))
        return other + (other >= label)


def keep_probability(epsilon: float, classes: int) -> float:
    """Probability that a label is reported as it is, e^ε / (e^ε + K - 1).

    Whoever knows reports and nothing else guesses no more labels right, where each class is as probable as any other
    before; a skewed prior says more. Ref: Ghazi et al., arXiv:2102.06062.

    Args:
        epsilon: ε.
        classes: K.
    """
    return 1 / (1 + (classes - 1) * math.exp(-epsilon))


def reads_as(text: str) -> str:
    """A text in one Unicode form and case, with one blank for any number of them.

    Ref: Unicode NFKC and full case folding.
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _merged(names: Sequence[Sequence[bytes]]) -> list[int]:
    """For each item the number of the first one that it shares a name with, directly or through others."""
    parent = list(range(len(names)))

    def root(item: int) -> int:
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    holder: dict[bytes, int] = {}
    for item, own in enumerate(names):
        for name in own:
            first, other = sorted((root(holder.setdefault(name, item)), root(item)))
            parent[other] = first
    return [root(item) for item in range(len(names))]


def _places(numbers: Sequence[int]) -> Tensor:
    """`[n]` int64: of each number its place among the different ones, in the order in which they are met."""
    places: dict[int, int] = {}
    return torch.tensor([places.setdefault(number, len(places)) for number in numbers], dtype=torch.int64)


def _joined(parts: Sequence[str]) -> bytes:
    """Texts as bytes, each with its length, so that no two sequences are the same bytes."""
    encoded = [part.encode() for part in parts]
    return struct.pack("<q", len(encoded)) + b"".join(struct.pack("<q", len(each)) + each for each in encoded)


def _hash(content: bytes, key: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(content, key=key, digest_size=IDENTITY_BYTES, person=purpose).digest()
