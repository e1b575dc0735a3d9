"""The one folder that policy files are read from and written to, whatever name a workflow asks for.

A workflow comes from somebody else, so a file name in it is untrusted: it is a bare name, and the file that it
resolves to has to lie in the folder, links followed.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from ...errors import PolicyError
from ..arguments import Source, SourceKind
from ..policy import Policy
from ..selectors import suggest
from .codec import parse_policy
from .reader import MAX_BYTES

SUFFIX = ".offload.yaml"
DEFAULT_FILE = f"default{SUFFIX}"
"""The file whose values hold for every workflow of this user, below everything else that is explicit."""

_READABLE = (SUFFIX, ".offload.yml", ".offload.json")
_NAME = re.compile(r"^[A-Za-z0-9_](?:[A-Za-z0-9 _.()+-]{0,98}[A-Za-z0-9_)+-])?$")
_RESERVED = re.compile(r"^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?$", re.IGNORECASE)


class PolicyFolder:
    """The policy files of one ComfyUI user."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        """Return the names of the files that can be read, sorted; none when there is no folder."""
        if not self.root.is_dir():
            return []
        found = (path.name for path in self.root.iterdir() if path.name.endswith(_READABLE))
        return sorted(name for name in found if _NAME.match(name) and self._inside(name) is not None)

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            PolicyError: the name is not a bare file name, leads out of the folder, or there is no such file.
        """
        path = self._inside(_checked(name))
        if path is None or not path.is_file():
            known = self.names()
            hint = suggest(name, known) if known else "there is none yet; Save Placement Policy writes one"
            raise PolicyError(
                f"there is no policy file “{name[:100]}” in the policy folder of this user: {hint}"
            )
        try:
            with path.open("rb") as file:
                return file.read(MAX_BYTES + 1)
        except OSError as error:
            raise PolicyError(f"the policy file “{name}” cannot be read: {error.strerror}") from None

    def load(self, name: str) -> Policy:
        """Read the policy of a file.

        Raises:
            PolicyError: as `read`, or the file is not a policy.
        """
        return parse_policy(self.read(name), Source(SourceKind.FILE, f"file {name}"))

    def user_default(self) -> Policy:
        """Read what holds for every workflow of this user; nothing when there is no such file.

        Raises:
            PolicyError: the file is there and is not a policy.
        """
        if DEFAULT_FILE not in self.names():
            return Policy()
        source = Source(SourceKind.USER_DEFAULT, f"your default file {DEFAULT_FILE}")
        return parse_policy(self.read(DEFAULT_FILE), source)

    def write(self, name: str, text: str, *, replace: bool) -> str:
        """Write a file, whole or not at all, and return its name with the suffix.

        Args:
            name: a bare file name; the suffix is added when it has none.
            text: the content.
            replace: whether a file of that name with another content may be replaced.

        Raises:
            PolicyError: the name is not a bare file name, leads out of the folder, is taken, or cannot be
                written.
        """
        name = _checked(name if name.endswith(SUFFIX) else f"{name}{SUFFIX}")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            path = self._inside(name)
            if path is None:
                raise PolicyError(f"“{name}” leads out of the policy folder")
            if path.exists() and not replace and path.read_bytes() != text.encode():
                raise PolicyError(f"“{name}” is there already; choose another name, or switch overwrite on")
            handle, temporary = tempfile.mkstemp(dir=self.root, prefix=".", suffix=".part")
            with os.fdopen(handle, "wb") as file:
                file.write(text.encode())
            os.replace(temporary, path)
        except OSError as error:
            raise PolicyError(f"the policy file “{name}” cannot be written: {error.strerror}") from None
        return name

    def _inside(self, name: str) -> Path | None:
        """Return the real path of a name, or None when it leads out of the folder."""
        path = (self.root / name).resolve()
        return path if path.parent == self.root.resolve() else None


def _checked(name: str) -> str:
    if _NAME.match(name) is None or _RESERVED.match(name) or not name.endswith(_READABLE):
        raise PolicyError(
            f"“{name[:100]}” is not the name of a policy file; write letters, digits, spaces and "
            f". _ - ( ) +, without a folder, ending in {SUFFIX}"
        )
    return name
