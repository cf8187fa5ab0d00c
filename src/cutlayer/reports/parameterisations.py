"""What an eta is called elsewhere: the parameters of papers and public tools beside cutlayer's.

Tools that name the same mechanism draw noise that differs by more than ten times for the same
number, so two things are converted, and they need not agree. *Noise of the same size*: the root
mean square norm √E‖n‖², which has a closed form for every tool that adds noise; of d_chi noise it is
√(width (width + 1)) / eta. *The same promise*: the largest privacy loss for two rows at Euclidean
distance 1, as it follows from what the tool really draws, whatever it says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cutlayer.core import ConfigError, Fault, Registry
from cutlayer.reports.schema import Part

PerWidth = Callable[[int], float]


@dataclass(frozen=True)
class Parameterisation:
    """How a paper or a public tool privatizes a row, and what it calls its parameter.

    Attributes:
        tool: The tool, and what in it.
        parameter: What it calls its parameter.
        draws: What it really draws.
        promises: What follows from that.
        reference: Where it was read.
        size: √E‖n‖² at parameter 1, for a width; `None` where no noise is added to rows.
        loss: The most privacy loss at Euclidean distance 1 and parameter 1, for a width; `None` where no multiple of
            a distance bounds it.
        grows: Whether noise grows with the parameter, as with a standard deviation; else it shrinks.
    """

    tool: str
    parameter: str
    draws: str
    promises: str
    reference: str
    size: PerWidth | None = None
    loss: PerWidth | None = None
    grows: bool = False


class Equivalent(Part):
    """A tool's parameter beside an eta.

    Attributes:
        name: The tool, as commands call it.
        tool: The tool, and what in it.
        parameter: What it calls its parameter.
        same_noise: The parameter's value for noise of the same size; `None` where the tool adds none.
        same_promise: The parameter's value for the same privacy loss; `None` where the tool has no such promise.
        times: How many times as long the tool's noise is where its parameter has the number that eta has.
        draws: What it really draws.
        promises: What follows from that.
        reference: Where it was read.
    """

    name: str
    tool: str
    parameter: str
    same_noise: float | None
    same_promise: float | None
    times: float | None
    draws: str
    promises: str
    reference: str


class Conversion(Part):
    """One eta in everybody's parameters.

    Attributes:
        eta: Cutlayer's, for d_chi noise.
        width: Coordinates of a row.
        mean_norm: E‖n‖ = width / eta.
        rms_norm: √E‖n‖², by which sizes are compared.
        tools: The others' parameters.
    """

    eta: float
    width: int
    mean_norm: float
    rms_norm: float
    tools: tuple[Equivalent, ...]


class Etas(Part):
    """The etas of d_chi noise that a tool's parameter stands for.

    Attributes:
        name: The tool, as commands call it.
        tool: The tool, and what in it.
        parameter: What it calls its parameter.
        value: The parameter's value.
        width: Coordinates of a row.
        same_noise: The eta of noise of the same size; `None` where the tool adds none.
        same_promise: The eta of the same privacy loss; `None` where the tool has no such promise.
        draws: What it really draws.
        promises: What follows from that.
        reference: Where it was read.
    """

    name: str
    tool: str
    parameter: str
    value: float
    width: int
    same_noise: float | None
    same_promise: float | None
    draws: str
    promises: str
    reference: str


def _dchi(width: int) -> float:
    return math.sqrt(width * (width + 1))


def _one(_: int) -> float:
    return 1.0


PARAMETERISATIONS: Final[Registry[Parameterisation]] = Registry("tool")
"""By the name that commands take."""

_DCHI = "d_chi noise: density ∝ exp(-eta ‖n‖)"
for _name, _tool, _reference in (
    ("sap", "SAP, the paper, without CTI", "SAP §4.3, eq. (3), arXiv:2312.15603"),
    ("rapt", "RAPT, the paper, for the words that it privatizes", "RAPT §III-A1, eq. (1)-(3), arXiv:2305.06212"),
    ("snd", "SnD, the paper", "SnD §3.3, Theorem 1 and Lemma 1, arXiv:2310.09130; its clipping is post-processing"),
):
    PARAMETERISATIONS.add(_name)(
        Parameterisation(
            tool=_tool,
            parameter="eta",
            draws=_DCHI,
            promises="eta times the Euclidean distance",
            reference=_reference,
            size=_dchi,
            loss=_one,
        )
    )
PARAMETERISATIONS.add("snd-code")(
    Parameterisation(
        tool="SnD's released code and VFLAIR-LLM, sample_noise_Chi",
        parameter="eta",
        draws="for each coordinate a Gamma(width, 1 / eta) radius of its own, times a uniform number in (-1, 1)",
        promises="eta times the L1 distance: √width times as much in Euclidean distances",
        reference="github.com/NusIoraPrivacy/eaas-privacy, data/load_data.py; "
        "github.com/FLAIR-THU/VFLAIR-LLM, src/utils/snd_utils.py",
        size=lambda width: _dchi(width) * math.sqrt(width / 3),
        loss=math.sqrt,
    )
)
PARAMETERISATIONS.add("snd-gaussian")(
    Parameterisation(
        tool="SnD's released code, sample_noise_Gaussian",
        parameter="noise_stddev",
        draws="independent normal coordinates",
        promises="no multiple of a distance",
        reference="github.com/NusIoraPrivacy/eaas-privacy, data/load_data.py",
        size=math.sqrt,
        grows=True,
    )
)
PARAMETERISATIONS.add("mldp")(
    Parameterisation(
        tool="MLDP, MultivariateCalibrated",
        parameter="epsilon",
        draws=f"{_DCHI} with epsilon for eta, by numpy's global generator",
        promises="epsilon times the Euclidean distance, to whoever cannot predict that generator",
        reference="github.com/sjmeis/MLDP, src/mldp_text/mechanisms.py",
        size=_dchi,
        loss=_one,
    )
)
PARAMETERISATIONS.add("splitllm")(
    Parameterisation(
        tool="SplitLLM, DxPrivacy",
        parameter="epsilon",
        draws="a direction for each row, and one radius Gamma(width, 1 / (epsilon · width)) for the whole batch",
        promises="epsilon · width times the Euclidean distance for a row alone; nothing for a batch, in which one "
        "known row tells every other's radius",
        reference="github.com/StupidTrees/SplitLLM, sfl/model/noise/dxp.py",
        size=lambda width: _dchi(width) / width,
        loss=float,
    )
)
PARAMETERISATIONS.add("diffprivlib")(
    Parameterisation(
        tool="diffprivlib, Vector at function_sensitivity 0 and data_sensitivity 1",
        parameter="epsilon",
        draws=f"{_DCHI} with epsilon / 2 for eta, added to objectives instead of embeddings",
        promises="epsilon / 2 times the Euclidean distance",
        reference="github.com/IBM/differential-privacy-library, diffprivlib/mechanisms/vector.py",
        size=lambda width: 2 * _dchi(width),
        loss=lambda _: 0.5,
    )
)
PARAMETERISATIONS.add("santext")(
    Parameterisation(
        tool="SanText",
        parameter="epsilon",
        draws="a word, with probability ∝ exp(-epsilon / 2 · distance); rows get no noise",
        promises="epsilon times the Euclidean distance, to whoever cannot predict numpy's global generator",
        reference="github.com/xiangyue9607/SanText, SanText.py; arXiv:2106.01221",
        loss=_one,
    )
)
PARAMETERISATIONS.add("custext")(
    Parameterisation(
        tool="CusText",
        parameter="epsilon",
        draws="one of the top_k words of the word's own list, with probability ∝ exp(epsilon / 2 · similarity), which "
        "is scaled to [0, 1] in each list; rows get no noise",
        promises="epsilon between two words that have one list, whatever their distance; nothing between others, and "
        "nothing for words that are in no list",
        reference="github.com/sai4july/CusText, CusText/sst2/utils.py; arXiv:2207.01193",
    )
)


def convert_eta(eta: float, *, width: int) -> Conversion:
    """An eta of d_chi noise in the parameters of papers and public tools.

    Args:
        eta: The privacy parameter, in 1/distance.
        width: Coordinates of a row: 384 for MiniLM.

    Raises:
        ConfigError: An eta that is not above 0 and finite, or no width.
    """
    _check("eta", eta, width)
    norm = _dchi(width) / eta
    return Conversion(
        eta=eta,
        width=width,
        mean_norm=width / eta,
        rms_norm=norm,
        tools=tuple(_equivalent(name, eta, width) for name in PARAMETERISATIONS),
    )


def eta_of(tool: str, value: float, *, width: int) -> Etas:
    """What a tool's parameter stands for: the etas at which d_chi noise is as large, and promises as much.

    Args:
        tool: Its name in `PARAMETERISATIONS`.
        value: The value of its parameter.
        width: Coordinates of a row.

    Raises:
        ConfigError: There is no such tool, its parameter is not above 0 and finite, or no width.
    """
    its = PARAMETERISATIONS[tool]
    _check(its.parameter, value, width)
    return Etas(
        name=tool,
        tool=its.tool,
        parameter=its.parameter,
        value=value,
        width=width,
        same_noise=None if its.size is None else _dchi(width) / (its.size(width) * _scale(its, value)),
        same_promise=None if its.loss is None else its.loss(width) * value,
        draws=its.draws,
        promises=its.promises,
        reference=its.reference,
    )


def _equivalent(name: str, eta: float, width: int) -> Equivalent:
    its = PARAMETERISATIONS[name]
    same_noise = times = None
    if its.size is not None:
        ratio = its.size(width) * eta / _dchi(width)  # of sizes, at parameter 1 there and at eta here
        same_noise = 1 / ratio if its.grows else ratio
        times = ratio * _scale(its, eta)
    return Equivalent(
        name=name,
        tool=its.tool,
        parameter=its.parameter,
        same_noise=same_noise,
        same_promise=None if its.loss is None else eta / its.loss(width),
        times=times,
        draws=its.draws,
        promises=its.promises,
        reference=its.reference,
    )


def _scale(its: Parameterisation, value: float) -> float:
    """How much larger noise is at a value than at 1."""
    return value if its.grows else 1 / value


def _check(name: str, value: float, width: int) -> None:
    faults = [] if 0 < value < math.inf else [Fault(name, value, "must be above 0 and finite")]
    if width < 1:
        faults.append(Fault("width", width, "must be at least 1"))
    if faults:
        raise ConfigError(faults)
