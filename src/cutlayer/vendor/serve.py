"""Setting a vendor up, and running it."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import ValidationError

from cutlayer.core import ConfigError, Fault, StorageError
from cutlayer.core.files import make_folder
from cutlayer.serving.address import Address
from cutlayer.serving.compute import ThisThread
from cutlayer.serving.listening import run
from cutlayer.serving.tls import make_certificate
from cutlayer.vendor.app import create_app
from cutlayer.vendor.catalogue import ModelCard, read_card, write_card
from cutlayer.vendor.database import open_database
from cutlayer.vendor.lock import lock
from cutlayer.vendor.settings import VendorSettings, faults

DEFAULT_PORT = 8377
log = logging.getLogger("cutlayer.vendor")
_OURS = frozenset({".lock", "vendor.id", "vendor.json", "vendor.sqlite", "tls", "models", "tenants"})
"""What a set-up that did not end may have left in a data folder."""


def init(
    data_dir: Path | str,
    *,
    models: Sequence[str] | None = None,
    tls_host: str | None = None,
    **changes: Any,
) -> VendorSettings:
    """Makes a vendor's data folder: settings, tables, a card for each model, a certificate.

    Running it again on the same folder changes what is given and keeps everything else: the other
    settings, also those edited by hand, and tenants, keys and jobs. No vendor may serve it meanwhile.

    Args:
        data_dir: The folder.
        models: What is offered: `starter`, local folders, hub ids; `NAME=SOURCE` gives another name
            than the source's last part. In a new folder `starter` by default, and the first is the
            model of customers who name none. In a folder with settings they are added to its models,
            or replace those of the same name.
        tls_host: Name or address to make a self-signed certificate for.
        **changes: Other settings than the models, by their names in `VendorSettings`.

    Raises:
        ConfigError: An argument, or what the folder is set to, cannot be used; a process serves the
            folder; other users may enter it; or the database belongs to another folder.
        ModelError: A model cannot be loaded or cut.
        StorageError: The folder or the database cannot be used.
    """
    data_dir = Path(data_dir).absolute()
    with contextlib.ExitStack() as held:
        is_new = not _is_set_up(data_dir)
        if not is_new:
            held.callback(os.close, lock(data_dir))
        if data_dir.is_dir():
            _keep_to_owner(data_dir)
        kept = {} if is_new else VendorSettings.load(data_dir).model_dump()
        if models is None:
            models = () if kept else ("starter",)
        named = dict(_named(model) for model in models)
        if len(named) != len(models) or not (named or kept):
            raise ConfigError(
                [Fault("models", list(models), "must be one or more, each with a name of its own")],
                remedy="Tell them apart with NAME=SOURCE.",
            )
        changes["models"] = {**kept.get("models", {}), **named}
        changes["default_model"] = kept.get("default_model") or next(iter(named))
        try:
            settings = VendorSettings(data_dir=data_dir, **{**kept, **changes})
        except ValidationError as error:
            raise ConfigError(faults(error, "vendor")) from error
        cards = [
            ModelCard.draw_up(name, source, settings)
            for name, source in settings.models.items()
            # Others are not loaded: it takes long, and would accept weights that changed without being asked to.
            if name in named or not _is_described(settings, name)
        ]
        try:
            if is_new:  # and made only now: what is wrong with the arguments leaves no folder behind
                make_folder(data_dir, mode=0o700)
                held.callback(os.close, lock(data_dir))
                if _is_set_up(data_dir):
                    raise ConfigError(
                        f"Another process has set up {data_dir} meanwhile.", remedy="Run this again to change that."
                    )
            open_database(settings, claim=True).close()
            for card in cards:
                write_card(settings, card)
            if tls_host is not None:
                make_certificate(tls_host, certificate=settings.certificate, private_key=settings.private_key)
            settings.save()
        except OSError as error:
            raise StorageError(
                f"{data_dir} cannot be written: {error.strerror}.", remedy="Choose another folder."
            ) from error
    return settings


def serve(
    data_dir: Path | str,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    tls_cert: Path | str | None = None,
    tls_key: Path | str | None = None,
    threads: int | None = None,
    on_listening: Callable[[str], object] = lambda url: None,
) -> None:
    """Runs the vendor until it is told to stop.

    Args:
        data_dir: A folder that `init` made.
        host: Address to listen on. Others than this machine's are served over TLS only.
        port: Port to listen on; `DEFAULT_PORT` where it is left out.
        tls_cert: PEM certificate; the one that `init` made by default.
        tls_key: Its private key.
        threads: Compute threads, instead of those set.
        on_listening: Told the service's address once requests reach it.

    Raises:
        ConfigError: The folder is no vendor's, another process serves it, its database belongs to another
            folder, or TLS is missing.
    """
    settings = VendorSettings.load(data_dir)
    if threads is not None:
        settings = settings.model_copy(update={"threads": threads})
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        _keep_to_owner(settings.data_dir)
    except ConfigError as error:
        # A volume that is mounted so may have no other owner, and worked before.
        log.warning("%s %s", error.message, error.remedy)
    certificate = Path(tls_cert) if tls_cert is not None else settings.certificate
    private_key = Path(tls_key) if tls_key is not None else settings.private_key
    address = Address(host=host, port=port)
    if tls_cert is not None or tls_key is not None or (certificate.is_file() and private_key.is_file()):
        address = address.model_copy(update={"tls_cert": certificate, "tls_key": private_key})
    address.check(remedy="Run: cutlayer vendor init --tls-host NAME, or give --tls-cert and --tls-key.")

    def listening(url: str) -> None:
        log.info("serving %s on %s", settings.data_dir, url)
        on_listening(url)

    def make(compute: ThisThread) -> FastAPI:
        return create_app(settings, executor=compute)

    run(make, address, port=DEFAULT_PORT, threads=settings.compute_threads, on_listening=listening)


def _is_set_up(data_dir: Path) -> bool:
    # Unlike Path.is_file, False for a folder that may not be looked into; making it then says why.
    return os.path.isfile(data_dir / "vendor.json")


def _keep_to_owner(data_dir: Path) -> None:
    """Keeps other users of this machine out of a data folder, as they are kept out of one that `init` makes.

    Raises:
        ConfigError: Others may enter it, and it holds files of theirs, or belongs to one of them.
    """
    mode = stat.S_IMODE(data_dir.stat().st_mode)
    if not mode & 0o077:
        return
    foreign = sorted(path.name for path in data_dir.iterdir() if path.name not in _OURS)
    if foreign and not _is_set_up(data_dir):
        raise ConfigError(
            f"{data_dir} may be entered by other users (mode {mode:04o}) and holds files that are not the vendor's: "
            f"{', '.join(foreign[:3])}{' and others' if len(foreign) > 3 else ''}.",
            remedy="Choose a folder that is not there yet; or, if the vendor alone uses this one, chmod 700 it.",
        )
    try:
        data_dir.chmod(0o700)
    except PermissionError as error:
        raise ConfigError(
            f"{data_dir} may be entered by other users (mode {mode:04o}) and belongs to one of them.",
            remedy="Choose a folder that is not there yet, or let this one's owner chmod 700 it.",
        ) from error


def _is_described(settings: VendorSettings, name: str) -> bool:
    """Whether a model has a card, and the card says what the settings say."""
    try:
        card = read_card(settings, name)
    except StorageError:
        return False
    return card.source == settings.models[name] and card.describes(settings)


def _named(model: str) -> tuple[str, str]:
    name, separator, source = model.partition("=")
    return (name, source) if separator else (Path(model).name, model)
