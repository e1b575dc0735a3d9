"""The one folder that policy files are read from and written to, whatever name a workflow asks for.

A workflow comes from somebody else, so a file name in it is untrusted: it is a bare name, and the file that it
resolves to has to lie in the folder, links followed.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from ...errors import PolicyError
from ..arguments import Source, SourceKind
from ..hints import suggest
from ..policy import Policy
from .codec import parse_policy
from .reader import MAX_BYTES, read_raw

SUFFIX = ".offload.yaml"
DEFAULT_FILE = f"default{SUFFIX}"
"""The file whose values hold for every workflow of this user, below everything else that is explicit."""

_SUFFIXES = (".yaml", ".yml", ".json")
_MAX_NAME = 240
"""Bytes of a name; file systems end at 255."""
_NOWHERE = re.compile(r'[<>:"/\\|?*]')
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])\s*(\.|$)", re.IGNORECASE)
"""What Windows takes for a device, whatever the suffix."""


def file_name(name: str) -> str:
    """Return the name of the file that a person means: a name without a suffix gets `.offload.yaml`.

    Saving, loading and listing all go through here. A file that a browser has renamed (`policy.offload (1).yaml`)
    keeps its name.

    Raises:
        PolicyError: it is no bare name that every file system can hold.
    """
    full = name.strip()
    if not full.lower().endswith(_SUFFIXES):
        full += ".yaml" if full.lower().endswith(".offload") else SUFFIX
    if (
        not full.isprintable()  # nor are surrogates, and marks that turn the direction of a text
        or full.startswith(".")
        or _NOWHERE.search(full)
        or _DEVICE.match(full)
        or len(full.encode()) > _MAX_NAME
    ):
        raise PolicyError(
            f"“{name[:100]}” is not the name of a policy file; write a name without a folder, such as card{SUFFIX}, "
            'and without < > : " / \\ | ? *'
        )
    return full


class PolicyFolder:
    """The policy files of one ComfyUI user."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        """Return the names of the files that can be read, sorted; none where there is no folder to be listed."""
        try:
            with os.scandir(self.root) as found:
                named = [entry for entry in found if _is_name(entry.name)]
                return sorted(e.name for e in named if e.is_file(follow_symlinks=False) or self.has(e.name))
        except OSError:
            return []

    def has(self, name: object) -> bool:
        """Tell whether `read` would find a file."""
        try:
            return self._file(file_name(str(name))) is not None
        except PolicyError:
            return False

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            PolicyError: the name is not a bare file name, leads out of the folder, or there is no such file.
        """
        name = file_name(name)
        path = self._file(name)
        if path is None:
            known = self.names()
            hint = suggest(name, known) if known else "there is none yet; Save Placement Policy writes one"
            raise PolicyError(
                f"there is no policy file “{name[:100]}” in the policy folder of this user: {hint}"
            )
        try:
            with path.open("rb") as file:
                return file.read(MAX_BYTES + 1)
        except OSError as error:
            raise PolicyError(f"the policy file “{name}” cannot be read: {error.strerror or error}") from None

    def load(self, name: str) -> Policy:
        """Read the policy of a file.

        Raises:
            PolicyError: as `read`, or the file is not a policy.
        """
        return parse_policy(self.read(name), Source(SourceKind.FILE, f"file {file_name(name)}"))

    def user_default(self) -> Policy:
        """Read what holds for every workflow of this user; nothing when there is no such file.

        Raises:
            PolicyError: the file is there and is not a policy.
        """
        if self._file(DEFAULT_FILE) is None:
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
                written, or `read_raw` refuses the content.
        """
        name = file_name(name)
        read_raw(text, name)  # what could not be read again is not worth a file
        content = text.encode()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            path = self._inside(name)
            if path is None:
                raise PolicyError(f"“{name}” leads out of the policy folder")
            self._write(path, content, replace)
        except OSError as error:
            raise PolicyError(
                f"the policy file “{name}” cannot be written: {error.strerror or error}"
            ) from None
        return name

    def _write(self, path: Path, content: bytes, replace: bool) -> None:
        temporary = self.root / f".{secrets.token_hex(8)}.part"
        try:
            with temporary.open("xb") as file:
                file.write(content)
            if replace:
                os.replace(temporary, path)
            else:
                _publish(temporary, path)
        except FileExistsError:
            if path.read_bytes() != content:
                raise PolicyError(
                    f"“{path.name}” is there already; choose another name, or switch overwrite on"
                ) from None
        finally:
            temporary.unlink(missing_ok=True)

    def _file(self, name: str) -> Path | None:
        """Return the real path of a file, or None when there is none in the folder."""
        path = self._inside(name)
        return path if path is not None and os.path.isfile(path) else None

    def _inside(self, name: str) -> Path | None:
        """Return the real path of a name, or None when it leads out of the folder."""
        # Path.resolve and Path.is_file raise where a link loops or a folder is closed; these do not.
        path = os.path.realpath(self.root / name)
        return Path(path) if os.path.dirname(path) == os.path.realpath(self.root) else None


def _is_name(name: str) -> bool:
    try:
        return file_name(name) == name
    except PolicyError:
        return False


def _publish(temporary: Path, path: Path) -> None:
    """Give a written file its name.

    Raises:
        FileExistsError: the name is taken, perhaps only since a moment ago.
    """
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: an empty file holds the name meanwhile
        path.open("xb").close()
        try:
            os.replace(temporary, path)
        except OSError:
            path.unlink()
            raise
