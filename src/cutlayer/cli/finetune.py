"""`cutlayer finetune`, `cutlayer predict` and `cutlayer discard`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cutlayer.cli.files import UNSAFE, check_columns, check_kind, check_not_input, rows_file
from cutlayer.cli.options import (
    CUT,
    DATA,
    DATA_HELP,
    OWN_NOISE,
    OWN_WINDOW,
    PRIVACY,
    TRAINING,
    ApiKey,
    AsJson,
    CaCertificate,
    Device,
    Eta,
    Home,
    Noise,
    NoiseWindow,
    TextColumn,
    TextPairColumn,
    UnsafeNoiseSeed,
    Vendor,
    named_values,
    parse_depth,
    parse_window,
    require_eta,
    warn_unprotected,
)
from cutlayer.cli.output import Output, fields, percent

FEW = 30
"""Texts of dev below which a warning is due: their accuracy has a standard error of up to 9 points."""

LABEL, PROBABILITY = "predicted_label", "probability"
"""Columns that `predict` adds."""

if TYPE_CHECKING:
    from cutlayer.core import Proportion
    from cutlayer.customer import FinetuneResult, LanguageResult, RunResult
    from cutlayer.data import Dataset
    from cutlayer.privacy import CtiSpec


def finetune(
    train: Annotated[
        str, typer.Option("--train", metavar="FILE", help=DATA_HELP, show_default=False, rich_help_panel=DATA)
    ],
    dev: Annotated[
        str | None,
        typer.Option(
            "--dev",
            metavar="FILE",
            help="For early stopping. Default: a share of train.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            "--test",
            metavar="FILE",
            help="For the accuracy reported. Default: dev.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    text_column: TextColumn = "text",
    text_pair_column: TextPairColumn = None,
    label_column: Annotated[
        str,
        typer.Option("--label-column", metavar="NAME", help="The column that holds the label.", rich_help_panel=DATA),
    ] = "label",
    target_column: Annotated[
        str | None,
        typer.Option(
            "--target-column",
            metavar="NAME",
            help="Encoder-decoders: the column of the text to be written. Default: target.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    objective: Annotated[
        Literal["classification", "lm", "seq2seq"],
        typer.Option(
            help="What is learnt: a label per text, (lm) to continue texts, or (seq2seq) to write a target text for "
            "each; of the latter two the head is yours.",
            rich_help_panel=TRAINING,
        ),
    ] = "classification",
    vendor: Vendor = None,
    api_key: ApiKey = None,
    ca_cert: CaCertificate = None,
    eta: Eta = None,
    noise: Noise = OWN_NOISE,
    noise_window: NoiseWindow = OWN_WINDOW,
    cti: Annotated[
        bool,
        typer.Option(
            "--cti", help="Less noise on tokens that tell classes apart. No finite guarantee.", rich_help_panel=PRIVACY
        ),
    ] = False,
    cti_class_free: Annotated[
        bool,
        typer.Option(
            "--cti-class-free",
            help="CTI whose noise does not depend on a text's own label.",
            rich_help_panel=PRIVACY,
        ),
    ] = False,
    cti_option: Annotated[
        list[str] | None,
        typer.Option(
            "--cti-option",
            metavar="NAME=VALUE",
            help="One of CTI's other choices; may be repeated. Defaults: frequency=tokens (or texts), smoothing=1, "
            "c0=(max + min) / 2 of all scores (or a number), pair=both (or first, second), unlabelled=max (or mean).",
            show_default=False,
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    mechanism: Annotated[
        Literal["text-to-text", "vector"] | None,
        typer.Option(
            help="text-to-text: token ids leave. vector: noisy rows leave. Default: text-to-text.",
            show_default=False,
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    place: Annotated[
        Literal["tokens", "activations"],
        typer.Option(help="Noise on the tokens, or on the bottom's output.", rich_help_panel=PRIVACY),
    ] = "tokens",
    bottom: Annotated[
        str | None,
        typer.Option(
            metavar="K|text",
            help="Blocks on your side. 0: the embedding table alone; text: no weights at all (eta inf only). "
            "Default: 0, of a language model 1.",
            show_default=False,
            rich_help_panel=CUT,
        ),
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=0,
            help="Language models: blocks below the head on your side. 0: final norm and head alone. Default: 0.",
            show_default=False,
            rich_help_panel=CUT,
        ),
    ] = None,
    target_bottom: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=0,
            help="Encoder-decoders: the decoder's first blocks on your side; with 0 a table lookup reads every target "
            "token. Default: 1.",
            show_default=False,
            rich_help_panel=CUT,
        ),
    ] = None,
    train_bottom: Annotated[
        Literal["frozen", "redraw", "memoised"] | None,
        typer.Option(
            help="redraw: a fresh, charged release each epoch. memoised: one release of the tokens. "
            "Default: frozen, of a language model memoised where it can be.",
            show_default=False,
            rich_help_panel=CUT,
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="ETA",
            help="Most eta that one text may be charged over all its releases.",
            show_default=False,
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    label_epsilon: Annotated[
        float | None,
        typer.Option(
            metavar="EPSILON",
            help="Classifiers: randomised response of training labels, drawn once per text. Smaller hides more. "
            "Default: none, and gradients show the labels.",
            show_default=False,
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    label_budget: Annotated[
        float | None,
        typer.Option(
            metavar="EPSILON",
            help="Most epsilon that one label may be charged over all its draws.",
            show_default=False,
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    public_first: Annotated[
        str | None,
        typer.Option(
            "--public-first",
            metavar="FILE|sample",
            help="Language models: begin with public text, before any private text leaves: a file with the columns of "
            "--train, or `sample`, the embedded corpus. Measured, it hides little: see docs/papers/unsplit.md.",
            show_default=False,
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    public_iterations: Annotated[
        int | None,
        typer.Option(
            "--public-iterations",
            min=1,
            help="Steps on public text, a multiple of --accumulation; alone it means `--public-first sample`. "
            "Default: 1.",
            show_default=False,
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="One of the vendor's models. Default: the vendor's.",
            show_default=False,
            rich_help_panel=CUT,
        ),
    ] = None,
    method: Annotated[
        Literal["lora", "full"],
        typer.Option(
            help="Low-rank adapters, or (language models) all weights of both sides.", rich_help_panel=TRAINING
        ),
    ] = "lora",
    epochs: Annotated[
        int, typer.Option(help="Epochs at most; early stopping may end sooner.", rich_help_panel=TRAINING)
    ] = 5,
    patience: Annotated[
        int, typer.Option(help="Epochs without a better dev value before stopping.", rich_help_panel=TRAINING)
    ] = 2,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Texts per step. Default: 32, of a language model 4 blocks.",
            show_default=False,
            rich_help_panel=TRAINING,
        ),
    ] = None,
    accumulation: Annotated[
        int, typer.Option(help="Steps whose gradients are added up before an update.", rich_help_panel=TRAINING)
    ] = 1,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="AdamW's first rate, falling linearly to zero. Default: 3e-4; of a language model 2e-4, "
            "with --method full 5e-6.",
            show_default=False,
            rich_help_panel=TRAINING,
        ),
    ] = None,
    clip_norm: Annotated[
        float | None,
        typer.Option(
            metavar="NORM",
            help="Largest norm of both sides' gradients together; each side tells the other one number an update. "
            "Default: none.",
            show_default=False,
            rich_help_panel=TRAINING,
        ),
    ] = None,
    weight_decay: Annotated[float, typer.Option(help="AdamW's weight decay.", rich_help_panel=TRAINING)] = 0.01,
    rank: Annotated[int, typer.Option(help="LoRA's rank.", rich_help_panel=TRAINING)] = 8,
    alpha: Annotated[float, typer.Option(help="LoRA's scale, times 1/rank.", rich_help_panel=TRAINING)] = 16,
    lora_dropout: Annotated[
        float, typer.Option(help="Dropout before LoRA's first matrix.", rich_help_panel=TRAINING)
    ] = 0,
    targets: Annotated[
        Literal["query-value", "all-linear"],
        typer.Option(help="Which linear maps LoRA adapts.", rich_help_panel=TRAINING),
    ] = "query-value",
    dropout: Annotated[
        bool | None,
        typer.Option(
            "--dropout/--no-dropout",
            help="The blocks' own dropout while training. Default: on, but of encoder-decoders off.",
            show_default=False,
            rich_help_panel=TRAINING,
        ),
    ] = None,
    dev_share: Annotated[
        float, typer.Option(help="Share of train held out where there is no --dev.", rich_help_panel=TRAINING)
    ] = 0.01,
    max_length: Annotated[
        int | None,
        typer.Option(
            "--max-length",
            "--block-length",
            help="Tokens per text, special tokens included; of a language model per block. Default: the model's limit, "
            "of a block at most 1024.",
            show_default=False,
            rich_help_panel=TRAINING,
        ),
    ] = None,
    max_target_length: Annotated[
        int | None,
        typer.Option(
            help="Encoder-decoders: tokens per target text. Default: as --max-length.",
            show_default=False,
            rich_help_panel=TRAINING,
        ),
    ] = None,
    packing: Annotated[
        bool | None,
        typer.Option(
            "--packing/--no-packing",
            help="Language models: join texts and cut them into blocks (default), or keep each text by itself.",
            show_default=False,
            rich_help_panel=TRAINING,
        ),
    ] = None,
    group_by_length: Annotated[
        bool, typer.Option(help="Batches of texts of about one length: less padding.", rich_help_panel=TRAINING)
    ] = True,
    precision: Annotated[
        Literal["fp32", "bf16"],
        typer.Option(
            help="Of the vendor's training. bf16: faster where its device multiplies bf16.", rich_help_panel=TRAINING
        ),
    ] = "fp32",
    gradient_checkpointing: Annotated[
        bool,
        typer.Option(
            "--gradient-checkpointing",
            help="Compute blocks again in the backward pass, on both sides: less memory, more time.",
            rich_help_panel=TRAINING,
        ),
    ] = False,
    wire_type: Annotated[
        Literal["bf16", "fp32"], typer.Option(help="Element type of boundary rows on the wire.", rich_help_panel=CUT)
    ] = "bf16",
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Repeats data order, initialisation, dropout; never noise.",
            show_default=False,
            rich_help_panel=TRAINING,
        ),
    ] = None,
    unsafe_noise_seed: UnsafeNoiseSeed = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The run's folder; a stopped run in it goes on, a finished one is shown again.",
            show_default=False,
        ),
    ] = None,
    home: Home = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Fine-tune the vendor's model on your texts.

    Texts are privatized here before they leave. Labels have no field in any frame, but the vendor reads nearly all of
    them from gradients (97 to 100 % where it was measured), unless --label-epsilon draws them first; the result says
    how many. Interrupt it, run it again, and it goes on.
    """
    chosen = require_eta(eta)
    language = objective != "classification"
    depth = parse_depth(bottom or ("1" if language else "0"))
    choices = _choices(cti_option or (), cti=cti or cti_class_free)
    from cutlayer import core, customer, wire
    from cutlayer.customer.run import Run

    output = Output(as_json=as_json)
    warn_unprotected(output, eta=chosen, noise=noise, unsafe_noise_seed=unsafe_noise_seed)
    given: dict[str, Any] = {"batch_size": batch_size, "learning_rate": learning_rate, "dropout": dropout}
    own = {name: value for name, value in given.items() if value is not None}
    if language and packing is not None:
        own |= {"packing": packing}
    with core.checked():
        settings = {"lm": customer.TrainSpec.language, "seq2seq": customer.TrainSpec.seq2seq}
        training = settings.get(objective, customer.TrainSpec)(
            method=customer.Method(method),
            epochs=epochs,
            patience=patience,
            accumulation=accumulation,
            clip_norm=clip_norm,
            gradient_checkpointing=gradient_checkpointing,
            weight_decay=weight_decay,
            rank=rank,
            alpha=alpha,
            lora_dropout=lora_dropout,
            targets=targets,
            dev_share=dev_share,
            max_length=max_length,
            max_target_length=max_target_length,
            group_by_length=group_by_length,
            precision=wire.Precision(precision),
            **own,
        )
    client = customer.Client(vendor, api_key, home=home, ca_cert=ca_cert, device=device)
    finished = out is not None and Run.is_finished(out)
    common: dict[str, Any] = {
        "eta": chosen,
        "noise": noise,
        "noise_window": parse_window(noise_window),
        "text_column": text_column,
        "dev": dev,
        "test": test,
        "mechanism": mechanism,
        "place": core.Place(place),
        "bottom": depth,
        "model": model,
        "wire_type": wire.WireType(wire_type),
        "training": training,
        "budget": budget,
        "seed": seed,
        "unsafe_noise_seed": unsafe_noise_seed,
        "out": out,
    }
    seq2seq = {
        "--target-column": target_column,
        "--target-bottom": target_bottom,
        "--max-target-length": max_target_length,
    }
    if objective != "seq2seq":
        _check_left_out(seq2seq, "encoder-decoders", "seq2seq")
    if language:
        _check_language_options(
            cti=cti or cti_class_free,
            pair=text_pair_column,
            labels={"--label-epsilon": label_epsilon, "--label-budget": label_budget},
        )
        common |= {
            "tail": tail or 0,
            "train_bottom": None if train_bottom is None else customer.TrainBottom(train_bottom),
            "public_first": _public(public_first, public_iterations, pairs=objective == "seq2seq"),
            "public_iterations": public_iterations or 1,
        }
        with output.progress() as progress:
            if objective == "lm":
                told = client.finetune_language_model(train, progress=progress, **common)
            else:
                if common.pop("place") is not core.Place.TOKENS:
                    raise typer.BadParameter(
                        "rows of target texts change with each step. Use tokens", param_hint="--place"
                    )
                if depth is None:
                    raise typer.BadParameter(
                        "an encoder-decoder needs weights on your side. Use 0 or more", param_hint="--bottom"
                    )
                told = client.finetune_seq2seq(
                    train,
                    target_column=target_column or "target",
                    target_bottom=1 if target_bottom is None else target_bottom,
                    progress=progress,
                    **common,
                )
        _show(output, told, language_rows(told), again=out if finished else None)
        for line in told.advice:
            output.show(f"- {line}")
        output.result(fields(told))
        return
    generating = {
        "--tail": tail,
        "--public-first": public_first,
        "--public-iterations": public_iterations,
        "--packing" if packing else "--no-packing": packing,
    }
    _check_left_out(generating, "language models", "lm")
    with output.progress() as progress:
        result = client.finetune(
            train,
            text_pair_column=text_pair_column,
            label_column=label_column,
            cti=_cti_spec(choices) if choices else cti,
            cti_class_free=cti_class_free,
            train_bottom=customer.TrainBottom(train_bottom or "frozen"),
            label_epsilon=label_epsilon,
            label_budget=label_budget,
            progress=progress,
            **common,
        )
    if result.n_dev < FEW:
        output.warn(
            f"{result.n_dev} texts of dev chose the epoch, which is close to chance. "
            "Give --dev, or a larger --dev-share."
        )
    for line in result.advice:
        output.warn(line)
    caveats = result.label_guarantee.caveats
    _show(output, result, classifier_rows(result), labels=caveats, again=out if finished else None)
    output.result(fields(result))


def predict(
    adapter: Annotated[str, typer.Option("--adapter", metavar="ID", help="The adapter to ask.", show_default=False)],
    input_file: Annotated[str, typer.Option("--input", metavar="FILE", help=DATA_HELP, show_default=False)],
    output_file: Annotated[
        Path,
        typer.Option(
            "--output", metavar="FILE", help="Texts, labels, probabilities: .csv, .tsv, .jsonl.", show_default=False
        ),
    ],
    text_column: TextColumn = "text",
    text_pair_column: TextPairColumn = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep",
            metavar="NAME",
            help="Another column to copy to the output, an identifier for example; may be repeated. It is not sent.",
            show_default=False,
        ),
    ] = None,
    vendor: Vendor = None,
    api_key: ApiKey = None,
    ca_cert: CaCertificate = None,
    home: Home = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Label texts with an adapter, privatized in the way it was trained."""
    check_kind(output_file)
    names = [text_column, *([text_pair_column] if text_pair_column else [])]
    added = (LABEL, PROBABILITY, UNSAFE)
    kept = list(dict.fromkeys(keep or ()))
    check_columns({"--text-column": [text_column], "--text-pair-column": names[1:]}, added)
    check_columns({"--keep": kept}, (*names, *added))
    check_not_input(input_file, output_file)
    from cutlayer.customer import Client
    from cutlayer.customer.profile import Profile
    from cutlayer.data import read_dataset

    output = Output(as_json=as_json)
    client = Client(vendor, api_key, home=home, ca_cert=ca_cert, device=device)
    spec = Profile.load(client.home, adapter).spec
    warn_unprotected(output, eta=spec.privacy.eta, noise=spec.privacy.noise, unsafe_noise_seed=spec.unsafe_noise_seed)
    texts = read_dataset(input_file, text_column=text_column, text_pair_column=text_pair_column, copied_columns=kept)
    with rows_file(output_file) as write:
        with output.progress() as progress:
            predictions = client.predict(adapter, texts, progress=progress)
        columns: dict[str, Sequence[object]] = dict(texts.attributes)
        columns |= dict(zip(names, zip(*texts.texts, strict=True), strict=True))
        columns[LABEL] = [prediction.label for prediction in predictions]
        columns[PROBABILITY] = [prediction.probability for prediction in predictions]
        if spec.unsafe_noise_seed is not None:
            columns[UNSAFE] = [spec.unsafe_noise_seed] * len(predictions)
        write(list(columns), zip(*columns.values(), strict=True))
    output.show(f"Labelled {len(predictions)} texts: {output_file}")
    output.result(
        {
            "adapter_id": adapter,
            "output": str(output_file),
            "n": len(predictions),
            "eta": spec.privacy.eta,
            "no_privacy": math.isinf(spec.privacy.eta),
            "unsafe_noise": spec.unsafe_noise_seed is not None,
        }
    )


def discard(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The run's folder, as --out named it.")],
    vendor: Vendor = None,
    api_key: ApiKey = None,
    ca_cert: CaCertificate = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Give up an unfinished run: its job and records at the vendor go, and what it wrote here.

    Other files in its folder stay. What was released stays in the ledger, and stays charged.
    """
    from cutlayer.customer import Client

    output = Output(as_json=as_json)
    Client(vendor, api_key, home=home, ca_cert=ca_cert).discard(folder)
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
    return [
        ("utility accuracy", f"{_share(result.ua, result.ua_standard_error, result.ua_n)} on {result.ua_on}"),
        ("always the most frequent label", percent(result.majority_baseline)),
        ("labels readable from gradients", percent(result.label_recovery)),
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
        ("dev perplexity before", f"{result.dev_before:.2f}"),
        ("dev perplexity by epoch", ", ".join(f"{value:.2f}" for value in result.dev)),
    ]


def _read(share: Proportion | None, note: str) -> str:
    """How many tokens the vendor reads, or why that was not measured."""
    return f"- ({note})" if share is None else f"{share} of tokens, by the vendor"


def _show(
    output: Output,
    result: RunResult,
    own: list[tuple[str, object]],
    *,
    labels: Sequence[str] = (),
    again: Path | None,
) -> None:
    """A run's result for people.

    Args:
        output: Where to.
        result: The result.
        own: What runs of its objective tell beside it.
        labels: What the guarantee of labels does not cover.
        again: The folder of a run that was finished before.
    """
    if again is not None:
        output.say(f"{again} holds this run, finished; this is its result again. Another --out begins anew.")
    claim = result.guarantee
    rows: list[tuple[str, object]] = [
        ("adapter", result.adapter_id),
        *own,
        ("empirical privacy", _share(result.ep, result.ep_standard_error, result.ep_n)),
        ("tokens replaced", percent(result.replaced)),
        ("guarantee", claim),
        ("tokens released", result.tokens_released),
        ("sent", ", ".join(f"{name} {size}" for name, size in result.uplink_bytes.items()) + " bytes"),
        ("received", f"{result.downlink_bytes} bytes"),
        ("epochs", f"{result.epochs}, the best was {result.best_epoch}"),
        ("time", f"{result.seconds:.0f} s"),
    ]
    output.facts("Fine-tuned", rows)
    from cutlayer.privacy import WorstCase

    worst = "" if result.largest_distance is None else WorstCase(eta=claim.budget, distance=result.largest_distance)
    looks = "" if result.looks == 1 else f"Up to {result.looks} looks at one text, whose etas add up."
    for line in (result.ep_note, looks, worst, *claim.caveats, *labels):
        if line:
            output.show(f"- {line}")
    output.show(
        f"{len(result.deviations)} settings fill in or differ from the paper: --json lists each with its reason "
        "under `deviations`; the pages in docs/papers explain them."
    )
    output.show(f"The run's folder, with the transcript: {result.folder}")


def _public(source: str | None, iterations: int | None, *, pairs: bool) -> str | Dataset | None:
    """The public text that was asked for: a file with the private one's columns, or the embedded sample."""
    if source is None and iterations is None:
        return None
    if source not in (None, "sample"):
        return source
    if pairs:
        raise typer.BadParameter(
            "the embedded sample has single texts, and an encoder-decoder is trained on pairs. "
            "Give a file of public pairs with the columns of --train",
            param_hint="--public-first",
        )
    from cutlayer.data import read_dataset, sample_path

    return read_dataset(sample_path("train"), text_column="text")


def _check_left_out(options: Mapping[str, object], whose: str, objective: str) -> None:
    for option, value in options.items():
        if value is not None:
            raise typer.BadParameter(
                f"it is for {whose}. Leave it out, or add --objective {objective}", param_hint=option
            )


def _check_language_options(*, cti: bool, pair: str | None, labels: Mapping[str, object]) -> None:
    for option, value in labels.items():
        if value is not None:
            raise typer.BadParameter(
                "a language model's labels are its text, which leaves as --eta says. Leave it out", param_hint=option
            )
    if cti:
        raise typer.BadParameter(
            "contributing tokens are found by class labels, and a language model has none. Leave it out",
            param_hint="--cti",
        )
    if pair is not None:
        raise typer.BadParameter(
            "a language model is trained on single texts, an encoder-decoder's second text is --target-column. "
            "Leave it out",
            param_hint="--text-pair-column",
        )


def _choices(options: Sequence[str], *, cti: bool) -> dict[str, str]:
    """CTI's choices by name, as they were typed."""
    if options and not cti:
        raise typer.BadParameter(
            f"{options[0]} means nothing without CTI. Add --cti or --cti-class-free", param_hint="--cti-option"
        )
    return named_values(options, "--cti-option")


def _cti_spec(choices: dict[str, str]) -> CtiSpec:
    from cutlayer.core import ConfigError, Fault
    from cutlayer.privacy import CtiSpec

    option = "--cti-option "

    # class_free has a switch of its own, and the two could contradict each other
    known = [name for name in CtiSpec.model_fields if name != "class_free"]
    unknown = [
        Fault(option + name, value, f"the name must be one of {', '.join(known)}")
        for name, value in choices.items()
        if name not in known
    ]
    if unknown:
        raise ConfigError(unknown)
    try:
        return CtiSpec.model_validate(choices)
    except ConfigError as error:
        typed = [dataclasses.replace(fault, path=option + fault.path.removeprefix("cti.")) for fault in error.faults]
        raise ConfigError(typed) from None
