"""What an eta is called elsewhere: parameters of public tools that give noise of the same size.

Tools that name the same mechanism draw noise that differs by more than ten times for the same
number. Sizes are compared as root mean square norms √E‖n‖², which have a closed form for all of
them; of d_chi noise that is √(width (width + 1)) / eta, and its mean norm is width / eta. Noise of the
same size is not noise of the same guarantee: what each promises stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cutlayer.core import ConfigError, Fault, Registry
from cutlayer.reports.schema import Part


@dataclass(frozen=True)
class Parameterisation:
    """How a public tool draws noise.

    Attributes:
        tool: The tool, and what in it.
        parameter: What the tool calls its parameter.
        grows: Whether noise grows with the parameter, as with a standard deviation; else it shrinks.
        size: √E‖n‖² at parameter 1, for a width.
        draws: What it really draws.
        promises: What follows for a row, in cutlayer's terms.
        reference: Where the tool's code was read.
    """

    tool: str
    parameter: str
    size: Callable[[int], float]
    draws: str
    promises: str
    reference: str
    grows: bool = False

    def norm(self, value: float, *, width: int) -> float:
        """√E‖n‖² at a value of the parameter."""
        return self.size(width) * value if self.grows else self.size(width) / value

    def value(self, norm: float, *, width: int) -> float:
        """The value of the parameter at which √E‖n‖² is `norm`."""
        return norm / self.size(width) if self.grows else self.size(width) / norm


class Equivalent(Part):
    """A tool's parameter beside an eta.

    Attributes:
        name: The tool, as commands call it.
        tool: The tool, and what in it.
        parameter: What it calls its parameter.
        value: The parameter's value for noise of the same size.
        times: How much longer the tool's noise is at a parameter of the same number as eta.
        draws: What it really draws.
        promises: What follows for a row.
    """

    name: str
    tool: str
    parameter: str
    value: float
    times: float
    draws: str
    promises: str


class Conversion(Part):
    """One size of noise in everybody's parameters.

    Attributes:
        eta: Cutlayer's, for d_chi noise.
        width: Coordinates of a row.
        mean_norm: E‖n‖ = width / eta.
        rms_norm: √E‖n‖², which is what is equal.
        tools: The others' parameters.
    """

    eta: float
    width: int
    mean_norm: float
    rms_norm: float
    tools: tuple[Equivalent, ...]


def _dchi(width: int) -> float:
    return math.sqrt(width * (width + 1))


PARAMETERISATIONS: Final[Registry[Parameterisation]] = Registry("tool")

PARAMETERISATIONS.add("mldp")(
    Parameterisation(
        tool="MLDP, MultivariateCalibrated",
        parameter="epsilon",
        size=_dchi,
        draws="the same noise, by numpy's global generator",
        promises="epsilon times the Euclidean distance, to whoever cannot predict that generator",
        reference="github.com/sjmeis/MLDP, mechanisms.py",
    )
)
PARAMETERISATIONS.add("diffprivlib")(
    Parameterisation(
        tool="diffprivlib, Vector at function_sensitivity 0 and data_sensitivity 1",
        parameter="epsilon",
        size=lambda width: 2 * _dchi(width),
        draws="the same noise at eta = epsilon / 2, for objectives instead of embeddings",
        promises="epsilon / 2 times the Euclidean distance",
        reference="github.com/IBM/differential-privacy-library, mechanisms/vector.py",
    )
)
PARAMETERISATIONS.add("snd-code")(
    Parameterisation(
        tool="SnD's released code and VFLAIR-LLM, sample_noise_Chi",
        parameter="eta",
        size=lambda width: _dchi(width) * math.sqrt(width / 3),
        draws="for each coordinate a Gamma(width, 1 / eta) radius of its own, times a uniform number in (-1, 1)",
        promises="eta times the L1 distance; in Euclidean distances √width times as much",
        reference="github.com/NusIoraPrivacy/eaas-privacy, data/load_data.py",
    )
)
PARAMETERISATIONS.add("snd-gaussian")(
    Parameterisation(
        tool="SnD's released code, sample_noise_Gaussian",
        parameter="noise_std",
        size=math.sqrt,
        grows=True,
        draws="independent normal coordinates",
        promises="no multiple of a distance",
        reference="github.com/NusIoraPrivacy/eaas-privacy, data/load_data.py",
    )
)
PARAMETERISATIONS.add("splitllm")(
    Parameterisation(
        tool="SplitLLM, DxPrivacy",
        parameter="scale",
        size=lambda width: _dchi(width) / width,
        draws="a direction for each row, and one radius Gamma(width, 1 / (scale · width)) for the whole batch",
        promises="scale · width times the Euclidean distance for a row alone, nothing for a batch: "
        "one known row tells every other's radius",
        reference="github.com/StupidTrees/SplitLLM, sfl/model/noise/dxp.py",
    )
)
PARAMETERISATIONS.add("textobfuscator")(
    Parameterisation(
        tool="TextObfuscator",
        parameter="epsilon",
        size=lambda width: math.sqrt(2 * width),
        draws="independent Laplace(1 / epsilon) coordinates, on token states",
        promises="epsilon times the L1 distance; in Euclidean distances √width times as much",
        reference="github.com/xzhou20/TextObfuscator",
    )
)


def convert_eta(eta: float, *, width: int) -> Conversion:
    """An eta of d_chi noise in the parameters of public tools.

    Args:
        eta: The privacy parameter, in 1/distance.
        width: Coordinates of a row: 384 for MiniLM.

    Raises:
        ConfigError: An eta that is not above 0 and finite, or no width.
    """
    _check({"eta": eta}, width)
    norm = _dchi(width) / eta
    tools = (
        Equivalent(
            name=name,
            tool=each.tool,
            parameter=each.parameter,
            value=each.value(norm, width=width),
            times=each.norm(eta, width=width) / norm,
            draws=each.draws,
            promises=each.promises,
        )
        for name, each in _tools().items()
    )
    return Conversion(eta=eta, width=width, mean_norm=width / eta, rms_norm=norm, tools=tuple(tools))


def eta_of(tool: str, value: float, *, width: int) -> float:
    """The eta at which d_chi noise is as large as a public tool's.

    Args:
        tool: Its name in `PARAMETERISATIONS`.
        value: The value of its parameter.
        width: Coordinates of a row.

    Raises:
        ConfigError: There is no such tool, its parameter is not above 0 and finite, or no width.
    """
    chosen = PARAMETERISATIONS[tool]
    _check({chosen.parameter: value}, width)
    return _dchi(width) / chosen.norm(value, width=width)


def _tools() -> Mapping[str, Parameterisation]:
    return {name: PARAMETERISATIONS[name] for name in PARAMETERISATIONS}


def _check(values: Mapping[str, float], width: int) -> None:
    faults = [
        Fault(name, value, "must be above 0 and finite") for name, value in values.items() if not 0 < value < math.inf
    ]
    if width < 1:
        faults.append(Fault("width", width, "must be at least 1"))
    if faults:
        raise ConfigError(faults)
