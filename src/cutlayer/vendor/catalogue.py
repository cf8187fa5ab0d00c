"""The models on offer: what is known of them without loading, their tops, and what customers receive."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cutlayer.core import ConfigError, Cut, CutlayerWarning, ModelError, StorageError, UnsupportedArchitectureError
from cutlayer.core.embedding import EmbeddingSpec
from cutlayer.core.files import whole_folder, write_whole
from cutlayer.models import (
    MANIFEST,
    Embeddings,
    Head,
    Parts,
    Seq2SeqParts,
    Seq2SeqTop,
    Tail,
    Template,
    Top,
    cut_up,
    embedding_spec,
    family_of,
    fingerprint,
    load_model,
    load_tokenizer,
    max_length,
    quantized,
    read_manifest,
    share_base,
    target_template,
    write_archive,
)
from cutlayer.models.cutting import block_list, embedding_table
from cutlayer.models.load import tokenizer_fingerprint
from cutlayer.serving.refusal import Refusal, log_without_values
from cutlayer.vendor.problems import not_found, unacceptable
from cutlayer.vendor.settings import VendorSettings
from cutlayer.wire import Form
from cutlayer.wire.messages import ArchiveFile, ArchiveManifest, Digest, ModelInfo, WarmedFor

WARMED = "warm-up.json"
"""In a model's folder: what it was warmed up for, if it was; see `vendor.warm_up`."""


class ModelCard(BaseModel):
    """A model as the vendor knows it without loading it.

    Attributes:
        info: What customers are told.
        source: Where it is loaded from.
        table_width: Width of a row of the token-embedding table, the boundary of a cut at depth 0.
        template: Where special tokens stand.
        target_template: The same of an encoder-decoder's target texts.
        tokenizer: The tokenizer's fingerprint: ids of another one would name other rows of the same table.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    info: ModelInfo
    source: str
    table_width: int
    template: Template
    target_template: Template | None = None
    tokenizer: Digest

    @classmethod
    def draw_up(cls, name: str, source: str, settings: VendorSettings) -> ModelCard:
        """Loads a model once and writes down what matters.

        Raises:
            ModelError: It cannot be loaded, or cannot be cut.
            ConfigError: `max_bottom` and `max_tail` leave no block to the vendor.
            MissingExtraError: `quantize` needs a package that is not installed.
        """
        model = load_model(source, head=None)
        blocks, *target_blocks = (len(block_list(model, stack)) for stack in family_of(model.config).stacks)
        upper = min([blocks, *target_blocks])
        has_tail = Head.of(model) is Head.LANGUAGE
        bottom, tail = _depths(upper, settings.max_bottom, settings.max_tail)
        if bottom + tail * has_tail >= upper:
            raise ConfigError(
                f"max_bottom = {bottom}{f' and max_tail = {tail}' if has_tail else ''}, but {source} has {upper} "
                f"blocks{' in a stack' if target_blocks else ''}, and the vendor must keep at least one.",
                remedy=f"Choose at most {upper - 1}{' together' if has_tail else ''} with --max-bottom"
                f"{' and --max-tail' if has_tail else ''}; {upper // 2} is usual for a bottom.",
            )
        table = embedding_table(model)
        tokenizer = load_tokenizer(source)
        template = Template.from_tokenizer(tokenizer, max_length=max_length(model.config))
        info = ModelInfo(
            name=name,
            family=model.config.model_type,
            fingerprint=fingerprint(quantized(model, settings.quantize)),
            blocks=blocks,
            target_blocks=target_blocks[0] if target_blocks else None,
            width=model.config.hidden_size,
            vocab_size=len(table),
            max_length=template.max_content(1) + template.special_count(1),
            max_bottom=bottom,
            max_tail=tail if has_tail else None,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            quantization=settings.quantize,
            warmed_for=_warmed_for(source),
            embedding=_embedding(name, source, model),
        )
        return cls(
            info=info,
            source=source,
            table_width=table.shape[1],
            template=template,
            target_template=target_template(template, model.config),
            tokenizer=tokenizer_fingerprint(tokenizer),
        )

    def describes(self, settings: VendorSettings) -> bool:
        """Whether the card hands out, and computes with, what these settings say."""
        upper = min(self.info.blocks, self.info.target_blocks or self.info.blocks)
        bottom, tail = _depths(upper, settings.max_bottom, settings.max_tail)
        depths = (self.info.max_bottom, self.info.max_tail) in ((bottom, tail), (bottom, None))
        return depths and self.info.quantization == settings.quantize

    @property
    def targets(self) -> Template:
        """Where special tokens stand in target texts.

        Raises:
            ModelError: The model is no encoder-decoder.
        """
        if self.target_template is None:
            raise ModelError(f"{self.info.name} takes no target texts.", remedy="Use an encoder-decoder.")
        return self.target_template

    @property
    def templates(self) -> tuple[Template, ...]:
        """Where special tokens stand in the texts; of an encoder-decoder in source texts and in target texts."""
        return (self.template,) if self.target_template is None else (self.template, self.target_template)

    def row_width(self, cut: Cut) -> int:
        """Elements of one boundary row at a cut."""
        return self.table_width if cut.bottom == 0 else self.info.width

    def check(self, cut: Cut, form: Form) -> None:
        """Refuses cuts that this vendor does not offer.

        Raises:
            Refusal: The cut is too deep, or does not go with the form of its releases.
        """
        if cut.target and self.info.target_blocks is None:
            raise unacceptable(
                "cut-not-offered",
                f"cut.target = {cut.target}: {self.info.name} is no encoder-decoder.",
                remedy="Leave it out.",
            )
        if self.info.target_blocks is not None and (cut.target if cut.tail is None else cut.is_text):
            raise unacceptable(
                "cut-not-offered",
                f"Cut {cut.slug}: both ends of the decoder of {self.info.name} are the customer's, whose target texts "
                "are labels, or, of a classifier, both are the vendor's.",
                remedy="Use a bottom of 0 or more and a tail; or neither a tail nor decoder blocks below the cut.",
            )
        if cut.tail is not None and (self.info.max_tail is None or cut.tail > self.info.max_tail):
            none = self.info.max_tail is None
            raise unacceptable(
                "cut-not-offered",
                f"cut.tail = {cut.tail}: no tails of {self.info.name} are handed out."
                if none
                else f"cut.tail = {cut.tail}: tails of {self.info.name} are handed out up to depth "
                f"{self.info.max_tail}.",
                remedy="Leave the tail out." if none else "Choose a shallower tail.",
            )
        if max(cut.bottom or 0, cut.target) > self.info.max_bottom:
            deeper = "bottom" if (cut.bottom or 0) > self.info.max_bottom else "target"
            raise unacceptable(
                "cut-not-offered",
                f"cut.{deeper} = {getattr(cut, deeper)}: bottoms of {self.info.name} are handed out "
                f"down to depth {self.info.max_bottom}.",
                remedy="Choose a shallower cut.",
            )
        if cut.is_text != (form is Form.IDS):
            raise unacceptable(
                "form-does-not-fit",
                f"form = {form} at cut {cut.slug}: token ids travel at the text cut, rows at all others.",
                remedy="Set cut.bottom to null for ids, or form to rows.",
            )


class Catalogue:
    """The models of a vendor.

    What loads or cuts runs in the compute thread.

    Args:
        settings: The vendor's settings.
        device: Where tops are computed.

    Raises:
        StorageError: A model has no card, or one of another version.
    """

    def __init__(self, settings: VendorSettings, device: torch.device) -> None:
        self._settings = settings
        self.device = device
        self.cards: Mapping[str, ModelCard] = {name: read_card(settings, name) for name in sorted(settings.models)}
        self._models: dict[tuple[str, Head], PreTrainedModel] = {}
        self._cuts: dict[tuple[str, str], Parts | Seq2SeqParts] = {}
        self._embeddings: dict[tuple[str, str], Embeddings] = {}

    def card(self, name: str) -> ModelCard:
        """A model's card.

        Raises:
            Refusal: There is no such model.
        """
        if name not in self.cards:
            raise not_found("model", name)
        return self.cards[name]

    def top(self, name: str, cut: Cut) -> Top | Seq2SeqTop:
        """The vendor's part of a model; shared, so callers adapt a twin of it."""
        return self._cut_up(name, cut).top

    def embeddings(self, name: str, cut: Cut) -> Embeddings:
        """What makes embeddings of a model's texts, cut where nothing but the table is the customer's."""
        key = name, cut.slug
        if key not in self._embeddings:
            top = cut_up(self._base(name), cut, head=False).top
            self._embeddings[key] = Embeddings(top, self.card(name).info.require_embedding())
        return self._embeddings[key]

    def table(self, name: str) -> Tensor:
        """A model's token-embedding table, `[vocabulary, width]`, as customers have it at cut 0."""
        return embedding_table(self._base(name))

    def tail(self, name: str, cut: Cut) -> Tail:
        """A decoder's final norm and head, as customers are handed them.

        Raises:
            TypeError: The model is no decoder, or the cut leaves no tail.
        """
        tail = self._cut_up(name, cut).tail
        if not isinstance(tail, Tail):
            raise TypeError(f"cut {cut.slug} of {name} leaves no decoder's tail")
        return tail

    def check_trainable(self, name: str, cut: Cut) -> None:
        """Checks that the vendor's part may be trained itself, not only through an adapter.

        Raises:
            ModelError: The customer holds some of its weights too, and the two copies would drift apart.
        """
        self._cut_up(name, cut).check_trainable(customer=False, vendor=True)

    def _cut_up(self, name: str, cut: Cut) -> Parts | Seq2SeqParts:
        """The parts of a model, which share its weights."""
        key = name, cut.slug
        if key not in self._cuts:
            self._cuts[key] = cut_up(self._model(name, self._head(name, cut)), cut)
        return self._cuts[key]

    def archive(self, name: str, cut: Cut) -> tuple[ArchiveManifest, Path]:
        """What a customer receives for a cut, and the folder with its files; made at the first request."""
        folder = self._archive(name, cut)
        if not folder.is_dir():
            # Of a quantized model the customer's parts have the checkpoint's numbers, which are not kept in memory.
            plain = self.card(name).info.quantization is None
            head = self._head(name, cut)
            model = self._model(name, head) if plain else self._load(name, head)[0]
            tokenizer, offered = self.tokenizer(name), self.card(name).info.fingerprint
            with whole_folder(folder) as temporary:
                write_archive(model, tokenizer, cut, temporary, name=name, offered=offered)
        return self._manifest(name, cut, folder), folder

    def written_archive(self, name: str, cut: Cut) -> tuple[ArchiveManifest, Path] | None:
        """As `archive`, if it was made before; else `None`. May be called from any thread."""
        folder = self._archive(name, cut)
        return (self._manifest(name, cut, folder), folder) if folder.is_dir() else None

    def _archive(self, name: str, cut: Cut) -> Path:
        """The folder of a cut's archive, if this cut is offered."""
        card = self.card(name)
        card.check(cut, Form.IDS if cut.is_text else Form.ROWS)
        # A model or tokenizer that changed at its source has another fingerprint, and older archives are not its own.
        archive = f"{cut.slug}-{card.info.fingerprint[:16]}-{card.tokenizer[:16]}"
        return self._settings.model(name) / "archives" / archive

    def _manifest(self, name: str, cut: Cut, folder: Path) -> ArchiveManifest:
        card, written = self.card(name), read_manifest(folder)
        own = (folder / MANIFEST).read_bytes()
        files = [ArchiveFile(name=MANIFEST, sha256=hashlib.sha256(own).hexdigest(), size=len(own))]
        files += [ArchiveFile(name=file.name, sha256=file.sha256, size=file.size) for file in written.files]
        return ArchiveManifest(
            model=name,
            fingerprint=card.info.fingerprint,
            family=card.info.family,
            cut=cut,
            files=tuple(files),
            parameters_handed_out=written.parameters_handed_out,
            parameters_of_model=written.parameters_of_model,
        )

    def _head(self, name: str, cut: Cut) -> Head:
        """What the parts of a cut compute together: with a tail there is nothing for the vendor to classify.

        An encoder-decoder has one head, with which it writes target texts, or words of labels.
        """
        classifies = cut.tail is None and self.card(name).target_template is None
        return Head.CLASSIFICATION if classifies else Head.LANGUAGE

    def _base(self, name: str) -> PreTrainedModel:
        """The model with whichever head its kind has, for what is read below its head."""
        info = self.card(name).info
        return self._model(name, Head.CLASSIFICATION if info.max_tail is None else Head.LANGUAGE)

    def _model(self, name: str, head: Head) -> PreTrainedModel:
        """The model with a head; all its heads stand on one base."""
        if (name, head) not in self._models:
            _, model = self._load(name, head)
            torch.nn.Module.to(model, self.device)
            for (other, _), loaded in self._models.items():
                if other == name:
                    share_base(model, loaded)
            self._models[name, head] = model
        return self._models[name, head]

    def _load(self, name: str, head: Head) -> tuple[PreTrainedModel, PreTrainedModel]:
        """The checkpoint with a head, and what the vendor computes with: the same, or a twin in fewer bits."""
        card = self.card(name)
        with _source_untold(name):
            model = load_model(card.source, head=head)
        offered = quantized(model, card.info.quantization)
        if fingerprint(offered) != card.info.fingerprint:
            raise _unavailable(name, "has other weights than those that the vendor was set up with")
        return model, offered

    def tokenizer(self, name: str) -> PreTrainedTokenizerBase:
        """A model's tokenizer.

        Raises:
            Refusal: It is another one than the vendor was set up with.
        """
        card = self.card(name)
        with _source_untold(name):
            tokenizer = load_tokenizer(card.source)
        if tokenizer_fingerprint(tokenizer) != card.tokenizer:
            raise _unavailable(name, "has another tokenizer than that which the vendor was set up with")
        return tokenizer


def _embedding(name: str, source: str, model: PreTrainedModel) -> EmbeddingSpec | None:
    """How a model's embeddings are made; `None`, and a warning, where its folder asks for what is not supported."""
    try:
        return embedding_spec(source, model)
    except UnsupportedArchitectureError as error:
        warnings.warn(f"{name} is offered without embeddings. {error}", CutlayerWarning, stacklevel=2)
        return None


def _warmed_for(source: str) -> WarmedFor | None:
    """What a model's folder says that it was warmed up for.

    Raises:
        ModelError: It says something else.
    """
    path = Path(source) / WARMED
    if not path.is_file():
        return None
    try:
        privacy = json.loads(path.read_bytes())["warmed_for"]["privacy"]
        return WarmedFor(**WarmedFor.told(privacy))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{path} does not say what the model was warmed up for.",
            remedy="Make the model again with cutlayer vendor warm-up, or remove that file.",
        ) from error


def _depths(blocks: int, max_bottom: int | None, max_tail: int | None) -> tuple[int, int]:
    """The deepest bottom and tail on offer, with what is left out filled in."""
    bottom = blocks // 2 if max_bottom is None else max_bottom
    return bottom, min(2, blocks // 4) if max_tail is None else max_tail


@contextlib.contextmanager
def _source_untold(name: str) -> Iterator[None]:
    """Makes errors of loading a model into an answer that does not say where the vendor keeps it."""
    try:
        yield
    except ModelError as error:
        log_without_values(error)
        raise _unavailable(name, "cannot be loaded") from error


def _unavailable(name: str, why: str) -> Refusal:
    return Refusal(
        500,
        "model-unavailable",
        f"Model {name} {why}.",
        remedy="Ask the vendor to restore it, or to run: cutlayer vendor init --model NAME=SOURCE.",
    )


def write_card(settings: VendorSettings, card: ModelCard) -> None:
    """Keeps a card in the data folder."""
    write_whole(settings.model(card.info.name) / "card.json", card.model_dump_json(indent=2).encode())


def read_card(settings: VendorSettings, name: str) -> ModelCard:
    """The card that `write_card` kept.

    Raises:
        StorageError: There is none, or one of another version.
    """
    path = settings.model(name) / "card.json"
    try:
        return ModelCard.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise StorageError(f"{path} cannot be read.", remedy="Run cutlayer vendor init again.") from error


def cut_of(slug: str) -> Cut:
    """The cut that a slug names.

    Raises:
        Refusal: It names none.
    """
    match = re.fullmatch(r"(text|\d{1,4})(?:-d(\d{1,4}))?(?:-t(\d{1,4}))?", slug)
    cut = None
    if match is not None:
        bottom, target, tail = match.groups()
        cut = Cut(
            bottom=None if bottom == "text" else int(bottom),
            target=int(target or 0),
            tail=None if tail is None else int(tail),
        )
    if cut is None or cut.slug != slug:
        raise not_found("cut", slug if slug.isalnum() else "of that name")
    return cut


def pick_device(name: str) -> torch.device:
    """The device that a setting names."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
