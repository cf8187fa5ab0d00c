"""Runs that are killed somewhere, and go on: customers in processes of their own, beside a vendor in one."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.quick import slow_but
from tests.service.process import Nursery, VendorProcess

_CUSTOMERS = """
import json, os, sys, traceback
from transformers import BertForSequenceClassification, PreTrainedTokenizerFast
from tests.service import run_child
print("ready", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.argv[1:] = order["arguments"]
    status = 1
    try:
        run_child.main()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
"""
VICTIMS = ("vendor", "customer", "both")


class Customers(Nursery):
    """Runs customers in processes of their own, forked for the same reason as vendors are."""

    def __init__(self) -> None:
        super().__init__(_CUSTOMERS)

    def run(self, process: VendorProcess, key: str, home: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """The result of a customer's process, or `None` if it was killed."""
        home.mkdir(exist_ok=True)
        out, err = home / "out", home / "err"
        arguments = [process.url, key, str(home), json.dumps(settings)]
        status = self.ask({"arguments": arguments, "out": str(out), "err": str(err)})
        if status == "-9":
            return None
        assert status == "0", err.read_text()[-3000:]
        result: dict[str, Any] = json.loads(out.read_text().splitlines()[-1])
        return result


class Kills:
    """Runs of some modes, left alone or killed.

    Args:
        customers: Who run.
        references: What each mode ends with when nobody disturbs it; made when first asked for.
        process: The vendor.
        api_key: The customers' key there.
        folder: Where their homes are.
    """

    def __init__(
        self, customers: Customers, references: dict[str, Any], process: VendorProcess, api_key: str, folder: Path
    ) -> None:
        self._customers = customers
        self._references = references
        self._process = process
        self._key = api_key
        self._folder = folder

    def undisturbed(self, mode: str, settings: Mapping[str, Any]) -> Any:
        """What a run comes to that nobody kills."""
        if mode not in self._references:
            self._references[mode] = self._run("undisturbed", settings, die=None)
        return self._references[mode]

    def survived(self, victim: str, when: tuple[str, int], settings: Mapping[str, Any]) -> Any:
        """What a run comes to of which somebody was killed at a point, and started again.

        Args:
            victim: One of `VICTIMS`.
            when: A stage, and how much of it was done.
            settings: Of the run.
        """
        pids = {"vendor": [self._process.pid], "customer": [0], "both": [self._process.pid, 0]}[victim]
        if victim == "vendor":  # while the customer, still alive, keeps asking
            helper = threading.Thread(target=self._revive)
            helper.start()
            found = self._run("killed", settings, die=[*when, pids])
            helper.join()
            return found
        assert self._run("killed", settings, die=[*when, pids]) is None
        if victim == "both":
            self._revive()
        return self._run("killed", settings, die=None)

    def _revive(self) -> None:
        self._process.buried()
        self._process.start()

    def _run(self, home: str, settings: Mapping[str, Any], *, die: list[Any] | None) -> dict[str, Any] | None:
        return self._customers.run(self._process, self._key, self._folder / home, {**settings, "die": die})


def combinations(modes: Iterable[str], points: Collection[str], *, fast: Collection[tuple[str, str, str]]) -> list[Any]:
    """Each mode with each victim at each point; those that are not named as fast are left to `make test-all`."""
    every = [(mode, victim, point) for mode in modes for victim in VICTIMS for point in points]
    return slow_but(fast, every, ids=map(" - ".join, every))
