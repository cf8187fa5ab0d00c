"""The paper's models that are not language models, and something to feed them, with nothing fetched.

Table 5 and §4.1.2 compare decoders with a convolutional network for images (Erdoğan et al. 2022, arXiv:2108.09033),
one for electrocardiograms (Abuadbba et al. 2020, arXiv:2003.12365) and a vision transformer (Dosovitskiy et al. 2020,
arXiv:2010.11929). Here they are built from their published shapes. Weights are drawn at random, as the paper's own
are for the first two (§4.3); only a vision transformer can be loaded. No electrocardiogram is at hand without a
download, so a drawn one takes its place. What is random or made up is marked so on every result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import ResNetConfig, ResNetForImageClassification, ViTConfig, ViTModel

from cutlayer.core import ModelError

N = TypeVar("N", bound=nn.Module)

CIFAR_SIDE = 32
"""Width and height of CIFAR-10's images."""
VIT_SIDE = 224
"""What ViT-patch16-224 takes; the paper enlarges CIFAR-10's images to it (§4.3)."""
ECG_LENGTH = 128
"""Samples of a heartbeat in Abuadbba et al.'s preparation of MIT-BIH."""
PHOTOGRAPHS = "scikit-learn's photographs for CIFAR-10"
HEARTBEATS = "made-up heartbeats for MIT-BIH"
"""What stands in for the paper's data, as results mark it."""


# ---------------------------------------------------------------- models


class UnsplitCnn(nn.Module):
    """UnSplit's network for CIFAR-10: 1.61 million parameters, the first convolution 1,792 (§4.1.2).

    Three pairs of 3 × 3 convolutions, each followed by ReLU and each pair by pooling, then two linear layers with
    a sigmoid between them. Neither normalisation nor dropout.
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        channels = (3, 64, 64, 128, 128, 128, 128)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, kernel_size=3, padding=1) for before, after in pairwise(channels)
        )
        self.hidden = nn.Linear(channels[-1] * (CIFAR_SIDE // 8) ** 2, 512)
        self.output = nn.Linear(512, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[images, classes]` of images `[images, 3, 32, 32]`."""
        for number, convolution in enumerate(self.convolutions, start=1):
            images = F.relu(convolution(images))
            if number % 2 == 0:
                images = F.max_pool2d(images, 2)
        logits: Tensor = self.output(torch.sigmoid(self.hidden(images.flatten(1))))
        return logits

    def second_layer(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """What goes into the second convolution and what comes out, before its ReLU; `[batch, 64, 32, 32]` both."""
        first = F.relu(self.convolutions[0](images))
        return first, self.convolutions[1](first)


class EcgCnn(nn.Module):
    """The two convolutional layers of Abuadbba et al.'s network, for heartbeats of 128 samples.

    Each is a convolution (16 channels; kernels of 7 and 5, padded so that lengths stay), a leaky ReLU and pooling that
    halves the length. The linear layers above are left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 16, kernel_size=7, padding=3)
        self.second = nn.Conv1d(16, 16, kernel_size=5, padding=2)

    def first_layers(self, beats: Tensor) -> tuple[Tensor, Tensor]:
        """Of heartbeats `[batch, 1, 128]` what the first layer hands on, and what the second convolution gives.

        Both are `[batch, 16, 64]`.
        """
        below = F.max_pool1d(F.leaky_relu(self.first(beats)), 2)
        return below, self.second(below)


def resnet_152(classes: int) -> ResNetForImageClassification:
    """ResNet-152 as He et al. (2016, Table 1) give it: 1,000 classes for ImageNet, 10 for CIFAR-10 (§4.1.2)."""
    config = ResNetConfig(depths=[3, 8, 36, 3])
    config.num_labels = classes
    return ResNetForImageClassification(config)


def bottlenecks(network: ResNetForImageClassification) -> list[nn.Module]:
    """Its layers from below: three convolutions each, some with one for the shortcut."""
    return [layer for stage in cast(Any, network).resnet.encoder.stages for layer in stage.layers]


def random_network(kind: Callable[[], N], rng: torch.Generator) -> N:
    """Convolutions and linear layers with weights from the distribution that torch starts them with.

    Weights and biases alike are uniform within ±1/√(inputs of an output).
    """
    with torch.device("meta"):  # where torch's own draw, from the process's generator, does not happen
        network = kind()
    network.to_empty(device="cpu")
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Linear):
                bound = 1 / math.sqrt(module.weight[0].numel())
                for parameter in module.parameters(recurse=False):
                    parameter.uniform_(-bound, bound, generator=rng)
    return network


def random_vit(rng: torch.Generator) -> ViTModel:
    """A ViT-base-patch16-224 with one block and random weights, in evaluation mode.

    Weights are normal with the configuration's standard deviation (0.02), biases 0, scales 1; so are the class
    token and the positions, which in a trained model carry more.
    """
    config = ViTConfig(num_hidden_layers=1)
    with torch.device("meta"):
        model = ViTModel(config, add_pooling_layer=False)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.fill_(float(not name.endswith("bias")))
            else:
                parameter.normal_(0, config.initializer_range, generator=rng)
    return cast(ViTModel, model.eval())


def load_vit(folder: Path) -> ViTModel:
    """A vision transformer from a folder of `config.json` and `model.safetensors`, in evaluation mode.

    Raises:
        ModelError: There is none, or it is damaged.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(f"There is no vision transformer in {folder}.", remedy="Give a folder with config.json.")
    try:
        model = ViTModel.from_pretrained(
            str(folder), add_pooling_layer=False, local_files_only=True, use_safetensors=True, dtype=torch.float32
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"The vision transformer in {folder} could not be loaded: {str(error).strip().partition(chr(10))[0]}",
            remedy="Check that the folder holds config.json and model.safetensors of a ViT.",
        ) from error
    return cast(ViTModel, model.eval())


# ---------------------------------------------------------------- what they are fed


def photographs(n: int, *, side: int, rng: torch.Generator) -> Tensor:
    """Square cut-outs of the two photographs that scikit-learn bundles, `[n, 3, side, side]`, values in [0, 1].

    Alternately from the one and the other, at random places, between a quarter and the whole of the shorter side
    wide, so that they show parts and wholes as CIFAR-10's images do.
    """
    from sklearn.datasets import load_sample_images

    pictures = [
        torch.from_numpy(picture.copy()).permute(2, 0, 1).float() / 255 for picture in load_sample_images().images
    ]
    cuts = []
    for number in range(n):
        picture = pictures[number % len(pictures)]
        height, width = picture.shape[1:]
        shorter = min(height, width)
        wide = _draw(shorter // 4, shorter, rng)
        top, left = _draw(0, height - wide, rng), _draw(0, width - wide, rng)
        cut = picture[None, :, top : top + wide, left : left + wide]
        cuts.append(F.interpolate(cut, size=(side, side), mode="bilinear", align_corners=False, antialias=True))
    return torch.cat(cuts).clamp(0, 1)


def heartbeats(n: int, *, rng: torch.Generator) -> Tensor:
    """Made-up heartbeats `[n, 1, 128]`, values in [0, 1]: no electrocardiogram is bundled, and none is fetched.

    Five bumps after one another, as in a normal beat: P, Q, R, S and T, each a Gaussian whose place, width and
    height vary by a tenth, on a slowly wandering baseline with a little noise. Not a recording of anybody, and no
    stand-in for one where more than the shape of the input counts.
    """
    # place and width as shares of the beat; height against R's
    bumps = torch.tensor(
        [[0.22, 0.030, 0.15], [0.37, 0.012, -0.12], [0.40, 0.014, 1.0], [0.43, 0.013, -0.25], [0.65, 0.050, 0.30]]
    )
    time = torch.linspace(0, 1, ECG_LENGTH)
    varied = bumps * (1 + 0.1 * torch.randn(n, *bumps.shape, generator=rng))
    place, width, height = (varied[:, :, part, None] for part in range(3))
    beats = (height * torch.exp(-0.5 * ((time - place) / width) ** 2)).sum(1)
    phase = 2 * torch.pi * torch.rand(n, 1, generator=rng)
    beats = beats + 0.05 * torch.sin(2 * torch.pi * time + phase) + 0.01 * torch.randn(n, ECG_LENGTH, generator=rng)
    low, high = beats.amin(1, keepdim=True), beats.amax(1, keepdim=True)
    return ((beats - low) / (high - low))[:, None]


def _draw(least: int, most: int, rng: torch.Generator) -> int:
    return int(torch.randint(least, most + 1, (), generator=rng))


# ---------------------------------------------------------------- features


@dataclass(frozen=True)
class Features:
    """What goes into a part and what comes out of it, `[samples, channels, features]` both.

    Attributes:
        name: Which part of which model; the paper's name where it has one.
        random_weights: Whether nobody trained the weights.
        stand_in: What the samples are, where they stand in for the paper's data.
        reading: What was taken for the part's input and output, where the paper leaves that open.
    """

    name: str
    inputs: Tensor
    outputs: Tensor
    random_weights: bool
    stand_in: str = ""
    reading: str = ""


@torch.no_grad()
def unsplit_features(images: Tensor, *, rng: torch.Generator) -> tuple[Features, Features]:
    """Table 5's first line: the second convolution's input and output, 64 channels of 32 × 32.

    Its output is taken after the ReLU and, second, before: only after it do cosines lie between 0 and 1, as the
    paper says of its own. Images: `[samples, 3, 32, 32]`.
    """
    network = random_network(UnsplitCnn, rng)
    inputs, outputs = network.second_layer(images)
    inputs, outputs = inputs.flatten(2), outputs.flatten(2)
    return _both("Unsplit model, second layer", inputs, outputs, F.relu(outputs), stand_in=PHOTOGRAPHS)


@torch.no_grad()
def ecg_features(beats: Tensor, *, rng: torch.Generator, stand_in: str) -> tuple[Features, Features]:
    """Table 5's third line: what the first two layers hand on, 16 channels of 64.

    The network's own input is one channel of 128, so it cannot be what a heat map of 16 × 16 compares. The second
    layer's output is taken after its leaky ReLU and, second, before; not after its pooling, which would halve it.
    Beats: `[samples, 1, 128]`.
    """
    network = random_network(EcgCnn, rng)
    inputs, outputs = network.first_layers(beats)
    return _both("1D CNN, first two layers", inputs, outputs, F.leaky_relu(outputs), stand_in=stand_in)


def _both(name: str, inputs: Tensor, before: Tensor, after: Tensor, *, stand_in: str) -> tuple[Features, Features]:
    """A convolution with its activation, under the paper's name, and without."""
    readings = ((name, after, "with its activation"), (f"{name}, before its activation", before, "without"))
    told = "what the second convolution gets, and what it gives"
    first, second = (
        Features(each, inputs, outputs, True, stand_in, f"{told} {which}") for each, outputs, which in readings
    )
    return first, second


@torch.no_grad()
def vit_features(images: Tensor, model: ViTModel, *, random_weights: bool) -> tuple[Features, Features]:
    """Table 5's second line, in both readings: 196 patches of 768, the class token left out.

    Table 5 says the first layer, Figure 17 the embedding layer and the first block. The first reading's input is
    what enters the first block, the second's the pixels of each patch, which are 16 × 16 × 3 = 768 numbers too. Images:
    `[samples, 3, 224, 224]`, values in [0, 1].

    Raises:
        ModelError: Its patches have not as many pixels' values as its hidden states have, so that the second
            reading has nothing to compare.
    """
    patch, width = int(cast(Any, model.config).patch_size), int(model.config.hidden_size)
    if 3 * patch**2 != width:
        raise ModelError(
            f"Patches of {patch} × {patch} have {3 * patch**2} values and hidden states have {width}.",
            remedy="Use a ViT-base with patches of 16 × 16.",
        )
    normalised = (images - 0.5) / 0.5  # as the checkpoint's own preprocessing does
    embedded = model.embeddings(normalised)
    given = model.layers[0](embedded)
    after: Tensor = given[0] if isinstance(given, tuple) else given
    pixels = F.unfold(normalised, kernel_size=patch, stride=patch).transpose(1, 2)
    readings = (
        ("ViT, first layer", embedded[:, 1:], "what enters the first block, and what leaves it"),
        ("ViT, embedding and first layer", pixels, "the pixels of a patch, and what leaves the first block"),
    )
    first, second = (
        Features(name, inputs, after[:, 1:], random_weights, PHOTOGRAPHS, reading) for name, inputs, reading in readings
    )
    return first, second
