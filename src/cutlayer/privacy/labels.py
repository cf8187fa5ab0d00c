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
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from cutlayer.core import Claim, ConfigError, DataError, Fault, Guarantee, PrivacyError
from cutlayer.privacy.randomness import NoiseKeys, generator
from cutlayer.privacy.release import IDENTITY_BYTES
from cutlayer.privacy.secret import CustomerSecret
from cutlayer.privacy.vault import Vault

LABEL_UNIT: Final = "epsilon per label"
"""What labels are charged in; never added to an eta."""
RESPONSE: Final = "randomised response"
IN_CLEAR: Final = "none"
LARGEST_EPSILON: Final = 20.0
"""Beyond it a label is changed less than once in 10^8 draws: rounding would begin to show, and nothing is hidden."""
LABELS_SHOWN: Final = "Gradients show training labels: with a cross-entropy, the vendor reads each of them."
UNSAFE_LABELS: Final = "Labels were drawn from a seed: whoever knows it can undo the draw. Nothing is promised."
_UNCOVERED: Final = (
    "It is of each label by itself, given everything else: which classes there are, the texts, and whatever texts and "
    "other records' labels tell about it.",
    "A text that says its label says it all the same: what the vendor reads of texts is a matter of eta.",
    "Labels of texts that are asked about later are the model's answers, which the vendor computes.",
)
_KEPT: Final = struct.Struct("<ii")


@dataclass(frozen=True)
class ReportedLabels:
    """Labels of `n` records as losses are computed from them, and what the ledger must know about them.

    Equal texts are one record, with one report.

    Attributes:
        labels: `[n]` int64, what is reported.
        identities: 16 bytes for each different record: names its draw.
        contents: 16 bytes for each: keyed hash of its text; budgets are kept per content.
        digests: 16 bytes for each: keyed hash of its report, so that a second, different one shows.
        epsilon: Of one draw; infinite for labels in clear.
        outdated: Records that have another label now than when their report was drawn.
        unsafe: Whether they were drawn from a seed.
        bodies: What the vault keeps, by identity.
    """

    labels: Tensor = field(repr=False)
    identities: tuple[bytes, ...] = field(repr=False)
    contents: tuple[bytes, ...] = field(repr=False)
    digests: tuple[bytes, ...] = field(repr=False)
    epsilon: float
    outdated: int = 0
    unsafe: bool = False
    bodies: dict[bytes, bytes] = field(default_factory=dict, repr=False)

    @property
    def mechanism(self) -> str:
        """Its name, for the ledger."""
        return IN_CLEAR if math.isinf(self.epsilon) else RESPONSE

    @property
    def etas(self) -> list[float]:
        """What each record is charged."""
        return [self.epsilon] * len(self.identities)

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

    A record is a text. Its draw is keyed with the customer's secret, the text, ε and the classes: **not** with its
    label, and not with its place, the epoch or the run. So what is seen of equal texts, of an epoch after another
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
        self, texts: Sequence[tuple[str, ...]], labels: Tensor, names: Sequence[str], *, vault: Vault
    ) -> ReportedLabels:
        """Reports of records: those that the vault keeps, the others drawn. Nothing is kept yet: see `keep`.

        Args:
            texts: `n` records' texts; equal ones are one record, whose label is the first one's.
            labels: `[n]` int64, numbers of `names`.
            names: The classes. Other classes, or another order of theirs, make another draw.
            vault: Where reports are kept.

        Raises:
            DataError: There are fewer than two classes, or labels of another number than texts.
        """
        if len(names) < 2 or len(labels) != len(texts):
            raise DataError(f"{len(labels)} labels of {len(names)} classes cannot be drawn for {len(texts)} texts.")
        settings = hashlib.blake2b(struct.pack("<d", self.epsilon) + _joined(names), key=self._identity_key).digest()
        first: dict[bytes, int] = {}
        record_of = []
        contents: list[bytes] = []
        for number, text in enumerate(texts):
            joined = _joined(text)
            identity = hashlib.blake2b(settings + joined, key=self._identity_key, digest_size=IDENTITY_BYTES).digest()
            if identity not in first:
                first[identity] = number
                contents.append(_hash(joined, self._content_key, b"label"))
            record_of.append(identity)
        identities = tuple(first)
        true = {identity: int(labels[number]) for identity, number in first.items()}
        if math.isinf(self.epsilon):
            reported, bodies, outdated = true, {}, 0
        else:
            bodies = self._bodies(identities, true, len(names), vault)
            drawn = {identity: _KEPT.unpack(body) for identity, body in bodies.items()}
            reported = {identity: report for identity, (report, _) in drawn.items()}
            outdated = sum(before != true[identity] for identity, (_, before) in drawn.items())
        return ReportedLabels(
            # without a draw, equal texts keep the labels that they have
            labels=labels.clone() if math.isinf(self.epsilon) else torch.tensor([reported[each] for each in record_of]),
            identities=identities,
            contents=tuple(contents),
            digests=tuple(_hash(struct.pack("<i", reported[each]), self._identity_key, each) for each in identities),
            epsilon=self.epsilon,
            outdated=outdated,
            unsafe=self._secret.is_unsafe,
            bodies=bodies,
        )

    def _bodies(
        self, identities: Sequence[bytes], true: dict[bytes, int], classes: int, vault: Vault
    ) -> dict[bytes, bytes]:
        """What the vault keeps of each record: its report, and the label that it was drawn from."""
        found = zip(identities, vault.get_many(identities), strict=True)
        return {
            identity: _KEPT.pack(self._respond(identity, true[identity], classes), true[identity])
            if body is None
            else body
            for identity, body in found
        }

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


def _joined(parts: Sequence[str]) -> bytes:
    """Texts as bytes, each with its length, so that no two sequences are the same bytes."""
    encoded = [part.encode() for part in parts]
    return struct.pack("<q", len(encoded)) + b"".join(struct.pack("<q", len(each)) + each for each in encoded)


def _hash(content: bytes, key: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(content, key=key, digest_size=IDENTITY_BYTES, person=purpose).digest()
