"""Load and Save Placement Policy: policies as files in the user's folder, or as text."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import folder_paths
from comfy_api.latest import io

from ..offload_runtime.errors import PolicyError
from ..offload_runtime.policy import SWITCH, Policy, Source, SourceKind, is_set
from ..offload_runtime.policy.files import (
    DEFAULT_FILE,
    PolicyFolder,
    as_json,
    dump_policy,
    file_name,
    parse_policy,
)
from .checks import OpenList, choices
from .compat import known_options
from .sockets import CATEGORY, PlacementPolicy


def policy_folder() -> PolicyFolder:
    """Return the folder of this ComfyUI's policy files; it is made when the first one is saved."""
    return PolicyFolder(Path(folder_paths.get_user_directory()) / "layerwise_offload")


def fingerprint(name: str) -> str:
    """Return what changes when a policy file does, so that ComfyUI's cache does not keep its old values."""
    try:
        return hashlib.sha256(policy_folder().read(name)).hexdigest()
    except PolicyError:
        return ""  # whatever other files there are


def policy_of(node_id: str | None, values: Mapping[str, Any]) -> Policy:
    """Return what a Load Placement Policy node with these widget values reads.

    Raises:
        PolicyError: the file or the text is not a policy, or there is no such file.
    """
    return _read(node_id, values.get("file"), values.get("text"))


class LoadPolicyNode(io.ComfyNode):
    """Read a policy from a file of this user, or from text."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Both sources are optional; what neither sets is decided automatically."""
        folder = policy_folder()
        return known_options(
            io.Schema,
            node_id="LayerwiseOffload_LoadPolicy",
            display_name="Load Placement Policy",
            category=CATEGORY,
            description="Reads a placement policy (*.offload.yaml) from ComfyUI's user folder, or from text. "
            "Placement Policy and Set Placement nodes win over it.",
            search_aliases=["policy file", "yaml", "offload preset", "layerwise", "vram preset"],
            inputs=[
                io.Combo.Input(
                    "file",
                    options=OpenList(["auto", *folder.names()], folder.has),
                    default="auto",
                    optional=True,
                    tooltip="A file in the folder layerwise_offload of ComfyUI's user directory. auto: none. The file "
                    f"{DEFAULT_FILE} holds for every workflow without this node.",
                ),
                io.String.Input(
                    "text",
                    default="",
                    multiline=True,
                    optional=True,
                    tooltip="A policy as YAML or JSON, for example “text_encoder: layerwise” below “components:”. "
                    "Wins over the file. Empty, or auto: not set.",
                ),
                PlacementPolicy.Input(
                    "base",
                    optional=True,
                    tooltip="A policy to start from; an earlier file loses to this one.",
                ),
            ],
            outputs=[
                PlacementPolicy.Output(
                    "policy", display_name="policy", tooltip="What the file and the text ask for."
                )
            ],
            hidden=[io.Hidden.unique_id],
            not_idempotent=True,  # the same text in another node has another source
        )

    @classmethod
    def fingerprint_inputs(
        cls, file: str | None = None, text: str | None = None, base: Policy | None = None
    ) -> str:
        """Read the file again when its content has changed."""
        return fingerprint(str(file)) if is_set(file) else ""

    @classmethod
    async def validate_inputs(cls, text: str | None = None) -> bool | str:
        """Refuse a broken text before anything runs, with line and column."""
        try:
            await asyncio.to_thread(_read, None, None, text)  # the server goes on meanwhile
        except PolicyError as error:
            return str(error)
        return True

    @classmethod
    def execute(
        cls, file: str | None = None, text: str | None = None, base: Policy | None = None
    ) -> io.NodeOutput:
        """Chain the file and then the text behind the base."""
        return io.NodeOutput((base or Policy()).extended(_read(cls.hidden.unique_id, file, text)))


class SavePolicyNode(io.ComfyNode):
    """Write a policy to a file of this user, and show its text."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """An output node: it runs even when nothing uses its output."""
        return known_options(
            io.Schema,
            node_id="LayerwiseOffload_SavePolicy",
            display_name="Save Placement Policy",
            category=CATEGORY,
            description="Writes a placement policy as *.offload.yaml into ComfyUI's user folder, each value with "
            "the node that set it as a comment. Load Placement Policy reads it again.",
            search_aliases=["policy file", "yaml", "export policy", "offload preset", "layerwise"],
            inputs=[
                PlacementPolicy.Input("policy", tooltip="The policy to write."),
                io.String.Input(
                    "file",
                    default="auto",
                    optional=True,
                    tooltip="The name of the file, without a folder. auto: nothing is written, the text is shown only. "
                    f"{DEFAULT_FILE} holds for every workflow from then on.",
                ),
                io.Combo.Input(
                    "overwrite",
                    options=choices(SWITCH),
                    default="auto",
                    optional=True,
                    tooltip="Whether a file of that name with another content is replaced. auto: off.",
                ),
            ],
            outputs=[io.String.Output("text", display_name="text", tooltip="The policy as YAML.")],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, policy: Policy, file: str | None = None, overwrite: str | None = None) -> io.NodeOutput:
        """Write, and show what was written."""
        text = dump_policy(policy)
        lines = [text]
        if is_set(file):
            name = file_name(str(file))
            content = as_json(text) if name.lower().endswith(".json") else text
            replace = is_set(overwrite) and SWITCH.parse(overwrite, "overwrite")
            policy_folder().write(name, content, replace=replace)
            lines.insert(0, f"saved as {name}")
        return io.NodeOutput(text, ui={"text": lines})


def _read(node_id: str | None, file: str | None, text: str | None) -> Policy:
    policy = policy_folder().load(str(file)) if is_set(file) else Policy()
    if is_set(text):
        place = f"policy text, node {node_id}" if node_id is not None else "policy text"
        policy = policy.extended(parse_policy(str(text), Source(SourceKind.FILE, place)))
    return policy
