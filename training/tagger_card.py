"""The bundled tagger's model card, written from what was measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaggerCard:
    """What a training run came to. Shares are of words, on the treebank's test split where nothing else is said.

    Attributes:
        sentences: Of the test split.
        words: Of the test split.
        accuracy: With the treebank's words.
        lower_case: The same without capitals.
        words_found: F1 of the words that the pipeline's own tokenizer finds.
        from_text: F1 of these with their part of speech.
        spaced: The same of lower-case text with a blank behind each word.
        dev: Accuracy on the development split, which chose the epoch.
        speed: Words a second in one thread, from text.
        megabytes: Of the pipeline's files, 10^6 bytes each.
        epochs: Passes over the training split.
        epoch: After which the weights were taken.
        seed: Initialisation, order and dropout.
    """

    sentences: int
    words: int
    accuracy: float
    lower_case: float
    words_found: float
    from_text: float
    spaced: float
    dev: float
    speed: float
    megabytes: float
    epochs: int
    epoch: int
    seed: int

    def render(self) -> str:
        """The card in Markdown, with the hub's metadata."""
        return f"""---
license: cc-by-sa-4.0
language: en
library_name: spacy
---

# english_tagger

A spaCy pipeline that splits English text into words and gives each its Universal part of speech (`token.pos_`), and
nothing else. cutlayer tags a customer's texts with it where no other pipeline is named. {self.megabytes:.1f} MB.

- **Data**: the training split of the Universal Dependencies English Web Treebank (UD_English-EWT: web logs, newsgroups,
  e-mails, reviews, questions and answers), 12,544 sentences. The development split chose the epoch.
- **Licence**: CC BY-SA 4.0, as the treebank; see `LICENSE` beside this file. The package's own licence does not cover
  this folder.
- **Model**: hashed embeddings of a word's normal form, first letter, last three letters and shape (width 96), and four
  convolutions over a word and its two neighbours, so that a tag depends on four words to each side and on nothing
  further away. Weights averaged over all updates; epoch {self.epoch} of {self.epochs}; seed {self.seed}.

| on the test split ({self.sentences:,} sentences, {self.words:,} words) | share |
|---|---|
| accuracy, the treebank's words | {self.accuracy:.2%} |
| accuracy, the same in lower case | {self.lower_case:.2%} |
| words found by the pipeline's own tokenizer, F1 | {self.words_found:.2%} |
| words with part of speech from plain text, F1 | {self.from_text:.2%} |
| the same, lower case with a blank behind each word | {self.spaced:.2%} |

Development split: {self.dev:.2%}. Speed: {self.speed:,.0f} words/s from text, in one thread.

## Limits

- Web English of about 2000 to 2012. Other domains (clinical notes, law, verse, speech) are tagged worse, and by how
  much was not measured; other languages should not be tagged at all.
- Without capitals a name looks like any other word, so more names are taken for common nouns.
- A word of several readings has little to go by in a fragment.
- The treebank's tags are not free of errors.

Made again from the repository with: `python -m training.tagger --treebank FOLDER --out FOLDER`.
"""
