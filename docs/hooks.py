"""Pages of the web site that are files of the repository: each is written once, and stands in both places."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds them, all but the README, with links within the site where they link into `docs/`."""
    for path in Path(config.docs_dir).parent.glob("*.md"):
        if path.name != "README.md":
            text = path.read_text(encoding="utf-8").replace("](docs/", "](")
            files.append(File.generated(config, path.name.lower(), content=text))
    return files
