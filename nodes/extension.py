"""The pack as ComfyUI sees it."""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from .check_machine import CheckMachineNode
from .every_prompt import add_prompt_handler
from .help_pages import add_help_pages
from .live import add_live
from .loader import LoaderNode
from .model_loaders import model_loaders
from .other_loader import OtherModelsNode
from .placement_policy import PlacementPolicyNode
from .placement_report import PlacementReportNode
from .policy_files import LoadPolicyNode, SavePolicyNode
from .routes import add_routes
from .set_placement import SetPlacementNode
from .timeline_route import add_timeline_route
from .web_files import add_cache_header


class LayerwiseOffloadExtension(ComfyExtension):
    """Registers the nodes."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """Return the node classes, in the order in which they are used; a running server gets the routes."""
        add_routes()
        add_timeline_route()
        add_live()
        add_cache_header()
        add_help_pages()
        add_prompt_handler()
        return [
            PlacementPolicyNode,
            SetPlacementNode,
            LoadPolicyNode,
            SavePolicyNode,
            LoaderNode,
            OtherModelsNode,
            *model_loaders(),
            PlacementReportNode,
            CheckMachineNode,
        ]
