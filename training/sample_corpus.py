"""Makes the embedded sample corpus: `python -m training.sample_corpus FOLDER`.

Every message is put together from templates by a seeded generator, so the corpus is synthetic from
the first letter to the last, and the same program makes the same bytes. It is built to be learnable
without being trivial: intents share most of their words, half of the messages carry a sentence that is
about something else, and about one in ten is so vague that only a coin could tell its two possible
labels apart. The writer's age group decides how formal, short or loud the wording is in three of
four messages; that is the secret which an attacker may look for.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

SEED = 20240
SPLITS = {"train": 1600, "test": 400}
COLUMNS = ("text", "label", "age_group", "entities", "origin")

T = TypeVar("T")

_PEOPLE = (
    "Amira Haddad", "Ben Okafor", "Carla Jimenez", "Daniel Brandt", "Elif Kaya", "Frank Moreau", "Grace Lin",
    "Henrik Dahl", "Ines Castro", "Jonas Weber", "Katya Petrova", "Liam Walsh", "Mona Rashid", "Nadia Rossi",
    "Oscar Lund", "Priya Nair", "Quentin Moss", "Rosa Silva", "Samuel Cohen", "Tara Quinn", "Umar Khan",
    "Vera Novak", "Walter Simon", "Yuki Tanaka", "Zoe Papadakis",
)  # fmt: skip
_CITIES = (
    "Antwerp", "Bergen", "Cardiff", "Dresden", "Edinburgh", "Florence", "Geneva", "Hamburg", "Krakow", "Leeds",
    "Lisbon", "Lyon", "Malaga", "Nantes", "Oslo", "Porto", "Riga", "Seville", "Tallinn", "Utrecht", "Vienna", "Zurich",
)  # fmt: skip
_PRODUCTS = (
    "Tempo headphones", "Brisa fan", "Clio watch", "Delta router", "Cinder kettle", "Fjord jacket", "Gleam lamp",
    "Halo speaker", "Petal camera", "Juno tablet", "Kite drone", "Lumen monitor", "Mistral blender", "Nimbus tent",
    "Sonnet printer", "Pico projector", "Quill keyboard", "Ridge backpack",
)  # fmt: skip

_CORES: dict[str, tuple[str, ...]] = {
    "billing": (
        "I was charged {amount} twice for the {product}",
        "the invoice for my {product} shows {amount} more than the price on your page",
        "there is a payment of {amount} on my card that I do not recognise",
        "I sent the {product} back and have not seen the refund of {amount}",
        "the discount code was accepted but not taken off the total",
        "my bank says that {amount} was taken again this month",
        "please send me a receipt for the {product} made out to {person}",
        "the tax on my last invoice is wrong, it should be {amount}",
        "you took {amount} although I ended the contract in time",
        "the price of the {product} went up after I had paid",
        "I paid by transfer from {city} and you say the money never came",
        "can I pay for the {product} in {days} instalments",
        "my card was declined but the amount still left my account",
        "I would like to know what the fee of {amount} on the statement is for",
    ),
    "delivery": (
        "the {product} was promised for last week and has not come",
        "the parcel has been in {city} for {days} days without moving",
        "the driver left my {product} with a neighbour I do not know",
        "the box arrived open and the {product} was missing",
        "you sent a {product} in the wrong colour",
        "can you send the order to {person} in {city} instead",
        "tracking says delivered but nobody rang at our door",
        "I have moved to {city}, please change the address of my order",
        "only one of the two items came, the {product} is not in the box",
        "how long does it take to send a {product} to {city}",
        "the courier wants me to collect it at a depot near {city}",
        "it has been {days} days since the order was shipped",
        "I was at home all day and found a card saying you missed me",
        "where is my {product}, the page still says it is being packed",
    ),
    "technical": (
        "the {product} does not turn on any more",
        "my {product} loses the connection every {days} minutes",
        "after the update the {product} shows nothing but a white screen",
        "the {product} gets so hot that I had to unplug it",
        "the app cannot find the {product} in my home in {city}",
        "there is a loud noise when I start the {product}",
        "the battery of the {product} lasts only {days} hours",
        "I followed the manual and the {product} still blinks red",
        "the {product} stopped working {days} days after I bought it",
        "how do I put the {product} back to its first settings",
        "the button on the side of my {product} is stuck",
        "the {product} does not pair with my phone",
        "the screen freezes whenever {person} and I use it together",
        "which cable do I need to charge the {product}",
    ),
    "account": (
        "I cannot sign in, the page says my password is wrong",
        "the mail with the code to reset my password never comes",
        "please change the name on my profile to {person}",
        "I would like to delete my account and all my data",
        "someone in {city} has signed in with my name",
        "my profile shows the orders of a person called {person}",
        "how do I add {person} as a second user",
        "my account was locked after {days} tries",
        "I registered with an old mail address and want to change it",
        "I still get your newsletter although I signed off {days} times",
        "I have two profiles and want to make one of them",
        "the page does not accept my new phone number",
        "my points disappeared from my profile after I bought the {product}",
        "I never agreed that you may keep my data, please tell me what you hold",
    ),
}

_VAGUE: tuple[tuple[tuple[str, str], str], ...] = (
    (("billing", "delivery"), "I paid {amount} for the {product} and have nothing in my hands"),
    (("billing", "delivery"), "the order for the {product} was cancelled and nobody told me"),
    (("billing", "account"), "I cannot see my last order and its amount on the page any more"),
    (("billing", "technical"), "the {product} is broken and I want my money back"),
    (("delivery", "technical"), "the {product} came damaged and does not work"),
    (("delivery", "account"), "the address on my profile is not the one you used for the {product}"),
    (("technical", "account"), "the app throws me out each time I open it"),
    (("technical", "account"), "I cannot connect the {product} to my profile"),
)
_VAGUE_SHARE = 0.13
_QUESTIONS = ("can ", "how ", "where ", "which ")

_ASIDES: tuple[str, ...] = (
    "I ordered it for {person} in {city}.",
    "I have already paid and the parcel came on time.",
    "My account and my address have not changed.",
    "The invoice and the delivery were fine.",
    "I bought it {days} weeks ago.",
    "I live in {city} and order from you often.",
    "{person} from your team told me to write again.",
    "I called {days} times and was told to wait.",
    "The app and the {product} work well otherwise.",
    "My password and my card are the same as always.",
    "I also own a {product} and never had trouble with it.",
    "The refund for another order came without trouble.",
    "It was meant as a present for {person}.",
    "A friend in {city} had the same with a {product}.",
)

_STYLES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    # openings, what stands before the core sentence, closings
    "18-29": (
        ("hey", "hi there", "hey guys", "yo", "hii"),
        ("so basically", "ok so", "not gonna lie", "literally", "um"),
        ("thx", "pls fix asap", "cheers {person}", "lmk", "thanks a ton"),
    ),
    "30-59": (
        ("Hello", "Hi", "Good morning", "Hello team", "Hi support"),
        ("just to let you know,", "as far as I can see", "unfortunately", "quick question:", "once again"),
        ("Thanks, {person}", "Best, {person}", "Kind regards, {person}", "Thanks in advance.", "Please call me back."),
    ),
    "60+": (
        ("Dear Sir or Madam", "Dear customer service", "Good day", "To whom it may concern",
         "Dear ladies and gentlemen"),
        ("I am writing because", "I regret to say that", "my grandson tells me that", "I must inform you that",
         "with respect,"),
        ("Yours faithfully, {person}", "With kind regards, {person}", "I look forward to your reply by post.",
         "Respectfully, {person}", "Thank you for your trouble."),
    ),
}  # fmt: skip
_OWN_STYLE = 0.75

_SLOTS: dict[str, tuple[str, ...]] = {"person": _PEOPLE, "city": _CITIES, "product": _PRODUCTS}


class _Writer:
    """Puts one message together and remembers where its named entities stand."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.text = ""
        self.entities: list[tuple[int, int, str]] = []

    def pick(self, options: Sequence[T]) -> T:
        # only random() is documented to give the same sequence in every version of Python
        return options[int(self._rng.random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def write(self, template: str) -> None:
        """Appends a template with its slots filled in, with a capital where a sentence begins."""
        if self.text.endswith(","):
            template = template if template.startswith("I ") else template[0].lower() + template[1:]
        elif self.text.endswith(".") or not self.text:
            template = template[0].upper() + template[1:]
        self.text += " " if self.text else ""
        while "{" in template:
            before, rest = template.split("{", 1)
            slot, template = rest.split("}", 1)
            self.text += before
            start = len(self.text)
            self.text += self._fill(slot)
            if slot in _SLOTS:
                self.entities.append((start, len(self.text), slot))
        self.text += template

    def _fill(self, slot: str) -> str:
        if slot == "amount":
            return f"{5 + int(self._rng.random() * 240)}.{self.pick(('00', '50', '90', '99'))} euros"
        if slot == "days":
            return str(2 + int(self._rng.random() * 20))
        return self.pick(_SLOTS[slot])


def _message(rng: random.Random) -> tuple[str, str, str, str, str]:
    writer = _Writer(rng)
    age_group = writer.pick(tuple(_STYLES))
    shown = age_group if writer.chance(_OWN_STYLE) else writer.pick(tuple(_STYLES))
    openings, lead_ins, closings = _STYLES[shown]
    if writer.chance(_VAGUE_SHARE):
        possible, core = writer.pick(_VAGUE)
        label = writer.pick(possible)
    else:
        label = writer.pick(tuple(_CORES))
        core = writer.pick(_CORES[label])
    aside, closing = writer.pick(_ASIDES), writer.pick(closings)
    if writer.chance(0.8):
        writer.write(writer.pick(openings) + ",")
    aside_first = writer.chance(0.25)
    if aside_first:
        writer.write(aside)
    if writer.chance(0.6) and not core.startswith(_QUESTIONS):
        writer.write(writer.pick(lead_ins))
    writer.write(core + ("?" if core.startswith(_QUESTIONS) else "."))
    if not aside_first and writer.chance(0.35):
        writer.write(aside)
    if writer.chance(0.7):
        writer.write(closing)
    text = writer.text.lower() if shown == "18-29" else writer.text
    return text, label, age_group, json.dumps(writer.entities, separators=(",", ":")), "synthetic"


def make_splits() -> dict[str, bytes]:
    """The splits as CSV bytes. No text occurs twice, in one split or in two."""
    rng = random.Random(SEED)  # noqa: S311 - made-up texts, nothing secret
    seen: set[str] = set()
    splits: dict[str, bytes] = {}
    for split, size in SPLITS.items():
        text = io.StringIO(newline="")
        table = csv.writer(text, lineterminator="\n")
        table.writerow(COLUMNS)
        goal = len(seen) + size
        while len(seen) < goal:
            row = _message(rng)
            if row[0] not in seen:
                seen.add(row[0])
                table.writerow(row)
        splits[split] = text.getvalue().encode()
    return splits


def compress(data: bytes) -> bytes:
    """Gzip without name and time, so that the same corpus is the same file."""
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=9, mtime=0) as stream:
        stream.write(data)
    return packed.getvalue()


def main(folder: Path) -> None:
    """Writes `train.csv.gz` and `test.csv.gz` into an existing folder."""
    for split, rows in make_splits().items():
        (folder / f"{split}.csv.gz").write_bytes(compress(rows))


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Make the embedded sample corpus again: the same bytes each time.")
    arguments.add_argument("folder", type=Path, help="An existing folder for train.csv.gz and test.csv.gz.")
    main(arguments.parse_args().folder)
