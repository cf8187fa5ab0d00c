from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cutlayer.attacks import AttributeClassifier, AttributeTruth, Fitting, Inapplicable, View
from cutlayer.attacks import Transcript as Seen
from cutlayer.attacks.simulate import boundary
from cutlayer.core import Cut, Ragged, Tokens
from cutlayer.models import Head, cut_up
from tests.equivalence import zoo
from tests.unit.attacks import worlds
from tests.unit.attacks.worlds import KNOWLEDGE, RECORD_SET

QUICK = AttributeClassifier(fitting=Fitting(passes=3, batch=32, learning_rate=1e-2))


def telling(count, seed=1):
    """Texts that tell their class by a word, with the first token the same in all texts of a class."""
    rng = worlds.generator(seed)
    labels = torch.randint(2, (count,), generator=rng)
    ids = torch.randint(20, zoo.VOCAB, (count, 6), generator=rng)
    ids[:, 0] = 10 + labels
    return Tokens((Ragged(ids.flatten(), torch.full((count,), 6)),)), labels


def known(bottom, model=None):
    model = model or worlds.reading_model()
    lower = cut_up(model, Cut(bottom=bottom or 0)).bottom
    return replace(KNOWLEDGE, cut=Cut(bottom=bottom), table=lower.table.detach(), bottom=lower, model=model)


def seen(folder, payload):
    return Seen.recorded(worlds.record(folder, [worlds.shard(0, payload)]))


@pytest.mark.parametrize("bottom", [None, 0, 1])
def test_it_reads_releases_above_any_cut(tmp_path, bottom):
    tokens, labels = telling(300)
    knowledge = known(bottom)
    payload = tokens if bottom is None else boundary(tokens, knowledge)
    transcript = seen(tmp_path, payload)
    truth = AttributeTruth(labels, 2, torch.arange(300) < 200, records={RECORD_SET: torch.arange(300)})
    score = truth.score(QUICK(View(transcript, truth.granted(transcript, knowledge))))
    assert score.success.value > 0.9


def test_the_vendors_model_stays_as_it_was(tmp_path):
    tokens, labels = telling(60)
    knowledge = known(None)
    before = {name: value.clone() for name, value in knowledge.model.state_dict().items()}
    transcript = seen(tmp_path, tokens)
    truth = AttributeTruth(labels, 2, torch.arange(60) < 40, records={RECORD_SET: torch.arange(60)})
    list(QUICK(View(transcript, truth.granted(transcript, knowledge))))
    assert all(torch.equal(value, before[name]) for name, value in knowledge.model.state_dict().items())


def test_only_the_first_positions_are_read(tmp_path):
    tokens, labels = telling(300)
    transcript = seen(tmp_path, tokens)
    truth = AttributeTruth(labels, 2, torch.arange(300) < 200, records={RECORD_SET: torch.arange(300)})
    view = View(transcript, truth.granted(transcript, known(None)))
    short = AttributeClassifier(positions=1, fitting=Fitting(passes=3, batch=32, learning_rate=1e-2))
    assert truth.score(short(view)).success.value == 1  # of ids, the first one tells
    hidden = Tokens((Ragged(tokens.segments[0].values.view(300, 6)[:, 1:].flatten(), torch.full((300,), 5)),))
    view = View(seen(tmp_path / "b", hidden), view.knowledge)
    assert truth.score(short(view)).success.value < 0.65


@pytest.mark.parametrize(
    ("missing", "message"), [("labelled", "granted none"), ("model", "own model"), ("template", "special tokens")]
)
def test_what_was_not_granted_is_named(tmp_path, missing, message):
    tokens, labels = telling(6)
    transcript = seen(tmp_path, tokens)
    truth = AttributeTruth(labels, 2, torch.arange(6) < 3, records={RECORD_SET: torch.arange(6)})
    knowledge = replace(truth.granted(transcript, known(None)), **{missing: None})
    with pytest.raises(Inapplicable, match=message):
        list(QUICK(View(transcript, knowledge)))


def test_an_encoder_decoder_is_not_tuned(tmp_path):
    tokens, labels = telling(6)
    transcript = seen(tmp_path, tokens)
    truth = AttributeTruth(labels, 2, torch.arange(6) < 3, records={RECORD_SET: torch.arange(6)})
    knowledge = truth.granted(transcript, replace(known(None), model=zoo.shared_model("t5", Head.LANGUAGE)))
    with pytest.raises(Inapplicable, match="encoder-decoder"):
        list(QUICK(View(transcript, knowledge)))
