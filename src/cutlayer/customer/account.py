"""A customer's account at a vendor: the way there, the door on it, and the adapters that are kept there.

No model is needed to list or delete adapters, so nothing here imports torch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from cutlayer.core import ConfigError, VendorError
from cutlayer.customer.follow import follow
from cutlayer.customer.gate import Gate
from cutlayer.customer.home import Home, adapter_identifier, job_identifier, write_bytes
from cutlayer.customer.profile import Profile
from cutlayer.customer.progress import Progress
from cutlayer.privacy import Ledger
from cutlayer.wire import Route, Transport, routes
from cutlayer.wire.messages import AdapterInfo, AdapterList, JobEntry, JobInfo, JobList, JobProgress
from cutlayer.wire.transports import HttpTransport


class Account:
    """What one customer has at one vendor.

    Args:
        vendor: The vendor's address; `CUTLAYER_VENDOR` where it is left out.
        api_key: The tenant's key; `CUTLAYER_API_KEY` where it is left out.
        home: The customer's folder; `CUTLAYER_HOME`, else `~/.cutlayer`, where it is left out.
        ca_cert: The certificate to trust, for a vendor that signed its own; `CUTLAYER_CA_CERT`.
        transport: Another way to the vendor, for an app in this process; then no address is needed.
    """

    def __init__(
        self,
        vendor: str | None = None,
        api_key: str | None = None,
        *,
        home: Path | None = None,
        ca_cert: Path | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.home = Home(home)
        self._vendor = vendor or os.environ.get("CUTLAYER_VENDOR")
        self._api_key = api_key or os.environ.get("CUTLAYER_API_KEY")
        self._ca_cert = ca_cert or os.environ.get("CUTLAYER_CA_CERT")
        self._opened = transport

    def __reduce__(self) -> NoReturn:
        """A pickle would hold the vendor's key, and whoever gets the file would have it.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            f"A {type(self).__name__} is not pickled, nor what holds one: the vendor's key would stand in it.",
            remedy="Make it anew where it is needed. An EmbeddingTransformer is pickled without key.",
        )

    @property
    def transport(self) -> Transport:
        """The way to the vendor, opened on first use.

        Raises:
            ConfigError: There is no address, or no key.
        """
        if self._opened is None:
            if not self._vendor:
                raise ConfigError("No vendor is named.", remedy="Pass --vendor URL or set CUTLAYER_VENDOR.")
            if not self._api_key:
                raise ConfigError("No API key is given.", remedy="Pass --api-key KEY or set CUTLAYER_API_KEY.")
            self._opened = HttpTransport(self._vendor, self._api_key, ca_cert=self._ca_cert)
        return self._opened

    def answer_within(self, seconds: float) -> None:
        """Takes a vendor for away that has not begun to answer a frame in so many seconds, all tries together.

        Without it a frame waits ten minutes for its answer, and leaves again where none comes: runs have the time.

        Raises:
            ConfigError: There is no address, or no key.
        """
        if isinstance(self.transport, HttpTransport):
            self.transport.answer_within(seconds)

    def gate(self) -> Gate:
        """A door for messages that belong to no run and carry no text."""
        return Gate(self.transport, self.home.ledger)

    @property
    def ledger(self) -> Ledger:
        """What left, over all runs of this customer."""
        return self.home.ledger

    def close(self) -> None:
        """Gives connections back."""
        if self._opened is not None:
            self._opened.close()

    def adapters(self) -> tuple[AdapterInfo, ...]:
        """The tenant's adapters at the vendor."""
        return self.gate().send(routes.ADAPTERS).expect(AdapterList).adapters

    def adapter(self, adapter: str) -> AdapterInfo:
        """One adapter, with the digest of its weights.

        Raises:
            ConfigError: This is no adapter's identifier.
        """
        where = {"adapter": adapter_identifier(adapter)}
        return self.gate().send(routes.ADAPTER_GET, where).expect(AdapterInfo)

    def jobs(self) -> tuple[JobEntry, ...]:
        """The tenant's jobs at the vendor."""
        return self.gate().send(routes.JOBS).expect(JobList).jobs

    def watch_job(self, job: str, progress: Progress) -> JobProgress:
        """Waits until a job is finished that the vendor trains alone.

        Args:
            job: The job.
            progress: Where to show how far it is.

        Raises:
            ConfigError: This is no job's identifier.
            VendorError: It failed or was cancelled, or is no such job.
        """
        return follow(self.gate(), job_identifier(job), progress)

    def cancel_job(self, job: str) -> JobInfo:
        """Ends a job without an adapter.

        Raises:
            ConfigError: This is no job's identifier.
            VendorError: It is over, or is no such job.
        """
        return self.gate().send(routes.JOB_CANCEL, {"job": job_identifier(job)}).expect(JobInfo)

    def delete_adapter(self, adapter: str) -> None:
        """Deletes an adapter at the vendor, and the job that made it. The customer's profile of it goes too.

        Raises:
            ConfigError: This is no adapter's identifier.
        """
        profile = self.home.adapter(adapter)
        begun = profile / "deletion-begun"
        gate = self.gate()
        if profile.exists() and not begun.exists():
            where = {"adapter": adapter}
            check_is_here(gate, routes.ADAPTER_GET, where, f"adapter {adapter}", lost=f"remove {profile} yourself")
            write_bytes(begun, b"")
        try:
            gate.send(routes.ADAPTER_DELETE, {"adapter": adapter})
        except VendorError as error:
            # a deletion that was cut short is finished by another: what is left of it is the profile
            if error.status != 404 or not begun.exists():
                raise
        delete(gate, routes.JOB_DELETE, {"job": adapter})  # an adapter has its job's name
        Profile.forget(self.home, adapter)


def check_is_here(gate: Gate, route: Route, where: dict[str, str], what: str, *, lost: str) -> None:
    """Refuses to delete what is kept here of a thing that this vendor, asked with this key, does not have.

    Another vendor, and this one asked with another tenant's key, answers just as one who has deleted it.
    """
    try:
        gate.send(route, where)
    except VendorError as error:
        if error.status != 404:
            raise
        raise VendorError(
            f"This vendor has no {what}, or not for this key. Nothing was deleted.",
            status=error.status,
            remedy=f"Pass the address and a key with which it was made. If the vendor lost it, {lost}.",
        ) from error


def delete(gate: Gate, route: Route, where: dict[str, str]) -> None:
    """Deletes what may not be there."""
    try:
        gate.send(route, where)
    except VendorError as error:
        if error.status != 404:
            raise
