"""Schemathesis reads the vendor's own description and tries to break what it says."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import booleans
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks as described

from cutlayer import vendor
from cutlayer.vendor.denoiser_settings import DenoisedReleases, DenoiserTraining
from cutlayer.vendor.denoiser_training import train_denoisers
from cutlayer.wire import ROUTES
from cutlayer.wire.transports import HttpTransport
from tests.service.customer import Customer
from tests.service.process import VendorProcess, Vendors, running

CHECKS = [
    not_a_server_error,
    described.status_code_conformance,
    described.content_type_conformance,
    described.response_schema_conformance,
    described.ignored_auth,
    described.unsupported_method,
]


@pytest.fixture(scope="module")
def served(nursery: Vendors, blank_vendor: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VendorProcess]:
    folder = Path(shutil.copytree(blank_vendor, tmp_path_factory.mktemp("fuzz") / "data"))
    with running(nursery, folder) as process:
        yield process


@pytest.fixture(scope="module")
def authorization(served: VendorProcess) -> dict[str, str]:
    return {"Authorization": f"Bearer {vendor.keys.create(served.data_dir, 'clinic')}"}


@pytest.fixture(scope="module")
def existing(served: VendorProcess, authorization: dict[str, str]) -> dict[str, str]:
    """Names of all that routes are about, so that fuzzing gets behind the 404s."""
    transport = HttpTransport(served.url, authorization["Authorization"].removeprefix("Bearer "))
    adapter = Customer(transport).run().adapter
    customer = Customer(transport, job="f" * 32)
    customer.upload()
    customer.train(customer.start(), until=3)
    transport.close()
    public = [(f"w{number} w{number + 1} w{number + 2}",) for number in range(40)]
    releases, training = DenoisedReleases(mechanism="vector", clip=True), DenoiserTraining(steps=2, batch_size=4)
    settings = vendor.VendorSettings.load(served.data_dir)
    denoiser = train_denoisers(settings, "tiny", [("public", public)], releases, training).denoiser
    return {
        "job": customer.job,
        "record_set": customer.job,
        "adapter": adapter,
        "model": "tiny",
        "denoiser": denoiser,
        "cut": "0",
    }


@pytest.fixture(scope="module")
def api(served: VendorProcess) -> Any:
    return schemathesis.openapi.from_url(f"{served.url}/openapi.json")


@pytest.mark.parametrize("name", sorted(ROUTES))
def test_the_vendor_does_what_it_describes(
    name: str, api: Any, authorization: dict[str, str], existing: dict[str, str]
) -> None:
    route = ROUTES[name]
    answers = []

    @settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(case=api[route.path][route.method].as_strategy(), known=booleans())
    def attempt(case: Any, known: bool) -> None:
        # Behind the 404s; what exists is not to be deleted or cancelled, as others need it.
        known = known and route.method != "DELETE" and name != "job.cancel"
        if known:
            case.path_parameters |= {kind: existing[kind] for kind in case.path_parameters.keys() & existing.keys()}
        response = case.call_and_validate(headers=authorization, checks=CHECKS)
        if known and case.path_parameters.keys() <= existing.keys():
            answers.append(response.status_code)

    attempt()
    if route.method == "GET":
        assert set(answers) <= {200}, "what exists is found"
    elif route.method == "POST":
        assert 404 not in answers
    if name.startswith("adapter.") and route.method != "DELETE":
        assert answers


def test_the_description_holds_every_route(api: Any) -> None:
    listed = {(method.upper(), path) for path, methods in api.raw_schema["paths"].items() for method in methods}
    assert {(route.method, route.path) for route in ROUTES.values()} <= listed
    operations = {
        operation["operationId"] for methods in api.raw_schema["paths"].values() for operation in methods.values()
    }
    assert set(ROUTES) <= operations
