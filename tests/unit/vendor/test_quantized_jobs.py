"""Jobs over a top in 4 bits: the same bits after a crash, among others, and as a published adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from cutlayer import vendor
from cutlayer.core import ConfigError, MissingExtraError, VendorError
from cutlayer.core.tuning import FullSpec, LoraSpec
from cutlayer.models import Top, load_model, own_bytes
from cutlayer.vendor.catalogue import Catalogue, read_card
from cutlayer.vendor.trainer import Trainer, adapter_parameters
from cutlayer.wire import routes
from cutlayer.wire.messages import ArchiveManifest
from tests.service.customer import Customer, ask, first_model
from tests.unit.vendor.test_jobs import Open, at, info, query

bitsandbytes = pytest.importorskip(
    "bitsandbytes", reason="bitsandbytes is not installed: pip install 'cutlayer[qlora]'"
)


@pytest.fixture
def packed_dir(data_dir: Path) -> Path:
    """The vendor's data folder, set to NF4."""
    vendor.init(data_dir, quantize="nf4")
    return data_dir


def test_the_card_tells_and_is_another_models(data_dir: Path) -> None:
    plain = read_card(vendor.VendorSettings.load(data_dir), "tiny")
    packed = read_card(vendor.init(data_dir, quantize="nf4"), "tiny")
    assert (plain.info.quantization, packed.info.quantization) == (None, "nf4")
    assert plain.info.fingerprint != packed.info.fingerprint
    assert plain.info.parameters == packed.info.parameters
    assert read_card(vendor.init(data_dir), "tiny") == packed, "what is not given stays"
    assert read_card(vendor.init(data_dir, quantize=None), "tiny") == plain


def test_an_unknown_type_and_a_missing_package_leave_the_folder_as_it_was(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in data_dir.rglob("*.json")}
    with pytest.raises(ConfigError, match=r"quantize.*int3") as unknown:
        vendor.init(data_dir, quantize="int3")

    def missing(extra: str) -> None:
        raise MissingExtraError(extra, ["bitsandbytes"])

    monkeypatch.setattr("cutlayer.models.quantization.require", missing)
    from cutlayer.models.quantization import _nf4

    _nf4.cache_clear()
    with pytest.raises(MissingExtraError, match="bitsandbytes") as caught:
        vendor.init(data_dir, quantize="nf4")
    assert (unknown.value.exit_code, caught.value.exit_code) == (3, 13)
    assert "cutlayer[qlora]" in caught.value.remedy
    assert {path: path.read_bytes() for path in data_dir.rglob("*.json")} == before


def test_customers_receive_the_checkpoints_numbers(packed_dir: Path, open_vendor: Open, tiny_model: Path) -> None:
    transport = open_vendor()
    manifest = ask(transport, routes.ARCHIVE, model="tiny", cut="1").expect(ArchiveManifest)
    assert manifest.fingerprint == first_model(transport).fingerprint
    (weights,) = packed_dir.glob("models/tiny/archives/1-*/weights.safetensors")
    handed, checkpoint = load_file(weights), dict(load_model(str(tiny_model), head=None).named_parameters())
    assert handed
    assert all(torch.equal(value, checkpoint[name]) for name, value in handed.items())


def test_only_adapters_are_trained(packed_dir: Path, open_vendor: Open) -> None:
    customer = Customer(open_vendor())
    spec = customer.spec(first_model(customer.transport)).model_copy(update={"tuning": FullSpec()})
    with pytest.raises(VendorError, match=r"tuning\.method = 'full': must be another: weights of tiny are kept in nf4"):
        ask(customer.transport, routes.JOB_PUT, spec, job=customer.job)


@pytest.mark.parametrize("trainable", [False, True])
def test_the_way_back_ends_with_the_same_bits(packed_dir: Path, open_vendor: Open, trainable: bool) -> None:
    """Rolled back and restarted, each time from the log or from a checkpoint."""
    customer = Customer(open_vendor(), trainable=trainable)
    straight = customer.run().sha256
    answer = query(customer)
    ask(customer.transport, routes.ADAPTER_DELETE, adapter=customer.job)
    ask(customer.transport, routes.JOB_DELETE, job=customer.job)
    customer.upload()
    customer.train(customer.start(), until=11)
    for back in (8, 4):
        customer.train(at(customer, routes.ROLLBACK, back), until=back + 2)
        customer.transport.close()
        customer.transport = open_vendor()
        assert info(customer).step == back + 2
    assert customer.run().sha256 == straight
    assert torch.equal(query(customer), answer)


def test_jobs_and_queries_in_turn_do_not_disturb_each_other(packed_dir: Path, open_vendor: Open) -> None:
    """An adapter answers, in evaluation mode, while graphs of two jobs over the same codes wait for gradients."""
    transport = open_vendor()
    alone = []
    for number in range(2):
        customer = Customer(transport, job=f"{number:032x}", seed=number)
        alone.append(customer.run().sha256)
    answer = query(customer)
    together = [Customer(transport, job=f"{10 + number:032x}", seed=number) for number in range(2)]
    pending: list[Any] = [None, None]
    for each in together:
        each.upload()
        each.start()
    for step in range(1, together[0].steps + 1):
        for number, each in enumerate(together):
            pending[number] = each.take(step, pending[number])
            assert torch.equal(query(customer), answer)
    assert [at(each, routes.FINISH, each.steps).sha256 for each in together] == alone


def test_a_job_takes_what_is_counted_beforehand(packed_dir: Path, open_vendor: Open) -> None:
    transport = open_vendor()
    customer = Customer(transport)
    spec = customer.spec(first_model(transport))
    assert isinstance(spec.tuning, LoraSpec)
    settings = vendor.VendorSettings.load(packed_dir)
    catalogue = Catalogue(settings, torch.device("cpu"))
    top = catalogue.top("tiny", spec.cut)
    assert isinstance(top, Top)
    trainer = Trainer(top, catalogue.card("tiny").template, spec, torch.device("cpu"))
    trained = [value for value in trainer.part.parameters() if value.requires_grad]
    assert adapter_parameters(top, spec) == sum(value.numel() for value in trained)
    assert own_bytes(trainer.part, top) <= 4 * sum(value.numel() for value in trained) + 4 * 3 * 64
