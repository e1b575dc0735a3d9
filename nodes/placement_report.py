"""Placement Report: what was asked, what was applied, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from . import sockets
from .compat import known_options
from .executed import common_policy_nodes, decisions
from .prompt import prompt_graph

if TYPE_CHECKING:
    from ..offload_runtime.adapter import Placements


class PlacementReportNode(io.ComfyNode):
    """Show where every placed component really lives."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """An output node: it runs even when nothing uses its outputs."""
        return known_options(
            io.Schema,
            node_id="LayerwiseOffload_PlacementReport",
            display_name="Placement Report",
            category=sockets.CATEGORY,
            description="Shows, for every placed component, what was asked, what the live model really does, and "
            "why. Connect after to the last step of the workflow, so that the report is taken when it is done.",
            search_aliases=["vram", "memory report", "offload report", "layerwise", "debug memory"],
            inputs=[
                sockets.Placements.Input(
                    "placements",
                    optional=True,
                    tooltip="The placements of the last Layerwise Offload Loader in the chain.",
                ),
                io.AnyType.Input(
                    "after",
                    optional=True,
                    tooltip="Anything: the report is taken after it, for example the decoded IMAGE.",
                ),
            ],
            outputs=[
                io.String.Output("report", display_name="report", tooltip="The report as text."),
                sockets.PlacementReport.Output(
                    "data", display_name="data", tooltip="The report as a dictionary of plain values."
                ),
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
            is_output_node=True,
            has_intermediate_output=True,
        )

    @classmethod
    def execute(cls, placements: Placements | None = None, after: Any = None) -> io.NodeOutput:
        """Read the live models."""
        from ..offload_runtime.adapter import Placements  # no start pays for it

        placed = placements or Placements()
        report = placed.report()
        text, data = report.text(), report.to_dict()
        graph = prompt_graph(cls.hidden.dynprompt)
        nodes = common_policy_nodes(graph, cls.hidden.unique_id)
        decided = decisions(graph, nodes, placed.policies, report.rows)
        return io.NodeOutput(
            text,
            data,
            ui={"text": [text], "placement_report": [data], "placement_decisions": [decided]},
        )
