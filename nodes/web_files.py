"""How long a browser may keep the pack's files: never without asking.

ComfyUI says so for `.js` and `.css` only. Of the rest a browser keeps yesterday's, which an updated entry cannot use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .running_server import running_server

# ComfyUI serves a pack's files under the name of its folder, as it was found: a link counts, not what it leads to.
_OURS = f"/extensions/{Path(__file__).parents[1].name}/"


def add_cache_header() -> None:
    """Have the running server send the header with our files; where there is none, nobody asks for them."""
    running = running_server()
    # A pack that is loaded anew keeps the header of its first time: a started server takes no more hooks.
    if running is not None and not running.app.on_response_prepare.frozen:
        running.app.on_response_prepare.append(_ask_each_time)


async def _ask_each_time(request: Any, response: Any) -> None:
    if request.path.startswith(_OURS):
        response.headers.setdefault("Cache-Control", "no-cache")
