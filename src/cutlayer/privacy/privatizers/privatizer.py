"""A privatizer: a mechanism at a place on the road."""

from __future__ import annotations

import hashlib
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutlayer.core import (
    ConfigError,
    Deviation,
    Fault,
    Guarantee,
    Place,
    Registry,
    Rows,
    Tokens,
)
from cutlayer.privacy.charges import Charges, record
from cutlayer.privacy.context import NAME_BYTES, Excerpts, Reader, Readings, Spellings, contexts
from cutlayer.privacy.cti import NO_GUARANTEE, UtilityImportance
from cutlayer.privacy.distances import largest_distance
from cutlayer.privacy.layout import TextMajor
from cutlayer.privacy.mechanisms import DChi, PluggedIn, find_mechanism
from cutlayer.privacy.mechanisms.mechanism import Float64, norm_of
from cutlayer.privacy.neighbours import QUERY_BLOCK
from cutlayer.privacy.privatizers.naming import Named, NamedText, Source, sources_of
from cutlayer.privacy.privatizers.space import Space
from cutlayer.privacy.randomness import NoiseKeys, stream_fingerprint
from cutlayer.privacy.release import IDENTITY_BYTES, Release
from cutlayer.privacy.replacement import Replaceable
from cutlayer.privacy.secret import CustomerSecret
from cutlayer.privacy.spec import PrivacySpec
from cutlayer.privacy.words import Dictionary

BLOCK_ELEMENTS: Final = 2**23
"""float64 numbers of noise held at a time, whatever the number of texts."""
RECOGNISED: Final = 8
"""Tokens from which on a text's beginning has an account: many texts begin with the same word, and are not one."""
UNSAFE: Final = "The noise comes from a seed: whoever knows it can subtract all noise. Nothing is promised."


Int64 = NDArray[np.int64]


class Privatizer(ABC):
    """Turns texts into releases.

    A token's noise is a stream that is named after the token and what stands before it, in its text (or in a window
    of it). So the same text under the same settings gets the same noise in any order, batch or process, cut anywhere
    and with whatever behind it, and two tokens share noise only behind the same text.

    Working memory is bounded by `BLOCK_ELEMENTS` and the search's blocks; only what is returned
    grows with the number of texts.

    Args:
        spec: The settings.
        secret: The customer's secret.
        space: Table, candidates and names.
        importance: Token importance, if `spec.cti` is set.

    Attributes:
        mechanism: The noise and its guarantee. A plug-in's claim is never shown as cutlayer's.
    """

    def __init__(
        self, spec: PrivacySpec, *, secret: CustomerSecret, space: Space, importance: UtilityImportance | None = None
    ) -> None:
        faults = list(self.faults(spec, space))
        if spec.cti is not None and (importance is None or importance.spec != spec.cti):
            faults.append(
                Fault(
                    "importance", "missing" if importance is None else "other settings", "must be fitted with spec.cti"
                )
            )
        if faults:
            raise ConfigError(faults)
        self.mechanism = find_mechanism(spec.noise)
        self.spec = spec
        self.space = space
        self.is_unsafe = secret.is_unsafe
        self._secret = secret
        self._importance = importance if spec.cti is not None else None
        self._noise_keys = NoiseKeys(secret)
        self._content_key = secret.content_key()
        self._identity_key = secret.derive("identity")
        self._readings = Readings(space.spellings, window=spec.noise_window)
        self._settings_keys: dict[int | None, bytes] = {}

    # ------------------------------------------------------------ what it says of itself

    @classmethod
    @abstractmethod
    def faults(cls, spec: PrivacySpec, space: Space) -> Iterator[Fault]:
        """What is missing in `space` for `spec`."""

    @property
    def name(self) -> str:
        """The mechanism as ledgers and reports name it, with its noise where that is not d_chi noise."""
        name = f"{self.spec.mechanism}{'+cti' if self.spec.cti else ''}{'+clip' if self.spec.clipped else ''}"
        return name if self.spec.noise == DChi.name else f"{name}, noise {self.spec.noise}"

    @property
    def unit(self) -> str:
        """What etas are counted in; only budgets of one unit are added."""
        return self._noise_guarantee().unit

    @property
    def guarantee(self) -> Guarantee:
        """What a release promises; an explicit nothing where nothing is promised."""
        if self.is_unsafe:
            return Guarantee.nothing(UNSAFE)
        if self.spec.cti is not None:
            return Guarantee.nothing(NO_GUARANTEE)
        guarantee = self._noise_guarantee()
        return guarantee.model_copy(update={"caveats": guarantee.caveats + self._caveats()})

    def largest_distance(self) -> float | None:
        """No two rows of the table are farther apart; `None` where cutlayer itself promises nothing.

        One pass over the table.
        """
        # times a plug-in's budget it would read as a worst case that somebody has verified
        if self.measured is None or not self.guarantee.verified:
            return None
        return largest_distance(self.measured, norm_of(self.mechanism))

    @property
    def measured(self) -> Tensor | None:
        """Rows `[n, width]` between which distances are measured."""
        return self.space.table

    @property
    @abstractmethod
    def deviations(self) -> tuple[Deviation, ...]:
        """Where this differs from the paper, or fills in what it leaves open."""

    @property
    def _common_deviations(self) -> tuple[Deviation, ...]:
        """Those of everything that adds noise."""
        noise: tuple[Deviation, ...] = ()
        if isinstance(self.mechanism, PluggedIn):
            noise = (
                Deviation(
                    what="noise, eq. (3)",
                    value_in_paper="density ∝ exp(-eta ‖n‖)",
                    ours=f"{self.mechanism.name}, of {self.mechanism.origin}",
                    why="As asked for. What it promises is that package's claim.",
                ),
            )
        return noise + SAMPLER_DEVIATIONS + (self._importance.deviations if self._importance else ())

    @abstractmethod
    def _caveats(self) -> tuple[str, ...]:
        """What the noise's guarantee does not cover here."""

    def _noise_guarantee(self) -> Guarantee:
        at_tokens = self.spec.place is Place.TOKENS
        space = f"table {self.space.fingerprint}" if at_tokens else f"hidden rows of {self.space.boundary}"
        return self.mechanism.guarantee(eta=self.spec.eta, space=space, per="token" if at_tokens else "row")

    # ------------------------------------------------------------ the two places

    def clear(self, tokens: Tokens) -> Mapping[str, int]:
        """By kind, how many words the rule of the mechanism leaves as they are."""
        return {}

    def shape(self, tokens: Tokens) -> Tokens:
        """As many tokens as these leave as, whatever they are: their lengths are known before they leave."""
        return tokens

    def replaceable(self, ids: Tensor) -> Replaceable:
        """What its search would be asked for, before any noise: by it the share that an eta replaces is measured.

        Args:
            ids: `[n]` int64, token ids, or names of words.

        Raises:
            ConfigError: It replaces no tokens.
        """
        raise ConfigError(
            [Fault("mechanism", self.spec.mechanism, "replaces no tokens")],
            remedy="Give a mechanism that does: text-to-text or words.",
        )

    @abstractmethod
    def tokens(
        self,
        tokens: Tokens,
        *,
        labels: Tensor | None,
        look: int | None = None,
        excerpts: Excerpts | None = None,
    ) -> Release:
        """Acts at the tokens, before the blocks.

        Args:
            tokens: `n` texts as token ids. Special tokens are left out: they are public, stand where
                the tokenizer always puts them, and are neither noised nor candidates.
            labels: `[n]` int64, or `None` where they are unknown. Read by CTI alone.
            look: The epoch, where each is a look of its own (a bottom trained on resampled releases). Else `None`: a
                token's one draw is used wherever it stands behind the same text.
            excerpts: What the tokens are cut out of, where they are no texts from their beginning.

        Returns:
            The release. At place `activations` its payload is private still, and `pending` says so.

        Raises:
            DataError: Token ids that the table does not have.
        """

    def activations(self, release: Release, rows: Rows) -> Release:
        """Acts at the bottom's output.

        Args:
            release: What `tokens` returned for these texts.
            rows: The bottom's output for `release.payload`, special tokens' rows included.

        Returns:
            The release of the rows: noised here at place `activations`, else unchanged and under
            the same draws.
        """
        return release.carried_as(rows, f"rows of {self.space.boundary}".encode())

    # ------------------------------------------------------------ what every mechanism needs

    def _etas(self, tokens: Tokens, texts: TextMajor, labels: Tensor | None) -> Tensor:
        """`[total]` float64 in the order of `texts`."""
        if self._importance is None:
            return torch.full((len(texts.values),), self.spec.eta, dtype=torch.float64)
        return texts.align(self._importance.eta(tokens, labels, eta0=self.spec.eta))

    def named(
        self,
        tokens: Tokens,
        *,
        labels: Tensor | None,
        look: int | None = None,
        excerpts: Excerpts | None = None,
    ) -> Release:
        """See `tokens`: how a release would be named and what it would be charged, before any noise is drawn.

        Its payload is private still, and `pending` says so.
        """
        return self._name(tokens, labels, look, excerpts).release

    def _name(self, tokens: Tokens, labels: Tensor | None, look: int | None, excerpts: Excerpts | None) -> Named:
        """Names and charges of the untouched `tokens`.

        A token's draw is named after everything that its noise depends on: mechanism, place, space and candidates,
        the token, its eta, what stands before it, the epoch, what the samplers make of a key, and of a plug-in its
        version, another of which may draw otherwise. It is charged to the text up to the token, as it reads, if that
        is the whole text or long enough to be known again.
        """
        texts = TextMajor.of(tokens)
        etas = self._etas(tokens, texts, labels)
        levels, settings = etas.tolist(), self._settings(look)
        sources, parts = sources_of(texts, excerpts, settings)
        drawn = bytearray()
        identities, listed = [], []
        end = 0
        for item, (own, shape) in enumerate(zip(parts, texts.lengths.numpy(), strict=True)):
            begun, read = end, []
            for text, start, stop in own:
                read.append(self._read(sources[text], levels, settings, part=(end, start, stop), paired=len(shape) > 1))
                end += stop - start
            key = hashlib.blake2b(shape.tobytes(), key=settings, digest_size=IDENTITY_BYTES)
            for part in read:
                key.update(part.drawn)
                drawn += part.drawn
            identities.append(key.digest())
            if excerpts is None:
                read = [self._whole(shape, texts.values[begun:end], read, identities[-1])]
            listed += [(item, each) for each in read]
        release = Release(
            payload=tokens,
            identities=tuple(identities),
            of=torch.tensor([item for item, _ in listed], dtype=torch.int64),
            contents=tuple(each.content for _, each in listed),
            draws=tuple(each.draw for _, each in listed),
            etas=torch.tensor([each.eta for _, each in listed], dtype=torch.float64),
            tokens=torch.tensor([each.tokens for _, each in listed], dtype=torch.int64),
            charges=Charges.of(each.charges for _, each in listed),
            mechanism=self.name,
            unit=self.unit,
            pending=Place.TOKENS,
        )
        return Named(release, texts, etas, np.frombuffer(drawn, dtype=np.uint8).reshape(-1, NAME_BYTES))

    def _settings(self, look: int | None) -> bytes:
        """A key that stands for all that every draw of a release depends on."""
        if look not in self._settings_keys:
            self._settings_keys[look] = self._settings_key(look)
        return self._settings_keys[look]

    def _settings_key(self, look: int | None) -> bytes:
        settings = hashlib.blake2b(key=self._identity_key, digest_size=32)
        for part in (
            self.name.encode(),
            self.unit.encode(),
            stream_fingerprint(),
            b"" if self.space.candidates is None else self.space.candidates.numpy().tobytes(),
            b"" if look is None else struct.pack("<q", look),
            b"" if self.spec.noise_window is None else struct.pack("<q", self.spec.noise_window),
            *([self.mechanism.origin.encode()] if isinstance(self.mechanism, PluggedIn) else ()),
            *(() if self.space.dictionary is None else [self.space.dictionary.vocabulary.fingerprint.encode()]),
        ):
            settings.update(struct.pack("<q", len(part)) + part)
        return settings.digest()

    def _read(
        self,
        source: Source,
        levels: Sequence[float],
        settings: bytes,
        *,
        part: tuple[int, int, int],
        paired: bool,
    ) -> NamedText:
        """Names of a part of a text.

        Args:
            source: The text.
            levels: Etas of all tokens of the release.
            settings: What `_settings` returned.
            part: Where the part's etas begin, and where it starts and stops in the text.
            paired: Whether it is one of two texts, which have an account together.
        """
        first, start, stop = part
        ids, look = source.ids, b""
        charges, drawn, largest = bytearray(), bytearray(), math.inf if math.isinf(self.spec.eta) else 0.0
        account = self._account(b"")
        if start == stop or (start, stop) == (0, len(ids)):
            places = contexts(ids[start:stop], Reader(self.space.spellings, self.spec.noise_window))
            reading = None
        else:
            reading = self._readings.of(source.name, ids, beginning=source.name_of(start))
            places = reading.contexts(ids, start, stop)
        for place, context in enumerate(places, start=start):
            last = place == len(ids) - 1
            account = self._account(context.read) if last or place >= RECOGNISED - 1 else account
            eta = levels[first + place - start]
            key = context.before + struct.pack("<qd", self._drawn_as(ids[place]), eta)
            draw = hashlib.blake2b(key, key=settings, digest_size=NAME_BYTES).digest()
            drawn += draw
            largest, look = max(largest, eta), self._look(look, draw)
            if place >= RECOGNISED - 1 or (last and not paired):
                charges += record(account, look, largest)
        if reading is not None:
            account = self._account(reading.read)
        return NamedText(account, source.draw, stop - start, charges, drawn, largest)

    def _whole(self, shape: Int64, ids: Tensor, segments: Sequence[NamedText], identity: bytes) -> NamedText:
        """A row that leaves whole: a text, or a pair of texts."""
        eta = max(segment.eta for segment in segments)
        charges, content = segments[0].charges, segments[0].content
        if len(segments) > 1:
            content = self._account(b"".join(segment.content for segment in segments))
            charges += segments[1].charges
            charges += record(content, identity, eta) if len(ids) else b""
        if len(ids):
            # as ledgers named texts before their tokens had accounts, so that what was spent then still counts
            former = hashlib.blake2b(shape.tobytes() + ids.numpy().tobytes(), key=self._content_key, digest_size=16)
            charges += record(former.digest(), identity, eta)
        else:
            # special tokens' rows above a block show that nothing stands between them
            shown = math.isinf(self.spec.eta) or self.spec.place is Place.ACTIVATIONS
            eta = self.spec.eta if shown else 0.0
            charges += record(content, identity, eta)
        return NamedText(content, identity, len(ids), charges, bytearray(), eta)

    def _drawn_as(self, token: int) -> int:
        """The token whose draws are this one's, too."""
        return token

    def _look(self, before: bytes, draw: bytes) -> bytes:
        """What a text up to a token is charged for: the token's draw.

        Args:
            before: The same of the token before it.
            draw: The token's draw.
        """
        return draw

    def _account(self, read: bytes) -> bytes:
        return hashlib.blake2b(read, key=self._content_key, digest_size=NAME_BYTES).digest()

    def _draws(self, release: Release, digests: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Names of draws that cover these items' rows as they are, and no other version of them.

        The same noise on two versions of an item's rows (another batch, parameters trained in
        between) would give their difference away in clear. So other rows get other noise, and the
        ledger charges it as what it is: another look.
        """
        return tuple(
            hashlib.blake2b(identity + digest, key=self._identity_key, digest_size=IDENTITY_BYTES).digest()
            for identity, digest in zip(release.identities, digests, strict=True)
        )

    def _noise(self, *, width: int, etas: Tensor, names: NDArray[np.uint8]) -> Iterator[tuple[slice, Float64]]:
        """Draws noise block by block, from the customer's secret.

        Args:
            width: Coordinates per row.
            etas: `[total]` float64.
            names: `[total, NAME_BYTES]` uint8: of each row's draw.

        Yields:
            A slice of all rows and its noise `[n, width]`.
        """
        levels = etas.numpy()
        most = max(QUERY_BLOCK, BLOCK_ELEMENTS // width // QUERY_BLOCK * QUERY_BLOCK)
        for start in range(0, len(levels), most):
            part = slice(start, min(start + most, len(levels)))
            streams = self._noise_keys.streams(names[part])
            yield part, self.mechanism.noise(etas=levels[part], width=width, rng=streams)


PRIVATIZERS: Registry[type[Privatizer]] = Registry("privacy mechanism", package="cutlayer.privacy.privatizers")
"""By `PrivacySpec.mechanism`. Closed: each is tested against its promise. What is open is `PrivacySpec.noise`."""


def build_privatizer(
    spec: PrivacySpec,
    *,
    secret: CustomerSecret,
    table: Tensor | None = None,
    candidates: Tensor | None = None,
    table_fingerprint: str = "",
    boundary: str = "",
    spellings: Spellings | Dictionary | None = None,
    importance: UtilityImportance | None = None,
) -> Privatizer:
    """The privatizer that `spec` describes.

    Args:
        spec: The settings.
        secret: The customer's secret, from which all noise is derived.
        table: `[vocabulary, width]`: the token-embedding table.
        candidates: `[vocabulary]` bool: tokens that text-to-text may return; a public list.
        table_fingerprint: Names the table; part of every identity and unit.
        boundary: Names what the bottom's output is: model fingerprint and cut. Needed at place
            `activations`, where it keeps one draw from covering the outputs of two cuts.
        spellings: How tokens read. Without them each token is taken for a word: texts that differ in blanks or case
            then have accounts of their own. Where words are drawn, what they are drawn with.
        importance: Fitted with `spec.cti`, if that is set.

    Raises:
        ConfigError: There is no such noise, or something the mechanism needs is missing. Lists everything.
    """
    table = None if table is None else table.detach().cpu()
    dictionary = spellings if isinstance(spellings, Dictionary) else None
    read = spellings.lexicon if isinstance(spellings, Dictionary) else spellings or Spellings()
    space = Space(table, candidates, table_fingerprint, boundary, read, dictionary)
    return PRIVATIZERS[spec.mechanism](spec, secret=secret, space=space, importance=importance)


SAMPLER_DEVIATIONS: Final = (
    Deviation(
        what="noise generator",
        value_in_paper="Feyisetan et al. 2020, §2.6; generator and number format not stated",
        ours="AES-128 in counter mode, keyed from a customer secret, a stream per token; drawn in fp64; where "
        "noise is added, sums are in fp64, too, and rounded to multiples of 2^-10",
        why="Predictable generators and sums in fp32 let the noise be subtracted.",
    ),
    Deviation(
        what="special tokens",
        value_in_paper="not stated",
        ours="not noised and not sent, or sent as they are; their rows above a block are noised with the others",
        why="They are the same in every text and carry nothing, until a block has mixed the text into them.",
    ),
    Deviation(
        what="repeated texts",
        value_in_paper="not stated",
        ours="one draw per token, text before it and settings, used wherever they occur",
        why="Every fresh draw is another look: four of them raise recovery from 35 % to 94 % at eta 50.",
    ),
)
