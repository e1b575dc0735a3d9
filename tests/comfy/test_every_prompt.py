"""The setting that places every prompt never costs a prompt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import folder_paths
import pytest
from graphs import register

VAE = {
    "1": {"class_type": "VAELoader", "inputs": {"vae_name": "vae.safetensors"}},
    "2": {"class_type": "VAEDecode", "inputs": {"vae": ["1", 0]}},
    "3": {"class_type": "PreviewImage", "inputs": {"images": ["2", 0]}},
    "4": {"class_type": "CLIPLoader", "inputs": {"clip_name": "clip.safetensors", "type": "sd3"}},
    "5": {"class_type": "PreviewImage", "inputs": {"images": ["4", 0]}},
}
LOADER = "LayerwiseOffload_Loader"


@pytest.fixture
def handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    register()
    monkeypatch.setattr(folder_paths, "get_user_directory", lambda: str(tmp_path))
    (tmp_path / "default").mkdir()
    return sys.modules["layerwise_offload_under_test.nodes.every_prompt"]


def settings(text: str) -> None:
    Path(folder_paths.get_user_directory(), "default", "comfy.settings.json").write_text(text)


def test_off_without_a_file_and_off_unless_it_says_so(handler: Any) -> None:
    request = {"prompt": VAE}
    assert handler.placed_if_wanted(request) is request
    for text in ("{}", f'{{"{handler.SETTING}": false}}', f'{{"{handler.SETTING}": "yes"}}'):
        settings(text)
        assert handler.placed_if_wanted(request) is request


def test_of_a_partial_run_only_what_it_needs_is_placed(handler: Any) -> None:
    settings(f'{{"{handler.SETTING}": true}}')
    placed = handler.placed_if_wanted({"prompt": VAE, "partial_execution_targets": ["3"], "number": 7})
    (loader,) = [node for node in placed["prompt"].values() if node["class_type"] == LOADER]
    assert loader["inputs"] == {"vae": ["1", 0]}
    assert placed["number"] == 7
    (loader,) = [
        node
        for node in handler.placed_if_wanted({"prompt": VAE})["prompt"].values()
        if node["class_type"] == LOADER
    ]
    assert set(loader["inputs"]) == {"clip", "vae"}


@pytest.mark.parametrize(
    "request_",
    [
        {"prompt": {"1": {"class_type": "VAEDecode"}}},
        {"prompt": {"1": 3}},
        {"prompt": {"1": {"class_type": [], "inputs": {}}}},
        {"prompt": [1]},
        {"prompt": VAE, "partial_execution_targets": 4},
        {},
        [],
    ],
)
def test_what_cannot_be_understood_runs_as_it_came_with_one_line_at_most(
    handler: Any, request_: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings(f'{{"{handler.SETTING}": true}}')
    assert handler.placed_if_wanted(request_) is request_
    assert len(caplog.records) <= 1
    assert all("runs as it is" in record.message for record in caplog.records)


def test_settings_that_cannot_be_read_are_off(handler: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings("{")
    request = {"prompt": VAE}
    assert handler.placed_if_wanted(request) is request
    assert len(caplog.records) == 1
