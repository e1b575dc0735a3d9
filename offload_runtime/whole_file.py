"""Files that are there whole or not at all, whoever writes beside us and whatever ends us."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Write a file in place of an earlier one; its folder is made if there is none.

    Raises:
        OSError: it cannot be written; an earlier one is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
