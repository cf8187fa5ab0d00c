"""The page holds all of the report, says plainly what it does not know, and runs nothing that it quotes."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable
from html import unescape
from importlib.resources import files
from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from cutlayer.core import Guarantee
from cutlayer.reports import AuditReport, render, summary
from cutlayer.reports.page.picture import draw_frontier
from cutlayer.reports.page.plots import SERIES, plots
from cutlayer.reports.schema import Finding, Piece
from cutlayer.reports.wording import visible
from tests.unit.reports.audits import (
    AUTHOR,
    PRIOR,
    PROMISE,
    controls,
    empty,
    example,
    failed,
    finding,
    full,
    inapplicable,
    settings,
    strongest,
)
from tests.unit.reports.pages import Page

SCRIPT = "<script>window.stolen = 1</script>"
HOSTILE = (
    f"{SCRIPT}\"'><img src=x onerror=alert(1)> {{{{ 7 * 7 }}}} {{% raw %}} </style></title> "
    "\u202egnp.exe\x00\x1b[31m 😀 שלום"
)
CLOSED = frozenset({"status", "claim", "check", "source", "created", "mechanism"})
"""Fields with a fixed set of values."""
CSS = (files("cutlayer.reports") / "page" / "report.css").read_text(encoding="utf-8")


def replaced(value: Any, change: Callable[[Any], Any], name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: replaced(item, change, key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(replaced(item, change, name) for item in value)
    return value if name in CLOSED else change(value)


def with_all(report: AuditReport, change: Callable[[Any], Any]) -> AuditReport:
    return AuditReport.model_validate(replaced(report.model_dump(), change))


def figures_of(page: Page) -> list[dict[str, Any]]:
    return json.loads(page.scripts[0])


# ---------------------------------------------------------------- all of it is there


def test_every_finding_appears():
    report = full()
    page = Page(render(report))
    for each in report.attacks:
        row = page.row("attacks-table", each.title)
        if each.value is None:
            assert each.reason.removeprefix(f"{each.status}: ") in row[1]
            assert each.status in row[1]
        else:
            assert row[1] == f"{100 * each.value:.1f}"
        assert each.reference in page.words
        assert f"({each.name})" in page.words


def test_attacks_are_listed_in_page_ones_order():
    report = full()
    asked = [best.asked for best in report.strongest]
    backwards = sorted(report.attacks, key=lambda finding: -asked.index(finding.asked))
    report = report.model_copy(update={"attacks": tuple(backwards)})
    table = unescape(render(report)).partition('id="attacks-table"')[2].partition("</table>")[0]
    assert asked == sorted(asked, key=table.index)
    _, told, *_ = summary(report)
    assert list(dict.fromkeys(row[1] for row in told.rows)) == [best.question for best in report.strongest]


def test_every_part_appears():
    report = full()
    page = Page(render(report))
    texts = [
        *(each.sentence for each in report.strongest),
        *(each.asked for each in report.strongest),
        *report.guarantee.caveats,
        *report.traded,
        *report.repeat,
        report.correction,
        report.settings.model,
        report.settings.fingerprint,
        report.settings.public_text,
        report.guarantee.unit,
        report.frontier.note,
        report.vendor.note,
        *(metric.title for each in report.attacks for metric in each.further),
    ]
    for text in texts:
        assert text in page.words
    for point in report.frontier.points:
        assert any(row[0].startswith(point.label) for row in page.tables["frontier-table"])
    kinds = [[row[0], row[1], *row[3:5], row[6]] for row in page.tables["classes-table"] if len(row) == 7]
    for kind in PRIOR.classes:
        right = ["–", "–"] if kind.precision is None else [f"{100 * kind.precision:.1f}", f"{kind.guessed:,}"]
        assert [kind.name, f"{100 * kind.recovered:.1f}", f"{kind.n:,}", *right] in kinds
    for part in report.vendor.handed:
        assert page.row("weights-table", part.name)[1] == f"{part.parameters:,}"
    for student in report.vendor.students:
        assert page.row("copies-table", f"{student.queries:,}")[1] == f"{100 * student.agreement:.1f}"
    assert page.row("blocks-table", "1,000")[1:5] == ["73.1", "72.0 to 74.2", "48.7", "47.0 to 50.4"]
    assert page.row("blocks-table", "100")[1:5] == ["-12.5", "–", "0.0", "–"]


def test_page_one_says_numbers_as_people_do():
    said = Page(render(full())).inside["leaked"]
    assert "46 of 100 words and pieces of words above chance" in said
    assert "95 % interval: 44 to 48 of 100. Tried on 14,200 words and pieces of words." in said
    assert "The number is: entity_f1. 95 % interval: 26.3 to 33.3 %. Tried on 733." in said
    assert "29.8 %" in said
    assert "30 of 100" not in said


def test_the_opening_counts_leaks_and_repeats_no_answer():
    report = full()
    said = Page(render(report)).inside["leaked"]
    assert said.startswith(
        "What leaked On 3 of 5 questions the vendor could read more than guessing gives. On 1 the attacks did no "
        "better. On 1 nothing is known. The strongest attack on each question"
    )
    for each in report.strongest:
        assert said.count(each.sentence) == 1


def test_the_opening_says_first_what_no_answer_says():
    warned = full(verdict=("The noise came from a seed.", *full().verdict))
    assert Page(render(warned)).inside["leaked"].startswith("What leaked The noise came from a seed. On 3 of 5")


def test_the_opening_where_nothing_leaked():
    report = full(strongest=tuple(each for each in full().strongest if not each.above_chance))
    said = Page(render(report)).inside["leaked"]
    assert "On none of 2 questions the vendor could read more than guessing gives. On 1 nothing is known." in said
    assert "did no better. On" not in said


def test_one_question_has_no_opening_but_its_answer():
    said = Page(render(full(strongest=full().strongest[:1], verdict=full().verdict[:1]))).inside["leaked"]
    assert said.startswith("What leaked The strongest attack on each question Which words")


def test_controls_are_told_with_what_they_had_to_be():
    page = Page(render(full()))
    assert page.row("controls-table", failed().title)[1:] == [
        "passed 99.8at least 99.0",
        "failed 12.0at most 5.7",
        "passed 4.3at most 5.7",
        "passed 100.0at least 100.0",
        "passed 38.4at least 36.1",
    ]


def test_a_control_without_meaning_says_why():
    reason = "No setting hides how long texts are."
    found = finding(controls=controls(graded=reason))
    page = Page(render(full(attacks=(found, *full().attacks[1:]))))
    assert page.row("controls-table", found.title)[-1] == "no meaning"
    assert f"graded: {reason} ({found.name})" in page.inside["controls"]


def test_examples_stand_beside_each_other_with_hits_marked():
    report = full(examples=(example("Ann owes 12 pounds.", "Eve owes 30 pounds.", "Eve owes 12 pounds."),))
    html = render(report)
    assert "Eve<mark> " not in html
    assert "Eve <mark>owes 12 pounds.</mark></p>" in html
    assert "Example 1: 4 of 5 words read" in Page(html).words


def test_rows_of_numbers_are_not_shown_as_text():
    rows = example("Ann owes.", "x", "Ann owns.").model_copy(update={"released": None})
    assert "Rows of numbers left" in Page(render(full(examples=(rows,)))).inside["examples"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bottom_blocks": None, "cut": "text"}, "The text itself is what leaves (cut text)."),
        ({"bottom_blocks": 0, "cut": "0"}, "Only the table of words is at the customer (cut 0)."),
        ({"bottom_blocks": 3, "cut": "3"}, "3 of 6 blocks of the model run at the customer, before"),
        ({"looks": 4}, "A text left up to 4 times."),
        ({"eta": math.inf}, "Infinite: nothing is hidden."),
        ({"cti": True}, "words that matter for the task get less noise"),
        ({"unsafe_noise": True}, "It came from a seed that was given, and protects nothing."),
        ({"mechanism": "none"}, "no noise"),
        ({"mechanism": "vector"}, "the numbers that stand for a word are shifted"),
        ({"source": "recorded"}, "Recorded in a real run."),
        ({"replaced": None}, "rows of numbers left, not words"),
        ({"clear_words": {"number": 3}}, "by the rule of the mechanism: 3 × number. What attacks read is counted"),
        ({"clear_words": {"number": 1234, "<b>": 1}}, "Words in clearLeft as they are, by the rule"),
        ({"clear_words": {"number": 1234, "<b>": 1}}, "1,234 × number, 1 × <b>. What"),
        ({"budget_seconds": None}, "As much as they took."),
    ],
)
def test_settings_in_words(changes, said):
    assert said in Page(render(full(settings=settings(**changes)))).words


def test_nothing_is_said_of_words_in_clear_where_there_are_none():
    assert "Words in clear" not in Page(render(full(settings=settings(mechanism="words")))).words


# ---------------------------------------------------------------- what is not known


@pytest.mark.parametrize("without", [failed(), inapplicable()])
def test_an_attack_without_a_number_shows_none(without):
    page = Page(render(full(attacks=(without,), strongest=())))
    said = page.row("attacks-table", without.title)[1:]
    assert said == [f"{without.status} {without.reason.removeprefix('control failed: ')}"]
    assert "plot-words" not in page.inside
    assert "plot-strongest" not in page.inside


@pytest.mark.parametrize("without", [failed, inapplicable])
@pytest.mark.parametrize(
    "number",
    [{"value": 0.3}, {"ci": (0.1, 0.2)}, {"p_value": 0.1}, {"above_chance": False}, {"classes": PRIOR.classes}],
)
def test_an_attack_that_failed_its_controls_cannot_have_a_number(without, number):
    with pytest.raises(ValidationError, match="has no number"):
        without(**number)


def test_an_attack_without_a_number_says_why():
    with pytest.raises(ValidationError, match="says why"):
        failed(reason="")


def test_a_measured_attack_has_a_number():
    with pytest.raises(ValidationError, match="has a value"):
        finding(value=None)


def test_a_question_whose_strongest_attack_failed_has_no_number():
    best = strongest(finding("inverter"), "It is not known.").model_copy(update={"value": 0.99, "above_chance": True})
    page = Page(render(full(attacks=(failed(),), strongest=(best,))))
    assert "No number It is not known." in page.inside["leaked"]
    assert "99" not in page.inside["leaked"]


def test_nothing_above_chance_is_said_with_what_it_does_not_mean():
    page = Page(render(full(attacks=(AUTHOR,), strongest=(strongest(AUTHOR, "No attack did better."),))))
    said = page.inside["leaked"]
    assert "55 of 100 texts not above chance" in said
    assert "It does not mean that nothing can be read." in said


def test_nothing_known_is_said_with_what_it_does_not_mean():
    page = Page(render(full(attacks=(failed(),), strongest=(strongest(failed(), "Not known."),))))
    assert "No attack on this question gave a number that can be trusted" in page.inside["leaked"]
    assert "a map from rows to words, learnt from public text control failed noise: 12.00 %" in page.inside["leaked"]


def test_an_empty_report():
    html = render(empty())
    page = Page(html)
    for said in (
        "no attack was run",
        "no examples, and no text of a record",
        "There is no guarantee.",
        "Texts are released without noise.",
        "Other settings were not measured",
        "No attack was run.",
        "No attack came as far as its controls.",
        "The report does not say how it was made.",
        "did not look at what was handed out",
        "No copy was trained. This does not mean that none can be",
    ):
        assert said in page.words
    assert not page.scripts
    assert len(html) < 60_000


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none(number):
    report = with_all(full(), lambda value: number if isinstance(value, float) and value != PROMISE.budget else value)
    page = Page(render(report))
    assert not re.search(r"\b(nan|inf|infinity)\b", page.words, re.IGNORECASE)
    for figure in figures_of(page) if page.scripts else []:
        json.dumps(figure, allow_nan=False)


def test_a_number_that_is_none_is_no_number():
    page = Page(render(full(attacks=(finding(value=math.nan),), strongest=())))
    assert page.row("attacks-table", finding().title)[1].startswith("no number")


def test_small_and_large_odds():
    def said(distance, budget=70.0):
        report = full(
            settings=settings(largest_distance=distance), guarantee=PROMISE.model_copy(update={"budget": budget})
        )
        return Page(render(report)).inside["guarantee"]

    assert "about 1064. So large a factor excludes next to nothing." in said(2.117)
    assert "this factor is 2.718. " in said(1.0, budget=1.0)
    assert "most unlike words" not in said(None)


def test_what_is_promised_of_labels_stands_beside_it():
    def said(**promised):
        return Page(render(full(**promised))).inside["guarantee"]

    assert "Labels" not in said(guarantee=PROMISE.model_copy(update={"caveats": ()}))
    shown = said(label_guarantee=Guarantee.nothing("Gradients show them."))
    assert "Nothing is promised about labels. Gradients show them." in shown
    drawn = PROMISE.model_copy(
        update={"budget": 1.0, "unit": "epsilon", "per": "label", "caveats": ("Of each alone.",)}
    )
    promised = said(label_guarantee=drawn)
    assert "between two labels of a text by more than a factor of 2.718" in promised
    assert "a budget of 1 (epsilon)" in promised
    assert "Of each alone." in promised


# ---------------------------------------------------------------- it runs nothing that it quotes


def hostile(value: Any) -> Any:
    return HOSTILE if isinstance(value, str) else value


def test_whatever_stands_in_any_field_stays_text():
    clean, page = Page(render(full())), Page(render(with_all(full(), hostile)))
    assert len(page.all("script")) == len(clean.all("script")) == 3
    assert page.scripts[1:] == clean.scripts[1:]
    assert not page.all("img")
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert {tag for tag, _ in page.elements} == {tag for tag, _ in clean.elements}
    assert SCRIPT in page.words
    assert "{{ 7 * 7 }} {% raw %}" in page.words
    assert "49" not in page.inside["examples"]


def test_control_characters_are_shown_as_their_codes():
    page = Page(render(full(verdict=("a\u202eb\x00c\x07d\u200be\u2066f\r\ng\U000e0041",))))
    assert "a⟨U+202E⟩b⟨U+0000⟩c⟨U+0007⟩d⟨U+200B⟩e⟨U+2066⟩f g⟨U+E0041⟩" in page.words


@pytest.mark.parametrize("text", ["שלום עולם", "سلام دنیا می‌خواهم", "👩‍🔬 and 🏳️‍🌈", "a\tb\nc", "⅓ Ω ﬁ"])
def test_scripts_and_emoji_stay_as_they_are(text):
    assert visible(text) == text


def test_text_of_each_example_finds_its_own_direction():
    assert all(each["dir"] == "auto" for each in Page(render(full())).all("p") if each.get("class") == "text")


def test_json_in_the_page_cannot_end_its_element():
    report = full(attacks=(finding(title="</script><script>alert(1)</script><!--"),), strongest=())
    html = render(report)
    data = html[html.index('id="figures">') :].split("</script>")[0]
    assert "<" not in data.removeprefix('id="figures">')
    labels = [each["text"] for figure in figures_of(Page(html)) for each in figure["layout"].get("annotations", ())]
    assert "&lt;/script&gt;" in "".join(labels)


def test_plots_hold_no_text_of_a_record():
    report = full()
    told = json.dumps([plot.figure for plot in plots(report).values()], ensure_ascii=False)
    for each in report.examples:
        for piece in each.original:
            word = piece.text.strip()
            assert len(word) < 6 or word not in told


def test_nothing_is_loaded_from_anywhere():
    page = Page(render(full()))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        assert "src" not in attributes
        assert "srcset" not in attributes
        target = attributes.get("href")
        assert target is None or target == "data:," or target.removeprefix("#") in ids
    assert not re.search(r"@import|url\(|https?:", CSS)


def test_the_policy_names_the_scripts_and_allows_no_request():
    page = Page(render(full()))
    (policy,) = [each["content"] for each in page.all("meta") if each.get("http-equiv") == "Content-Security-Policy"]
    allowed = dict(part.split(" ", 1) for part in policy.split("; "))
    assert allowed["default-src"] == "'none'"
    assert allowed["img-src"] == "data:"
    digests = {f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in page.scripts[1:]}
    assert set(allowed["script-src"].split()) == digests
    assert "script-src &#39;none&#39;" in render(empty())


def test_links_to_papers_are_text():
    report = full(attacks=(finding(reference="https://arxiv.org/abs/2312.15603"),), strongest=())
    page = Page(render(report))
    assert "https://arxiv.org/abs/2312.15603" in page.words
    assert not [each for each in page.all("a") if each["href"].startswith("http")]


# ---------------------------------------------------------------- form


def test_the_same_report_gives_the_same_bytes():
    assert render(full()).encode() == render(full()).encode()


def test_tables_plots_and_sections_have_names():
    page = Page(render(full()))
    assert page.all("html") == [{"lang": "en"}]
    assert all(each.get("scope") in ("col", "row", "rowgroup") for each in page.all("th"))
    for tag in ("table", "section", "figure", "article"):
        for each in page.all(tag):
            assert page.inside[each["aria-labelledby"]]
    drawn = [attributes for _, attributes in page.elements if attributes.get("role") == "img"]
    assert len(drawn) == 6
    assert all(each["aria-label"] for each in drawn)
    for plot in plots(full()).values():
        for sentence in plot.numbers:
            assert sentence in page.inside[f"caption-{plot.name}"]


def test_headings_leave_out_no_level():
    levels = [int(tag[1]) for tag, _ in Page(render(full())).elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_long_texts_are_folded_and_stay_whole():
    text = " ".join(f"word{number}" for number in range(1500))
    html = render(full(examples=(example(text, text, text),)))
    page = Page(html)
    said = page.inside["examples"]
    assert said.count("word1499") == 3
    assert "Show the rest" in said
    assert "word1499" not in html[: html.index("Show the rest")]


def test_a_text_little_longer_than_what_is_shown_is_not_folded():
    text = " ".join(["word"] * 150)
    assert "Show the rest" not in render(full(examples=(example(text, text, text),)))


def test_a_short_guess_folds_no_text_away():
    assert "Show the rest" not in render(full(examples=(example("Ann owes 12 pounds.", "Eve.", "No."),)))


def test_a_very_long_token_and_none_at_all():
    one = example("x" * 10_000, "y" * 10_000, "x" * 10_000)
    nothing = one.model_copy(update={"original": (), "released": (), "guess": ()})
    blank = one.model_copy(update={"guess": (Piece(text="\n\n", hit=True),)})
    page = Page(render(full(examples=(one, nothing, blank))))
    assert page.inside["examples"].count("x" * 10_000) == 3


def test_attacks_of_one_name_on_two_questions_are_told_apart():
    other = finding(
        AUTHOR.name, question="attribute:age", asked="Which age?", title="on age", value=0.91, counted="texts"
    )
    report = full(attacks=(AUTHOR, other), strongest=(strongest(AUTHOR, "a"), strongest(other, "b")))
    said = Page(render(report)).inside["leaked"]
    assert "55 of 100 texts not above chance a" in said
    assert "91 of 100 texts above chance b" in said


# ---------------------------------------------------------------- plots


def test_plotly_knows_every_setting_of_every_plot():
    from plotly.graph_objects import Figure

    drawn = plots(full())
    assert list(drawn) == ["strongest", "words", "frontier", "classes", "students"]
    for plot in drawn.values():
        Figure(data=list(plot.data), layout=plot.layout)


def test_a_frontier_without_utility_shows_what_each_setting_gives_away():
    frontier = full().frontier
    bare = frontier.model_copy(
        update={"points": tuple(p.model_copy(update={"utility": None, "utility_ci": None}) for p in frontier.points)}
    )
    plot = plots(full(frontier=bare))["frontier"]
    assert "was not measured" in plot.reading
    assert len(plot.data[0]["x"]) == 6
    assert Page(render(full(frontier=bare))).row("frontier-table", "no noise")[6] == "–"


def test_a_utility_that_is_no_share_is_not_told_in_per_cent():
    frontier = full().frontier
    points = tuple(p.model_copy(update={"utility": 31.24, "utility_ci": None}) for p in frontier.points)
    changed = full(frontier=frontier.model_copy(update={"points": points, "utility_name": "perplexity"}))
    assert Page(render(changed)).row("frontier-table", "no noise")[6] == "31.24"
    assert plots(changed)["frontier"].layout["yaxis"]["title"]["text"] == "perplexity"


@pytest.mark.parametrize("lower", [False, True])
def test_up_is_more_useful_whatever_is_measured(lower):
    changed = full().frontier.model_copy(update={"lower_is_better": lower, "utility_name": "usefulness"})
    axis = plots(full(frontier=changed))["frontier"].layout["yaxis"]
    assert (axis.get("autorange") == "reversed") == lower
    assert ("less is better" in axis["title"]["text"]) == lower
    assert draw_frontier(changed) != draw_frontier(changed.model_copy(update={"lower_is_better": not lower}))


def test_labels_of_the_frontier_stand_clear_of_the_next_mark():
    frontier = full().frontier
    at = dict(zip((40.0, 60.0, 70.0, 80.0, 100.0, math.inf), (0.05, 0.1, 0.4, 0.45, 0.65, 1.0), strict=True))
    points = tuple(point.model_copy(update={"recovered": at[point.eta]}) for point in frontier.points)
    data = plots(full(frontier=frontier.model_copy(update={"points": points})))["frontier"].data
    sides = {text: side for trace in data[1:] for text, side in zip(trace["text"], trace["textposition"], strict=True)}
    assert sides == {
        "eta 40": "top right",  # 60 is just right of it, the axis just left
        "eta 60": "bottom right",
        "eta 70": "top left",
        "eta 80": "bottom right",
        "eta 100": "bottom right",
        "eta ∞": "top left",  # at the edge
    }


def test_each_setting_names_the_attack_that_read_most():
    page = Page(render(full()))
    assert page.row("frontier-table", "no noise")[5] == "nearest-neighbour"
    assert page.row("frontier-table", "text-to-text, eta 40")[5] == "channel-prior"


@pytest.mark.parametrize(
    ("source", "how"), [("local", "The same command with --frontier ETA"), ("recorded", "without --transcript")]
)
def test_a_report_of_one_setting_says_how_to_get_others(source, how):
    page = Page(render(full(frontier=None, settings=settings(source=source))))
    assert how in page.inside["frontier"]
    assert "--frontier ETA" in page.inside["frontier"]


def test_a_frontier_on_which_nothing_could_be_drawn_says_why():
    nothing = full().frontier.model_copy(update={"points": (), "note": "No place among them: eta 40."})
    page = Page(render(full(frontier=nothing)))
    assert "No place among them: eta 40." in page.inside["frontier"]
    assert "were not measured" not in page.inside["frontier"]


def test_error_bars_are_the_intervals():
    (above, _, chance) = plots(full())["strongest"].data
    assert above["x"][0] == pytest.approx(46.2)
    assert above["error_x"]["array"][0] == pytest.approx(2.2)
    assert above["error_x"]["arrayminus"][0] == pytest.approx(2.1)
    assert chance["x"] == pytest.approx([5.8, 27.0, 52.4, 7.1])


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


PAPERS = re.findall(r"--paper: (#\w+)", CSS)


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize("colour", SERIES)
def test_marks_stand_out_from_every_background(paper, colour):
    assert contrast(paper, colour) >= 3


def test_the_page_has_a_light_a_dark_and_a_paper_scheme():
    assert len(PAPERS) == 3


@pytest.mark.parametrize("number", [1, 2, 3, 10])
def test_rows_of_a_plot_do_not_overlap(number):
    found: list[Finding] = [finding(f"a{each}", title="a long title " * each) for each in range(1, number + 1)]
    plot = plots(full(attacks=tuple(found), strongest=()))["words"]
    places = plot.data[0]["y"]
    labels = [(each["y"], each["text"].count("<br>") + 1) for each in plot.layout["annotations"]]
    for (bottom, _), at in zip(labels, places, strict=True):
        assert at + 8 < bottom
    for (bottom, _), (below, lines) in pairwise(labels):
        assert below + 17 * lines < bottom
