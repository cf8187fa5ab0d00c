"""What an encoder-decoder writes for each label of a classifier, in ids of the vendor's model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cutlayer.core import ConfigError, Fault
from cutlayer.customer.closing import Closing
from cutlayer.models import Archive
from cutlayer.wire.label_ids import MAX_LABEL_IDS, MAX_LABEL_PIECES


def label_ids(names: Sequence[str], given: Sequence[str], archive: Archive) -> tuple[tuple[int, ...], ...] | None:
    """Of each label the ids that are written for it, in their order.

    One token a label is enough to tell them apart; where one has more, all are closed by the end mark, so that none is
    another's beginning.

    Args:
        names: The labels.
        given: What was said of some of them, each as `LABEL=WORDS`; others are written as they are called.
        archive: The model's tokenizer.

    Returns:
        `None` of a model that has a head for labels.

    Raises:
        ConfigError: It is said of what is no label, or of a model that has a head; or words cannot be written, or are
            those of another label. No message tells a label.
    """
    if archive.manifest.target_template is None:
        if given:
            raise _fault(given, f"must be left out: a {archive.family} model has a head for labels")
        return None
    words = {name: name for name in names} | dict(_said(names, given))
    tokenizer, end = archive.tokenizer, Closing.of(archive.tokenizer).end
    written = tokenizer([words[name] for name in names], add_special_tokens=False, split_special_tokens=True)
    ids: list[tuple[int, ...]] = [tuple(each) for each in written["input_ids"]]
    unknown = tokenizer.unk_token_id
    bad = [number for number, each in enumerate(ids, start=1) if not each or unknown in each]
    if bad:
        raise _fault(given, f"must give words for label {bad[0]} of {len(ids)}: the model's tokenizer cannot write it")
    if len(set(ids)) < len(ids):
        raise _fault(given, "must give each label words of its own: the model cannot tell two of them apart")
    if max(map(len, ids)) > 1:
        ids = [(*each, end) for each in ids]
    if max(map(len, ids)) > MAX_LABEL_PIECES or sum(map(len, ids)) > MAX_LABEL_IDS:
        raise _fault(
            given, f"must give shorter words: one label may have {MAX_LABEL_PIECES} tokens, all {MAX_LABEL_IDS}"
        )
    return tuple(ids)


def _said(names: Sequence[str], given: Sequence[str]) -> Iterator[tuple[str, str]]:
    for entry in given:
        # of labels that have the sign themselves, the longest that fits
        fits = [name for name in names if entry.startswith(f"{name}=")]
        if not fits:
            raise _fault(given, "must be LABEL=WORDS, of labels that the data has")
        label = max(fits, key=len)
        yield label, entry.removeprefix(f"{label}=")


def _fault(given: Sequence[str] | Mapping[str, str], why: str) -> ConfigError:
    return ConfigError([Fault("label_words", f"{len(given)} of them" if given else "left out", why)])
