"""The node *Check this machine* in a real server, where the CPU computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from offload_runtime.policy.machine_check import FILE_NAME, parse_machine_check
from offload_runtime.policy.machine_text import machine_text
from scripts.comfy_client import ComfyClient, Interrupted, Prompt
from scripts.comfy_server import ComfyServer

PROMPT: Prompt = {
    "1": {"class_type": "LayerwiseOffload_CheckMachine", "inputs": {}},
    "2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}},
    "3": {"class_type": "LayerwiseOffload_CheckMachine", "inputs": {"after": ["1", 1]}},
}
ONE: Prompt = {"1": PROMPT["1"]}


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if "layerwise" in path.name)


def test_it_runs_each_time_and_its_result_is_in_the_users_folder(
    server: ComfyServer, client: ComfyClient
) -> None:
    told: list[int] = []
    first = client.run(PROMPT, lambda node, at: told.append(at[0]) if at and node == "1" else None)
    again = client.run(PROMPT)
    assert {"1", "3"} <= set(first.executed) & set(again.executed)
    assert told == sorted(told)
    assert len(told) > 3
    (text,), (data,) = again.outputs["3"]["text"], again.outputs["3"]["machine_check"]
    kept = parse_machine_check((server.base / "user" / FILE_NAME).read_bytes())
    assert kept.checked == data["checked"]
    assert machine_text(kept) == text
    assert kept.kind == "cpu"
    assert kept.comfyui
    assert [v.claim for v in kept.verdicts if v.holds] == ["streamed equals resident, from a file"]
    assert "because the CPU computes here" in text
    assert left_in(server.base / "temp") == []


def test_an_interrupt_ends_it_and_the_result_before_stays(server: ComfyServer, client: ComfyClient) -> None:
    client.run(ONE)
    file = server.base / "user" / FILE_NAME
    before = file.read_bytes()
    with pytest.raises(Interrupted):
        client.run(ONE, lambda node, at: client.interrupt() if at else None)
    assert file.read_bytes() == before
    assert left_in(server.base / "temp") == []
    others = {"layerwise_offload"}  # what other tests have saved of policies
    assert [name for name in left_in(server.base / "user") if name not in others] == [FILE_NAME]
