"""`cutlayer finetune`, `cutlayer predict` and `cutlayer discard`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cutlayer.cli.command import Part, settings_command
from cutlayer.cli.files import UNSAFE, check_columns, check_kind, check_not_input, rows_file
from cutlayer.cli.options import AdapterId, AsJson, Connection, Customer, TableFiles, TrainingFiles, warn_unprotected
from cutlayer.cli.output import Output, fields, percent
from cutlayer.customer.columns import DataSpec
from cutlayer.customer.settings import FinetuneSpec, LabelsAt, Objective

LABEL, PROBABILITY = "predicted_label", "probability"
"""Columns that `predict` adds."""

if TYPE_CHECKING:
    from cutlayer.core import Proportion
    from cutlayer.customer import FinetuneResult, LanguageResult
    from cutlayer.data import Dataset


SAMPLE = "sample"
"""The embedded corpus, as public text."""


@settings_command
def finetune(
    files: TrainingFiles,
    columns: Annotated[dict[str, Any], Part(DataSpec)],
    customer: Customer,
    settings: Annotated[dict[str, Any], Part(FinetuneSpec)],
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            help="With --labels-at vendor: end once all texts are there. Without it the command fetches the result.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fine-tune the vendor's model on your texts.

    Texts are privatized here before they leave. Labels leave in no frame, but with --labels-at vendor; the vendor reads
    nearly all of them from gradients nevertheless (97 to 100 % where measured), unless --label-epsilon draws them
    first; the result says how many. Interrupt it, run it again, and it goes on.
    """
    from cutlayer.customer import Detached, FinetuneResult
    from cutlayer.customer.run import Run

    output = Output(as_json=as_json)
    privacy = settings["privacy"]
    warn_unprotected(output, eta=privacy.eta, noise=privacy.noise, unsafe_noise_seed=settings.get("unsafe_noise_seed"))
    client = customer.client()
    finished = files.out is not None and Run.is_finished(files.out)
    given: dict[str, Any] = {**columns, **settings}
    begun: Detached | FinetuneResult | LanguageResult
    with output.progress() as progress:
        if detach:
            if files.public_first is not None:
                raise typer.BadParameter("is not for classifiers", param_hint="--public-first")
            begun = client.begin(files.train, dev=files.dev, test=files.test, out=files.out, progress=progress, **given)
        else:
            begun = client.finetune(
                files.train,
                dev=files.dev,
                test=files.test,
                public_first=_public(files.public_first, settings),
                out=files.out,
                progress=progress,
                **given,
            )
    if isinstance(begun, Detached):
        output.show(f"Job {begun.job} goes on at the vendor: `cutlayer job watch {begun.job}`.")
        output.show("The same command without --detach fetches the result.")
        output.result(begun.model_dump(mode="json"))
        return
    if isinstance(begun, FinetuneResult):
        for line in begun.advice:
            output.warn(line)
    _show(output, begun, again=files.out if finished else None)
    output.result(fields(begun))


@settings_command
def predict(
    adapter: AdapterId,
    files: TableFiles,
    columns: Annotated[dict[str, Any], Part(DataSpec, ("text_column", "text_pair_column"))],
    customer: Customer,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep",
            metavar="NAME",
            help="Another column to copy to the output, an identifier for example; may be repeated. It is not sent.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Label texts with an adapter, privatized in the way it was trained."""
    check_kind(files.output)
    read = DataSpec(**columns)
    names = [name for name in (read.text_column, read.text_pair_column) if name]
    added = (LABEL, PROBABILITY, UNSAFE)
    kept = list(dict.fromkeys(keep or ()))
    check_columns({"--text-column": names[:1], "--text-pair-column": names[1:]}, added)
    check_columns({"--keep": kept}, (*names, *added))
    check_not_input(files.input, files.output)
    from cutlayer.customer.profile import Profile
    from cutlayer.data import read_dataset

    output = Output(as_json=as_json)
    client = customer.client()
    spec = Profile.load(client.home, adapter).spec
    warn_unprotected(output, eta=spec.privacy.eta, noise=spec.privacy.noise, unsafe_noise_seed=spec.unsafe_noise_seed)
    texts = read_dataset(
        files.input, text_column=read.text_column, text_pair_column=read.text_pair_column, copied_columns=kept
    )
    with rows_file(files.output) as write:
        with output.progress() as progress:
            predictions = client.predict(adapter, texts, progress=progress)
        table: dict[str, Sequence[object]] = dict(texts.attributes)
        table |= dict(zip(names, zip(*texts.texts, strict=True), strict=True))
        table[LABEL] = [prediction.label for prediction in predictions]
        table[PROBABILITY] = [prediction.probability for prediction in predictions]
        if spec.unsafe_noise_seed is not None:
            table[UNSAFE] = [spec.unsafe_noise_seed] * len(predictions)
        write(list(table), zip(*table.values(), strict=True))
    output.show(f"Labelled {len(predictions)} texts: {files.output}")
    output.result(
        {
            "adapter_id": adapter,
            "output": str(files.output),
            "n": len(predictions),
            "eta": spec.privacy.eta,
            "no_privacy": math.isinf(spec.privacy.eta),
            "unsafe_noise": spec.unsafe_noise_seed is not None,
        }
    )


@settings_command(config=False)
def discard(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The run's folder, as --out named it.")],
    connection: Connection,
    as_json: AsJson = False,
) -> None:
    """Give up an unfinished run: its job and records at the vendor go, and what it wrote here.

    Other files in its folder stay. What was released stays in the ledger, and stays charged.
    """
    output = Output(as_json=as_json)
    connection.client().discard(folder)
    output.show(f"The run in {folder} is given up.")
    output.result({"folder": str(folder)})


def register(app: typer.Typer) -> None:
    """Adds the commands to the main app."""
    app.command(
        epilog="Example: cutlayer finetune --train notes.csv --test held_out.csv --label-column ward "
        "--vendor https://vendor.example:8377 --eta 80; or a language model: cutlayer finetune --objective lm "
        "--model starter-decoder --train mail.csv --text-column body --eta 49 --bottom 1 --tail 0"
    )(finetune)
    app.command(epilog="Example: cutlayer discard runs/ward-80 --vendor https://vendor.example:8377")(discard)
    app.command(
        epilog="Example: cutlayer predict --adapter 0f3c… --input new.csv --output labelled.csv "
        "--vendor https://vendor.example:8377"
    )(predict)


def _share(value: float | None, standard_error: float | None, n: int) -> str:
    if value is None:
        return "-"
    from cutlayer.core.proportion import in_percent

    return f"{in_percent(value, standard_error or 0, max(1, n), digits=2, unit=' %')} (n = {n})"


def classifier_rows(result: FinetuneResult) -> list[tuple[str, object]]:
    """What a classifier's run found, for people."""
    sent = result.spec.labels_at is LabelsAt.VENDOR
    return [
        ("utility accuracy", f"{_share(result.ua, result.ua_standard_error, result.ua_n)} on {result.ua_on}"),
        ("always the most frequent label", percent(result.majority_baseline)),
        (f"labels {'sent to the vendor' if sent else 'readable from gradients'}", percent(result.label_recovery)),
        ("guarantee of labels", _label_promise(result)),
    ]


def _label_promise(result: FinetuneResult) -> str:
    """What is promised of labels, in a few words."""
    claim = result.label_guarantee
    if not math.isfinite(claim.budget) or result.label_keep is None:
        return f"{claim.claim}"
    kept = f"this run's reports are the true labels with probability {100 * result.label_keep:.1f} %"
    return f"{claim.claim}, epsilon {claim.budget:g} per {claim.per}; {kept}"


def language_rows(result: LanguageResult) -> list[tuple[str, object]]:
    """What a language model's run found, for people."""
    error = "" if result.perplexity_standard_error is None else f" ± {result.perplexity_standard_error:.2f}"
    return [
        (
            "perplexity",
            f"{result.perplexity:.2f}{error} per token on {result.perplexity_on} (n = {result.perplexity_n} tokens)",
        ),
        ("read from gradients", _read(result.token_recovery_first_steps, result.token_recovery_first_steps_note)),
        ("the same in the last steps", _read(result.token_recovery_last_steps, result.token_recovery_last_steps_note)),
        ("read from answers", _read(result.token_recovery_from_answers, result.token_recovery_from_answers_note)),
        ("read from rows below", _read(result.token_recovery_from_boundary, result.token_recovery_from_boundary_note)),
        *(
            [("the same without blocks below", f"{result.token_recovery_without_blocks} of tokens, by a table lookup")]
            if result.token_recovery_without_blocks is not None
            else []
        ),
        *([] if result.dev_before is None else [("dev perplexity before", f"{result.dev_before:.2f}")]),
        ("dev perplexity by epoch", ", ".join(f"{value:.2f}" for value in result.dev)),
    ]


def _read(share: Proportion | None, note: str) -> str:
    """How many tokens the vendor reads, or why that was not measured."""
    return f"- ({note})" if share is None else f"{share} of tokens, by the vendor"


def _show(output: Output, result: FinetuneResult | LanguageResult, *, again: Path | None) -> None:
    """A run's result for people.

    Args:
        output: Where to.
        result: The result.
        again: The folder of a run that was finished before.
    """
    if again is not None:
        output.say(f"{again} holds this run, finished; this is its result again. Another --out begins anew.")
    from cutlayer.customer import FinetuneResult
    from cutlayer.privacy import WorstCase

    caveats, advice = result.guarantee.caveats, result.advice
    if isinstance(result, FinetuneResult):  # whose advice was a warning
        own, caveats, advice = classifier_rows(result), (*caveats, *result.label_guarantee.caveats), ()
    else:
        own = language_rows(result)
    claim = result.guarantee
    words = result.spec.privacy.mechanism == "words"
    clear = ", ".join(f"{kind} {count}" for kind, count in result.clear_words.items())
    rows: list[tuple[str, object]] = [
        ("adapter", result.adapter_id),
        *own,
        ("empirical privacy", _share(result.ep, result.ep_standard_error, result.ep_n)),
        ("words replaced" if words else "tokens replaced", percent(result.replaced)),
        *([("words in clear", clear or "none")] if words else []),
        ("guarantee", claim),
        ("words released" if words else "tokens released", result.tokens_released),
        ("sent", ", ".join(f"{name} {size}" for name, size in result.uplink_bytes.items()) + " bytes"),
        ("received", f"{result.downlink_bytes} bytes"),
        ("epochs", f"{result.epochs}, the best was {result.best_epoch}"),
        ("time", f"{result.seconds:.0f} s"),
    ]
    output.facts("Fine-tuned", rows)
    worst = "" if result.largest_distance is None else WorstCase(eta=claim.budget, distance=result.largest_distance)
    looks = "" if result.looks == 1 else f"Up to {result.looks} looks at one text, whose etas add up."
    for line in (result.ep_note, looks, worst, *caveats):
        if line:
            output.show(f"- {line}")
    output.show(
        f"At {len(result.deviations)} points the method fills in or differs from the papers: --json lists each with "
        "its reason under `deviations`; the pages in docs/papers explain them."
    )
    output.show(f"The run's folder, with the transcript: {result.folder}")
    for line in advice:
        output.show(f"- {line}")


def _public(source: str | None, settings: Mapping[str, Any]) -> str | Dataset | None:
    """The public text that was asked for: a file with the private one's columns, or the embedded sample."""
    if source not in (None, SAMPLE) or (source is None and not settings.get("public_iterations")):
        return source
    if settings.get("objective") == Objective.SEQ2SEQ:
        raise typer.BadParameter(
            "the embedded sample has single texts, and an encoder-decoder is trained on pairs. "
            "Give a file of public pairs with the columns of --train",
            param_hint="--public-first",
        )
    from cutlayer.data import read_dataset, sample_path

    return read_dataset(sample_path("train"), text_column="text")
