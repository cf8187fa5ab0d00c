"""Models and inputs that are no text: shapes, where their randomness comes from, and what is taken of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import ViTConfig, ViTModel

from cutlayer.core import ModelError
from cutlayer.recipes.measures.networks import (
    HEARTBEATS,
    PHOTOGRAPHS,
    EcgCnn,
    UnsplitCnn,
    bottlenecks,
    ecg_features,
    heartbeats,
    load_vit,
    photographs,
    random_network,
    random_vit,
    resnet_152,
    unsplit_features,
    vit_features,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def sizes(module):
    return [parameter.numel() for parameter in module.parameters()]


# ---------------------------------------------------------------- models


def test_unsplits_network():
    network = random_network(UnsplitCnn, generator())
    images = torch.rand(2, 3, 32, 32, generator=generator())
    assert network(images).shape == (2, 10)
    assert sum(sizes(network.convolutions[0])) == 1792
    seen = {}
    second = network.convolutions[1]
    handle = second.register_forward_hook(lambda _, given, made: seen.update(given=given[0], made=made))
    network(images)
    handle.remove()
    given, made = network.second_layer(images)
    assert given.shape == made.shape == (2, 64, 32, 32)
    torch.testing.assert_close(given, seen["given"])
    torch.testing.assert_close(made, seen["made"])


def test_the_network_for_heartbeats():
    network = random_network(EcgCnn, generator())
    beats = heartbeats(3, rng=generator())
    given, made = network.first_layers(beats)
    assert given.shape == made.shape == (3, 16, 64)
    assert sizes(network) == [16 * 7, 16, 16 * 16 * 5, 16]


def test_resnet_152_is_a_network_and_has_its_known_size():
    with torch.device("meta"):
        network = resnet_152(classes=1000)
        assert network(torch.empty(1, 3, 224, 224)).logits.shape == (1, 1000)
    assert sum(sizes(network)) == 60_192_808  # as torchvision counts it
    assert len(bottlenecks(network)) == 50
    # 152 layers with weights, the shortcuts' not counted
    convolutions = sum(isinstance(module, nn.Conv2d) for module in network.modules())
    assert convolutions + 1 - 4 == 152


def test_weights_come_from_the_generator_alone_as_torch_starts_them():
    before = torch.get_rng_state()
    first, again, other = (random_network(UnsplitCnn, generator(seed)) for seed in (0, 0, 1))
    vit, vit_again = random_vit(generator()), random_vit(generator())
    assert torch.equal(torch.get_rng_state(), before)
    for left, right, far in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(left, right)
        assert not torch.equal(left, far)
    assert all(torch.equal(*pair) for pair in zip(vit.parameters(), vit_again.parameters(), strict=True))
    for layer, theirs in ((first.hidden, nn.Linear(2048, 512)), (first.convolutions[2], nn.Conv2d(64, 128, 3))):
        assert layer.weight.abs().max().item() == pytest.approx(theirs.weight.abs().max().item(), rel=0.01)
        assert layer.weight.std().item() == pytest.approx(theirs.weight.std().item(), rel=0.02)
        assert layer.bias.abs().max().item() == pytest.approx(theirs.bias.abs().max().item(), rel=0.1)


def test_a_random_vit():
    vit = random_vit(generator())
    assert not vit.training
    assert not any(parameter.is_meta for parameter in (*vit.parameters(), *vit.buffers()))
    assert (vit.config.hidden_size, vit.config.patch_size, len(vit.layers)) == (768, 16, 1)
    assert vit.layers[0].mlp.fc1.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert (vit.layernorm.weight == 1).all()
    assert (vit.layers[0].mlp.fc1.bias == 0).all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    config = ViTConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=16, patch_size=4
    )
    path = tmp_path_factory.mktemp("models") / "vit"
    ViTModel(config, add_pooling_layer=False).save_pretrained(path)
    return path


def test_a_vit_from_a_folder(folder, tmp_path):
    vit = load_vit(folder)
    assert not vit.training
    for name in ("first", "again"):
        torch.testing.assert_close(vit.state_dict(), load_vit(folder).state_dict(), msg=name)
    with pytest.raises(ModelError, match="no vision transformer in"):
        load_vit(tmp_path)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ModelError, match="could not be loaded"):
        load_vit(tmp_path)


# ---------------------------------------------------------------- inputs


def test_pictures():
    made = photographs(6, side=32, rng=generator())
    assert made.shape == (6, 3, 32, 32)
    assert made.min() >= 0
    assert made.max() <= 1
    assert made.flatten(1).std(1).min() > 0.05  # something is seen on each
    assert torch.equal(made, photographs(6, side=32, rng=generator()))
    assert not torch.equal(made, photographs(6, side=32, rng=generator(1)))
    assert len({picture.numpy().tobytes() for picture in made}) == 6


def test_photographs_are_in_colour_and_upright():
    made = photographs(40, side=8, rng=generator())
    assert (made[:, 0] - made[:, 2]).abs().mean() > 0.05
    # the even ones show a temple below the sky
    assert made[::2, :, :2].mean() > made[::2, :, -2:].mean()


def test_heartbeats():
    beats = heartbeats(50, rng=generator())
    assert beats.shape == (50, 1, 128)
    assert beats.amin(2).abs().max() == 0
    assert (beats.amax(2) == 1).all()
    peak = beats.argmax(2).double().mean().item() / 127
    assert peak == pytest.approx(0.40, abs=0.03)  # R is the highest
    assert torch.equal(beats, heartbeats(50, rng=generator()))


# ---------------------------------------------------------------- what is compared


def test_what_is_taken_of_the_convolutional_networks():
    images, beats = photographs(2, side=32, rng=generator()), heartbeats(2, rng=generator())
    for (after, before), shape, stand_in in (
        (unsplit_features(images, rng=generator()), (2, 64, 1024), PHOTOGRAPHS),
        (ecg_features(beats, rng=generator(), stand_in=HEARTBEATS), (2, 16, 64), HEARTBEATS),
    ):
        assert after.inputs.shape == after.outputs.shape == before.outputs.shape == shape
        assert torch.equal(after.inputs, before.inputs)
        assert torch.equal(F.relu(after.outputs), F.relu(before.outputs))
        assert (before.outputs < 0).any()
        assert before.name.startswith(after.name)
        for each in (after, before):
            assert each.random_weights
            assert each.stand_in == stand_in
            assert each.reading
            assert not each.outputs.requires_grad
    assert (unsplit_features(images, rng=generator())[0].outputs >= 0).all()


def test_what_is_taken_of_a_vision_transformer(folder):
    vit = load_vit(folder)
    images = torch.rand(2, 3, 16, 16, generator=generator())
    first, second = vit_features(images, vit, random_weights=False)
    assert first.outputs.shape == first.inputs.shape == second.inputs.shape == (2, 16, 48)
    states = vit((images - 0.5) / 0.5, output_hidden_states=True).hidden_states
    torch.testing.assert_close(first.inputs, states[0][:, 1:])
    torch.testing.assert_close(first.outputs, states[1][:, 1:])
    torch.testing.assert_close(second.outputs, first.outputs)
    # the pixels are those that the projection of each patch sees, in its order
    projection = vit.embeddings.patch_embeddings.projection
    embedded = second.inputs @ projection.weight.flatten(1).T + projection.bias
    torch.testing.assert_close(embedded + vit.embeddings.position_embeddings[:, 1:], first.inputs)
    assert not first.random_weights


def test_patches_that_are_not_as_wide_as_hidden_states():
    config = ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=4)
    vit = ViTModel(config, add_pooling_layer=False)
    with pytest.raises(ModelError, match="48 values and hidden states have 32"):
        vit_features(torch.rand(1, 3, 16, 16), vit, random_weights=True)
