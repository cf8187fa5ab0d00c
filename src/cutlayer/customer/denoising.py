"""The last stage of an embedding's road: what the vendor's model made of noise is denoised here, where noise is known.

Ref: Split-and-Denoise, §3.4, arXiv:2310.09130.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import safetensors
import torch
from safetensors.torch import load
from torch import Tensor

from cutlayer.core import ConfigError, Deviation, Fault, Payload, Place, Rows, StorageError, Tokens, VendorError
from cutlayer.core.embedding import EmbeddingSpec
from cutlayer.customer.embedding import AUTO
from cutlayer.customer.gate import Gate
from cutlayer.customer.handout import MOST_BYTES, Offer, accepted_bytes, fetch_file
from cutlayer.customer.home import Home
from cutlayer.customer.progress import Progress
from cutlayer.customer.settings import RunSpec
from cutlayer.models.batches import padded_batches
from cutlayer.models.denoiser import Denoiser, build_denoiser
from cutlayer.wire import Form, routes
from cutlayer.wire.denoisers import DenoiserGroup, DenoiserInfo, DenoiserList, releases_told

_HEADER = 2**16
"""Most bytes of a denoiser's file beside its numbers."""
_TRIED_ON = 8
"""Tokens, as if a text had them, on which a denoiser is tried."""
_POSITIONS = 2**12
"""Tokens of texts that are denoised together, padding included: the paper's denoiser takes some 90 kB for each."""
_WIDEST = 8
"""Times the width of embeddings that a denoiser may be inside; the paper's are 2.8 times as wide at most."""


@dataclass(frozen=True)
class Denoising:
    """A denoiser, and what it needs of the customer's own side.

    Attributes:
        denoiser: With its weights, in evaluation mode, where it is to be computed.
        table: `[vocabulary, width]` on the CPU: rows of tokens as they were.
        opening: Special tokens before each text.
        without_answer: Whether the vendor's answer is masked: the denoiser is a control, which was trained so.
    """

    denoiser: Denoiser
    table: Tensor
    opening: int
    without_answer: bool = False

    @property
    def deviations(self) -> tuple[Deviation, ...]:
        """Where the denoiser differs from the paper's."""
        return self.denoiser.deviations

    @torch.no_grad()
    def __call__(self, noisy: Tensor, tokens: Tokens, left: Payload) -> Tensor:
        """Denoised embeddings `[n, width]`.

        Args:
            noisy: `[n, width]`: the vendor's answer to what left.
            tokens: `n` texts as they were.
            left: What left of them.

        Raises:
            VendorError: What it makes of them is not finite.
        """
        parts = padded_batches(tokens.segments[0].lengths, _POSITIONS)
        found = torch.cat([self._some(noisy[part], tokens.select(part), left.select(part)) for part in parts])
        if not bool(found.isfinite().all()):
            raise _other("of these texts' answers it makes numbers that are not finite")
        return found

    def _some(self, noisy: Tensor, tokens: Tokens, left: Payload) -> Tensor:
        (ids,) = tokens.segments
        clean = ids.with_values(self.table[ids.values]).padded(0.0)
        if isinstance(left, Rows):
            rows = left.packed.padded(0.0)[:, self.opening :][:, : clean.shape[1]].float()
        else:
            (released,) = left.segments
            rows = released.with_values(self.table[released.values]).padded(0.0)
        if self.without_answer:
            noisy = self.denoiser.unanswered(noisy)
        device = self.denoiser.center.device
        given = (each.to(device) for each in (noisy, rows, rows - clean, ids.mask().bool()))
        found: Tensor = self.denoiser(*given)
        return found.cpu()


def steady_thread() -> ThreadPoolExecutor:
    """A thread, with compute threads of its own, that takes denormal numbers for zero.

    With them a product of matrices takes a hundred times as long, and a vendor could make weights by which some words
    become such numbers. Compute threads do as the thread does that starts them, and not as it is told later.
    """
    return ThreadPoolExecutor(1, "denoise", initializer=torch.set_flush_denormal, initargs=(True,))


def find_denoiser(
    gate: Gate, offer: Offer, table: str, spec: RunSpec, asked: str
) -> tuple[DenoiserInfo, DenoiserGroup]:
    """The vendor's denoiser for these releases.

    Args:
        gate: The door.
        offer: The vendor's model.
        table: Names the table of tokens that it handed out.
        spec: The settings.
        asked: Which, by its id; `AUTO` for the one whose embeddings came nearest on public text. A control, which has
            no use for the vendor's answer, is found by its id alone.

    Raises:
        ConfigError: There is none for this eta, or none for these settings.
    """
    if spec.privacy.place is not Place.TOKENS:
        why = "has no denoiser: special tokens' rows have noise, too, and none was trained on that"
        raise ConfigError(
            [Fault("place", spec.privacy.place.value, why)],
            remedy="Leave it out, or give denoiser none (--denoiser none) for embeddings as they come.",
        )
    if not table:
        raise ConfigError(
            [Fault("mechanism", spec.privacy.mechanism, "has no denoiser: how far each token was moved is not known")],
            remedy="Take text-to-text or vector, or give denoiser none (--denoiser none) for embeddings as they come.",
        )
    listed = gate.send(routes.DENOISERS, {"model": offer.model.name}).expect(DenoiserList).denoisers
    listed = tuple(each for each in listed if each.denoiser == asked or (asked == AUTO and not each.without_answer))
    privacy, wanted = spec.privacy, _wanted(offer, table, spec)
    fitting = [each for each in listed if _fits(each, wanted)]
    serving = [
        (group.denoised.cosine, each, group)
        for each in fitting
        for group in each.groups
        if group.lowest <= privacy.eta <= group.highest
    ]
    if serving:
        _, info, group = max(serving, key=lambda each: each[0])
        return info, group
    remedy = "Give denoiser none (--denoiser none) for embeddings as they come, or ask the vendor for a denoiser."
    if fitting:
        ranges = ", ".join(f"{group.lowest:g} to {group.highest:g}" for each in fitting for group in each.groups)
        allowed = f"is covered by no denoiser; there are some for {ranges}"
        raise ConfigError([Fault("eta", privacy.eta, allowed)], remedy=remedy)
    others = ", ".join(sorted({each.releases + _differing(each, wanted) for each in listed}))
    rows = spec.wire_type if spec.form is Form.ROWS else None
    releases = releases_told(privacy.mechanism, clip=privacy.clipped, rows=rows)
    if asked != AUTO:
        why = f"is for {others}, and not for {releases} of this model" if listed else "is none of the vendor's"
        raise ConfigError([Fault("denoiser", asked, why)], remedy=remedy)
    raise ConfigError(
        f"The vendor has no denoiser for {releases} of {offer.model.name}"
        + (f"; there are some for {others}." if others else ", and no other for this model."),
        remedy=remedy,
    )


def why_not(group: DenoiserGroup) -> str | None:
    """Why a denoiser is not worth using, by what the vendor measured of it on public text; `None` where it is.

    It should come nearer to embeddings of the text as it is, by squared differences and by cosine, than the answer as
    it comes, and than the mean embedding, which is the same for every text.
    """
    better = group.denoised
    others = {"the answers as they come": group.noisy, "one mean embedding for all": group.mean_embedding}
    beaten_by = {
        name: each for name, each in others.items() if not (better.cosine > each.cosine and better.mse < each.mse)
    }
    if not beaten_by:
        return None
    numbers = ", ".join(f"{name}, cosine {each.cosine:.3f} and MSE {each.mse:.3g}" for name, each in beaten_by.items())
    return (
        f"The vendor's denoiser for eta {group.lowest:g} to {group.highest:g} is no better than "
        f"{' or '.join(beaten_by)}, by the vendor's own measurement on {group.n} public texts: denoised, cosine to "
        f"clean embeddings {better.cosine:.3f} and MSE {better.mse:.3g}; {numbers}."
    )


def _differing(info: DenoiserInfo, wanted: Mapping[str, object]) -> str:
    """In which ways that its name does not tell a denoiser is for other releases; nothing where in none."""
    found = []
    if info.fingerprint != wanted["fingerprint"]:
        found.append("of other weights of the model")
    if info.table != wanted["table"]:
        found.append("of another token table")
    if info.noise != wanted["noise"]:
        found.append(f"noise {info.noise}, not {wanted['noise']}")
    if isinstance(own := wanted["embedding"], EmbeddingSpec):
        each = [(name, getattr(info.embedding, name), getattr(own, name)) for name in EmbeddingSpec.model_fields]
        found += [f"{name} {theirs}, not {ours}" for name, theirs, ours in each if theirs != ours]
    return f" ({'; '.join(found)})" if found else ""


def _wanted(offer: Offer, table: str, spec: RunSpec) -> dict[str, object]:
    privacy, form = spec.privacy, spec.form
    wanted: dict[str, object] = {
        "fingerprint": offer.model.fingerprint,
        "table": table,
        "embedding": offer.model.require_embedding(),
        "mechanism": privacy.mechanism,
        "noise": privacy.noise,
        "clip": privacy.clipped,
        "form": form,
    }
    return wanted | ({"wire_type": spec.wire_type} if form is Form.ROWS else {})


def _fits(info: DenoiserInfo, wanted: dict[str, object]) -> bool:
    return all(getattr(info, name) == value for name, value in wanted.items())


def fetch_denoiser(
    gate: Gate, home: Home, table: Tensor, info: DenoiserInfo, group: DenoiserGroup, progress: Progress, *, model: str
) -> Denoiser:
    """A denoiser, from the customer's folder or from the vendor, checked and tried before a text leaves.

    Args:
        gate: The door.
        home: The customer's folder.
        table: `[vocabulary, width]`: rows of tokens as they were.
        info: What the vendor says of it.
        group: For which etas.
        progress: Where to show the fetching.
        model: The vendor's model.

    Raises:
        ConfigError: It is larger than the customer accepts.
        StorageError: Its file does not hold what is said of it.
        VendorError: It is no denoiser of the shape that is told, or of another width than embeddings and tokens; or
            what it makes of public rows is not finite.
    """
    widths = info.shape.width, info.embedding.width, table.shape[1]
    if len(set(widths)) > 1:
        raise _other("it has width {}, the model's embeddings {} and rows of its tokens {}".format(*widths))
    if info.shape.widest > _WIDEST * info.shape.width:
        raise _other(f"inside it is {info.shape.widest} wide, more than {_WIDEST} times its embeddings")
    with torch.device("meta"):
        shapes = {name: tuple(value.shape) for name, value in build_denoiser(info.shape).state_dict().items()}
    numbers = 4 * sum(math.prod(shape) for shape in shapes.values())
    if not numbers <= group.file.size <= numbers + _HEADER:
        raise _other(f"its file has {group.file.size} bytes, and its shape {numbers}")
    if group.file.size > (accepted := accepted_bytes()):
        raise ConfigError(
            f"The denoiser has {group.file.size} bytes; at most {accepted} are fetched.",
            remedy=f"If this machine has the memory for it, set {MOST_BYTES}={group.file.size}; or give denoiser none "
            "(--denoiser none).",
        )
    folder = home.denoisers / info.denoiser
    where: dict[str, str | int] = {"model": model, "denoiser": info.denoiser}
    if fetch_file(gate, folder, group.file, routes.DENOISER_FILE, where):
        progress.update("fetch denoiser", 1, 1)
    path = folder / group.file.name
    try:
        tensors = load(path.read_bytes())
    except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:  # KeyError: of types that torch lacks
        raise StorageError(
            f"The denoiser in {path} is as the vendor sent it, and cannot be read.",
            remedy="Ask the vendor. Give denoiser none (--denoiser none) for embeddings as they come.",
        ) from error
    if {name: tuple(value.shape) for name, value in tensors.items()} != shapes:
        raise _other("its tensors have other names or shapes")
    if not all(value.dtype is torch.float32 and bool(value.isfinite().all()) for value in tensors.values()):
        raise _other("its numbers are not all finite, or not fp32")
    if not all(bool((tensors[name] > 0).all()) for name in Denoiser.divisors):
        raise _other("a size that it divides by is not positive")
    denoiser = build_denoiser(info.shape)
    denoiser.load_state_dict(tensors)
    denoiser.requires_grad_(False)
    denoiser.eval()
    rows = table[:_TRIED_ON][None]
    tried: Tensor = denoiser(
        denoiser.unanswered(rows[:, 0]), rows, torch.zeros_like(rows), torch.ones(rows.shape[:2], dtype=torch.bool)
    )
    if not bool(tried.isfinite().all()):
        raise _other("of rows without noise it makes numbers that are not finite")
    return denoiser


def _other(why: str) -> VendorError:
    return VendorError(
        f"The vendor's denoiser is not what it says: {why}.",
        status=200,
        remedy="Ask the vendor. Give denoiser none (--denoiser none) for embeddings as they come.",
    )
