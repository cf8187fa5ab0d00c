"""TLS: required off this machine, verified by the customer, and made by the vendor if it has none."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from cutlayer import vendor
from cutlayer.core import ConfigError, VendorError
from cutlayer.wire import routes
from cutlayer.wire.transports import HttpTransport
from tests.service.customer import ask
from tests.service.process import Vendors, running


def test_a_vendor_without_tls_serves_this_machine_only(data_dir: Path) -> None:
    for host in ("0.0.0.0", "192.0.2.1", "vendor.example"):
        with pytest.raises(ConfigError, match="TLS"):
            vendor.serve(data_dir, host=host)


def test_a_self_signed_vendor(nursery: Vendors, blank_vendor: Path, tmp_path: Path, tiny_model: Path) -> None:
    data_dir = tmp_path / "data"
    settings = vendor.init(data_dir, models=[str(tiny_model)], threads=1, tls_host="127.0.0.1")
    other = vendor.init(tmp_path / "other", models=[str(tiny_model)], threads=1, tls_host="127.0.0.1")
    assert stat.S_IMODE(settings.private_key.stat().st_mode) == 0o600
    key = vendor.keys.create(data_dir, "clinic")
    with running(nursery, data_dir, tls=True) as process:
        trusting = HttpTransport(process.url, key, ca_cert=settings.certificate)
        reply = ask(trusting, routes.SERVICE)
        assert reply.uplink_bytes > 100
        trusting.close()
        for trust in (None, other.certificate):
            with pytest.raises(VendorError, match="No trusted connection") as caught:
                ask(HttpTransport(process.url, key, ca_cert=trust), routes.SERVICE)
            assert caught.value.status == 0
        by_name = HttpTransport(process.url.replace("127.0.0.1", "localhost"), key, ca_cert=settings.certificate)
        with pytest.raises(VendorError, match="No trusted connection") as caught:
            ask(by_name, routes.SERVICE)
        assert "--tls-host" in caught.value.remedy
        plain = HttpTransport(process.url.replace("https", "http"), key, retries=0)
        with pytest.raises(VendorError, match="could not be reached") as caught:
            ask(plain, routes.SERVICE)
        assert "https://" in caught.value.remedy


@pytest.mark.parametrize("host", ["", "a b", "https://vendor.example", "vendor.example:443", "käse.example"])
def test_hosts_that_no_certificate_can_name(tmp_path: Path, tiny_model: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="tls_host"):
        vendor.init(tmp_path / "data", models=[str(tiny_model)], tls_host=host)
