"""Small worlds for attacks: texts, a table, a template, and recorded transcripts about them."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import torch

from cutlayer.attacks import Check, Knowledge, PublicText
from cutlayer.core import Cut, Ragged, Rows, Tokens
from cutlayer.models import Head, Layout, Template, split
from cutlayer.models.heads import model_class
from cutlayer.privacy import keep_probability
from cutlayer.wire import Frame, Reply, WireType, pack, routes
from cutlayer.wire.transports import RecordingTransport
from tests.equivalence import zoo

VOCAB, WIDTH = 200, 12
RECORD_SET, JOB = "a" * 32, "b" * 32
TEMPLATE = Template(
    single=Layout(specials=((1,), (2,)), special_types=((0,), (0,)), segment_types=(0,)),
    pair=Layout(specials=((1,), (2, 2), (2,)), special_types=((0,), (0, 0), (1,)), segment_types=(0, 1)),
    typed=True,
)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def random_tokens(texts, *, segments=1, seed=0, longest=12):
    """Texts of 0 to `longest` ordinary ids per segment, with the uneven frequencies of words."""
    rng = generator(seed)
    weights = 1 / torch.arange(1, VOCAB - 10 + 1)
    sides = []
    for _ in range(segments):
        lengths = torch.randint(0, longest + 1, (texts,), generator=rng)
        ids = 10 + torch.multinomial(weights, int(lengths.sum()), replacement=True, generator=rng)
        sides.append(Ragged(ids, lengths))
    return Tokens(tuple(sides))


TABLE = torch.randn(VOCAB, WIDTH, generator=generator(7))
CANDIDATES = torch.arange(VOCAB) >= 10
"""All but special tokens."""
ASKED = set(Check) - {Check.NONLINEAR}
"""What an attack on a transcript is asked; the other check is of students of the vendor's blocks."""
KNOWLEDGE = Knowledge(cut=Cut(bottom=0), table=TABLE, template=TEMPLATE)


def as_rows(tokens, table=TABLE, *, sigma=0.0, seed=0):
    inputs = TEMPLATE.assemble(tokens, table=table)
    noise = torch.randn(inputs.inputs_embeds.shape, generator=generator(seed))
    return TEMPLATE.unpad(inputs.inputs_embeds + sigma * noise, tokens)


PLAIN = Template(
    single=Layout(specials=((), ()), special_types=((), ()), segment_types=(0,)),
    pair=Layout(specials=((), (), ()), special_types=((), (), ()), segment_types=(0, 0)),
    typed=False,
)
"""No special tokens, as GPT-2's: nothing precedes a text's first token."""
HIDDEN = 64
"""Width of a decoder's boundaries."""


def language_knowledge(template, *, tail=0):
    """What the vendor of a random decoder knows: its tail is as it was handed out."""
    config = zoo.configuration("gpt2", vocab_size=VOCAB, n_embd=HIDDEN)
    model = model_class(config, Head.LANGUAGE).from_config(config).eval().requires_grad_(False)
    rng = generator(1)
    for parameter in model.parameters():
        drawn = torch.empty(parameter.shape).normal_(generator=rng)
        parameter.copy_(0.3 * drawn) if parameter.dim() > 1 else parameter.add_(0.2 * drawn)
    cut = Cut(bottom=1, tail=tail)
    return Knowledge(cut, template=template, tail=split(model, cut).tail)


def language_texts(texts, *, seed=0):
    """Texts of 2 to 12 ordinary ids, each as probable as any other."""
    rng = generator(seed)
    lengths = torch.randint(2, 13, (texts,), generator=rng)
    return Tokens((Ragged(torch.randint(10, VOCAB, (int(lengths.sum()),), generator=rng), lengths),))


@functools.cache
def own_text():
    """An attacker's, which is fitted on once for all tests of a process."""
    return PublicText(language_texts(2500, seed=2), source="made up")


@functools.cache
def gentle_bottom(family):
    """A block that changes rows little, as trained models' first blocks do: rows still tell their tokens."""
    sizes = {"n_embd": HIDDEN} if family == "gpt2" else {"hidden_size": HIDDEN, "intermediate_size": HIDDEN}
    config = zoo.configuration(family, vocab_size=VOCAB, **sizes)
    torch.manual_seed(0)
    model = model_class(config, Head.LANGUAGE if family == "gpt2" else Head.CLASSIFICATION).from_config(config)
    return split(model.eval().requires_grad_(False), Cut(bottom=1)).bottom


def boundary(tokens, template, *, seed=0, width=HIDDEN):
    """Random rows in the shape of the texts' positions: of the lower boundary, or of the upper."""
    lengths = template.segment_lengths(tokens)
    return Rows(Ragged(torch.randn(int(lengths.sum()), width, generator=generator(seed)), lengths.sum(1)), lengths)


def reading_model(*, vocab=zoo.VOCAB):
    """A random encoder whose table tells tokens apart better than its positions do."""
    config = zoo.configuration("bert", vocab_size=vocab, hidden_size=HIDDEN, intermediate_size=64, num_hidden_layers=2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = model_class(config, Head.CLASSIFICATION).from_config(config).eval().requires_grad_(False)
    model.bert.embeddings.word_embeddings.weight.normal_(generator=generator(1))
    return model


def reported(labels, epsilon, classes, rng):
    """What randomised response makes of labels."""
    kept = torch.rand(len(labels), generator=rng) < keep_probability(epsilon, classes)
    others = torch.randint(1, classes, labels.shape, generator=rng)
    return torch.where(kept, labels, (labels + others) % classes)


TAGS = ("O", "B-name", "I-name")


def named_texts(texts, *, seed=0):
    """Texts of a tiny model's ids, some of which are names of two tokens, with the tag of each."""
    rng = generator(seed)
    ids, tags = [], []
    for _ in range(texts):
        own, told = [], []
        for _ in range(int(torch.randint(4, 9, (), generator=rng))):
            if float(torch.rand((), generator=rng)) < 0.2:
                own += [int(torch.randint(10, 18, (), generator=rng)), int(torch.randint(18, 24, (), generator=rng))]
                told += [1, 2]
            else:
                own.append(int(torch.randint(24, zoo.VOCAB, (), generator=rng)))
                told.append(0)
        ids.append(own)
        tags.append(told)
    return Tokens((Ragged.from_lists(ids),)), Tokens((Ragged.from_lists(tags),))


@dataclass
class Silent:
    """A vendor that only answers with what it was told to answer: by step, and queries in order."""

    outputs: dict = field(default_factory=dict)
    asked: int = 0

    def send(self, frame):
        key = frame.where.get("step")
        if frame.route in (routes.JOB_INFER, routes.ADAPTER_INFER):
            key, self.asked = f"query {self.asked}", self.asked + 1
        output = self.outputs.get(key)
        answers = any("output" in roles for roles in frame.route.reply_tensors) and output is not None
        return Reply(tensors={"output": output} if answers else {})

    def close(self):
        pass


def record(folder, frames, outputs=None):
    transport = RecordingTransport(Silent(outputs or {}), folder)
    for frame in frames:
        transport.send(frame)
    transport.close()
    return folder


def tensors(payload, wire_type=WireType.BF16):
    return pack(payload, vocab_size=VOCAB, wire_type=wire_type)


def shard(number, payload, wire_type=WireType.BF16, *, record_set=RECORD_SET):
    return Frame(routes.SHARD_PUT, {"record_set": record_set, "shard": number}, tensors=tensors(payload, wire_type))


def step(number, payload=None, **roles):
    body = tensors(payload) if payload is not None else roles
    return Frame(routes.STEP, {"job": JOB, "step": number}, tensors=body)


def gradient(number, value):
    return Frame(routes.GRADIENT, {"job": JOB, "step": number}, tensors={"gradient": value})


def query(payload, wire_type=WireType.FP32):
    return Frame(routes.ADAPTER_INFER, {"adapter": JOB}, tensors=tensors(payload, wire_type))


def pieces(tokens, *sizes):
    """Consecutive texts, as shards hold them."""
    return [tokens.select(part) for part in torch.arange(len(tokens)).split(list(sizes))]
