"""`python -m offload_runtime place`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from offload_runtime.__main__ import main

ROOT = Path(__file__).resolve().parents[3]
FLUX = Path(__file__).with_name("flux_lora.json")
POLICY = ROOT / "example_policies" / "small-card.offload.yaml"


def test_places_and_removes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, back = tmp_path / "placed.json", tmp_path / "back.json"
    assert main(["place", str(FLUX), "--policy", str(POLICY), "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"placed 3 models in 1 Loader\nwritten: {out}\n"
    placed = json.loads(out.read_text(encoding="utf-8"))
    (text,) = [node["widgets_values"][1] for node in placed["nodes"] if node["type"].endswith("LoadPolicy")]
    assert text == POLICY.read_text(encoding="utf-8")
    assert main(["place", str(out), "--remove", "-o", str(back)]) == 0
    assert capsys.readouterr().out == f"removed 2 nodes\nwritten: {back}\n"
    again = json.loads(back.read_text(encoding="utf-8")) | {"last_node_id": 11, "last_link_id": 14}
    assert again == json.loads(FLUX.read_text(encoding="utf-8"))


def test_names_what_it_does_not_know_and_learns_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = tmp_path / "prompt.json"
    prompt.write_text(
        json.dumps(
            {
                "1": {"class_type": "UnetLoaderGGUF", "inputs": {"unet_name": "flux.gguf"}},
                "2": {"class_type": "KSampler", "inputs": {"model": ["1", 0]}},
            }
        )
    )
    words = ["place", str(prompt), "--policy", str(POLICY), "-o", str(tmp_path / "out.json")]
    assert main(words) == 0
    assert (
        "not placed: node 1 (UnetLoaderGGUF): unknown node type UnetLoaderGGUF\n" in capsys.readouterr().out
    )
    info = tmp_path / "object_info.json"
    info.write_text(json.dumps({"UnetLoaderGGUF": {"input": {}, "output": ["MODEL"]}}))
    assert main([*words, "--object-info", str(info)]) == 0
    assert capsys.readouterr().out.startswith("placed 1 model in 1 Loader\nwritten")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "w.json is not JSON: "),
        ("[1]", "w.json: it is neither a workflow nor an API prompt; use ComfyUI's Save or Export (API)"),
        ('{"nodes": [7]}', "w.json: it is not a whole workflow: "),
        (None, "w.json cannot be read: No such file or directory"),
    ],
)
def test_says_what_is_wrong_with_the_workflow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, said: str
) -> None:
    file, out = tmp_path / "w.json", tmp_path / "out.json"
    if content is not None:
        file.write_text(content)
    assert main(["place", str(file), "--policy", str(POLICY), "-o", str(out)]) == 1
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1
    assert not out.exists()


def test_says_what_is_wrong_with_the_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, bad = tmp_path / "out.json", tmp_path / "bad.yaml"
    bad.write_text("components:\n  text_encodr: cpu\n")
    for words, said in (
        (["--policy", str(tmp_path / "none.yaml")], "none.yaml cannot be read: No such file or directory"),
        (["--policy", str(bad)], "text_encoder"),
        (["--policy", str(POLICY), "--object-info", str(POLICY)], "small-card.offload.yaml is not JSON"),
        (["--policy", str(POLICY), "--object-info", str(FLUX)], "no node types as /object_info gives them"),
    ):
        assert main(["place", str(FLUX), *words, "-o", str(out)]) == 1
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["place", str(FLUX), "-o", str(out)])
    assert "one of the arguments --policy --remove is required" in capsys.readouterr().err


def test_placing_needs_neither_torch_nor_comfyui() -> None:
    code = (
        "import sys, offload_runtime.workflow.command; "
        "sys.exit(bool({'torch', 'comfy', 'safetensors', 'psutil'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
