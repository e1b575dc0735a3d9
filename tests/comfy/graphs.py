"""Run API prompts of the pack's nodes in core's own executor, in this process."""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Prompt = dict[str, dict[str, Any]]


class Text:
    """A node that gives one text, or several, so that the node behind it runs once for each."""

    RETURN_TYPES = ("*",)
    OUTPUT_IS_LIST = (True,)
    FUNCTION = "run"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"texts": ("STRING",)}}

    def run(self, texts: str) -> tuple[list[str]]:
        return (texts.split("|"),)


class Sink:
    """An output node that keeps what reaches it."""

    RETURN_TYPES = ()
    OUTPUT_NODE = True
    FUNCTION = "run"
    CATEGORY = "test"
    seen: list[Any] = []  # noqa: RUF012 — the node's class is the only thing that outlives a run

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"value": ("*",)}}

    @classmethod
    def IS_CHANGED(cls, **_: Any) -> float:
        return float("nan")  # never cached: every run shows what it gets

    def run(self, value: Any) -> dict[str, Any]:
        self.seen.append(value)
        return {}


class Graph:
    """One executor with its cache, as one running server has it."""

    def __init__(self) -> None:
        import execution

        self.server = SimpleNamespace(
            client_id=None, last_node_id=None, last_prompt_id=None, send_sync=lambda *_: None
        )
        none = {"lru": 0, "ram": 0.0, "ram_inactive": 0.0}
        self.executor = execution.PromptExecutor(self.server, execution.CacheType.CLASSIC, none)

    def run(self, prompt: Prompt, prompt_id: str = "prompt") -> list[Any]:
        """Execute a prompt; returns what its sinks received in this run."""
        Sink.seen.clear()
        prompt = copy.deepcopy(prompt)  # core notes in a prompt what it has asked the nodes
        outputs = [name for name, node in prompt.items() if node["class_type"] in ("Sink", *_OUTPUTS)]
        self.executor.execute(prompt, prompt_id, {}, outputs)
        for event, data in self.executor.status_messages:
            if event == "execution_error":
                raise RuntimeError(data["exception_message"].strip())
        return list(Sink.seen)

    def ui(self, node_id: str) -> dict[str, Any]:
        """Return what a node showed in the last run."""
        shown: dict[str, Any] = self.executor.history_result["outputs"][node_id]
        return shown


_OUTPUTS = ("LayerwiseOffload_SavePolicy", "LayerwiseOffload_PlacementReport")


def register(folder: Path = ROOT) -> ModuleType:
    """Load the pack as core does, and make its nodes and the test nodes known to core."""
    import nodes as core

    name = "layerwise_offload_under_test"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for node in asyncio.run(_nodes(module)):
            core.NODE_CLASS_MAPPINGS[node.GET_SCHEMA().node_id] = node
        core.NODE_CLASS_MAPPINGS.update({"Text": Text, "Sink": Sink})
    return sys.modules[name]


async def _nodes(pack: ModuleType) -> list[Any]:
    found: list[Any] = await (await pack.comfy_entrypoint()).get_node_list()
    return found


def validate(prompt: Prompt) -> list[str]:
    """Return what core's validation says against a prompt, before anything runs."""
    import execution

    _, _, _, errors = asyncio.run(execution.validate_prompt("prompt", prompt, None))
    return [problem["details"] for node in errors.values() for problem in node["errors"]]


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    """Return a node of an API prompt; `kind` without the pack's prefix."""
    prefix = "" if kind in ("Text", "Sink") else "LayerwiseOffload_"
    return {"class_type": f"{prefix}{kind}", "inputs": inputs}


def only(graph: Graph, prompt: Prompt, last: str = "1") -> Any:
    """Run a prompt, and return the one policy that its last node hands on."""
    (policy,) = graph.run(prompt | {"sink": node("Sink", value=[last, 0])})
    return policy
