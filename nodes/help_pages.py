"""Help pages in the languages that browsers ask for.

A frontend asks for `docs/<node>/<language>.md` first, English too, and for `docs/<node>.md` when that is not there,
which it logs as an error. So the server answers with the English page where there is none in the language.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .running_server import running_server

_PACK = Path(__file__).parents[1]
_DOCS = _PACK / "web" / "docs"
_WORD = re.compile(r"[\w-]+")


def add_help_pages() -> None:
    """Have the running server answer for every language; where there is none, nobody asks."""
    running = running_server()
    if running is not None:
        # Before ComfyUI's own answer for files of packs, which comes later.
        running.routes.get(rf"/extensions/{_PACK.name}/docs/{{node}}/{{language}}.md")(_page)


async def _page(request: Any) -> Any:
    from aiohttp import web

    node, language = request.match_info["node"], request.match_info["language"]
    if _WORD.fullmatch(node) and _WORD.fullmatch(language):
        for file in (_DOCS / node / f"{language}.md", _DOCS / f"{node}.md"):
            if file.is_file():
                return web.FileResponse(file)
    raise web.HTTPNotFound
