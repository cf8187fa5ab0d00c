"""Both parties on one machine, from an empty folder to a leak report: `python examples/end_to_end.py FOLDER`.

The vendor is a process of its own, reached over loopback HTTP. The texts are the embedded corpus of made-up messages.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from cutlayer import Client, vendor
from cutlayer.customer import Training
from cutlayer.data import sample_path
from cutlayer.vendor.process import VendorProcess

ETA = 80.0


def main(folder: Path) -> None:
    """Runs the whole job in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    train, test = (shutil.copy(sample_path(split), folder / f"{split}.csv.gz") for split in ("train", "test"))

    # the vendor: a folder, a key for one customer, a service
    vendor.init(folder / "vendor", models=["starter"])
    key = vendor.keys.create(folder / "vendor", "hospital")
    with VendorProcess(folder / "vendor") as service:
        # the customer: what would leave, before anything does
        client = Client(service.url, key, home=folder / "customer")
        for text in client.privatize(["My parcel never arrived, please send it again."], eta=ETA):
            print(f"would leave:  {text.released[0]}")

        # a small model needs a larger rate than the default, which is for a large one
        result = client.finetune(train, test=test, eta=ETA, training=Training(epochs=3, learning_rate=2e-3), seed=1)
        print(
            f"accuracy:     {result.ua:.1%} of {result.ua_n} texts (always one label: {result.majority_baseline:.1%})"
        )
        print(f"not read:     {result.ep:.1%} of {result.ep_n} tokens, by nearest neighbours")
        for prediction in client.predict(result.adapter_id, ["I was charged twice this month."]):
            print(f"prediction:   {prediction.label} ({prediction.probability:.0%})")
        for each in client.ledger.summary().vendors:
            print(f"the ledger:   {each.frames} frames with {each.uplink_bytes} bytes went to {each.vendor}")
        client.close()

    # what the vendor could read of that run; without --attack every attack runs, for minutes
    attacks = ["--attack", "nearest-neighbour", "--attack", "maximum-posterior", "--attack", "gradient-sign"]
    command = ["audit", "--data", train, "--test", test, "--transcript", result.folder, "--home", folder / "customer"]
    options = ["--label-column", "label", "--out", folder / "report"]
    subprocess.run([sys.executable, "-m", "cutlayer.cli", *map(str, [*command, *options, *attacks])], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "end-to-end"))
