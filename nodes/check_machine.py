"""Check this machine: what it can do, measured, and whether the pack's claims hold on it."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from . import sockets
from .compat import known_options


class CheckMachineNode(io.ComfyNode):
    """Measure links, disk and overlap, and compare streamed with resident layers."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """An output node: it runs even when nothing uses its outputs."""
        return known_options(
            io.Schema,
            node_id="LayerwiseOffload_CheckMachine",
            display_name="Check this machine",
            category=sockets.CATEGORY,
            description="Measures, in less than a minute, how fast weights come to the device and from the disk, "
            "whether copies hide behind computing, and whether streamed layers give the same results as resident "
            "ones. The result is kept as layerwise_offload_machine.json in ComfyUI's user folder: attach it to a bug "
            "report.",
            search_aliases=[
                "benchmark",
                "bandwidth",
                "pcie speed",
                "vram",
                "diagnose",
                "layerwise",
                "offload",
            ],
            inputs=[
                io.AnyType.Input(
                    "after",
                    optional=True,
                    tooltip="Anything: the check begins after it. What else computes meanwhile makes it slower.",
                ),
            ],
            outputs=[
                io.String.Output("report", display_name="report", tooltip="What was found, as text."),
                sockets.PlacementReport.Output(
                    "data", display_name="data", tooltip="The same as a dictionary of plain values."
                ),
            ],
            is_output_node=True,
        )

    @classmethod
    def fingerprint_inputs(cls, **_: Any) -> float:
        """Never equal to itself, so that the check runs each time it is queued."""
        return float("nan")

    @classmethod
    def execute(cls, after: Any = None) -> io.NodeOutput:
        """Measure, and keep what was found."""
        from ..offload_runtime.adapter import machine  # no start pays for it
        from ..offload_runtime.policy.machine_text import machine_text

        check = machine.keep(machine.check_this_machine())
        text, data = machine_text(check), check.to_dict()
        return io.NodeOutput(text, data, ui={"text": [text], "machine_check": [data]})
