"""The table that the command line and the report node show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from facts import FLUX, T5, VAE, machine

from offload_runtime.__main__ import main
from offload_runtime.policy import (
    PlacementRow,
    Policy,
    Report,
    Source,
    SourceKind,
    decision_table,
    resolve,
    unused_notes,
)
from offload_runtime.policy.described import described_components, described_machine
from offload_runtime.policy.explain import explain

ROOT = Path(__file__).resolve().parents[3]
NODE = Source(SourceKind.NODE, "Placement Policy, node 1")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["explain", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_table_without_a_policy(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, "--vram", "12GB", "--components", "text_encoder=9.5GB,diffusion_model=12GB,vae=0.3GB"
    )
    assert (code, err) == (0, "")
    assert out == (
        "Placement plan · mode auto · computes on cuda:0 · room for weights 10.80 GB (the card's 12.00 GB less "
        "1.20 GB for activations) · memory 32.00 GB\n"
        "\n"
        "component        weights   asked  decided    planned VRAM  host\n"
        "text_encoder     9.50 GB   auto   layerwise  770 MB        pinned\n"
        "diffusion_model  12.00 GB  auto   auto       9.75 GB       -\n"
        "vae              307 MB    auto   resident   307 MB        -\n"
        "\n"
        "text_encoder: 21.80 GB of weights do not fit in 10.80 GB (the card's 12.00 GB less 1.20 GB for activations) "
        "together, and an encoder runs its 24 layers once per prompt. On the host: 9.50 GB pinned.\n"
        "diffusion_model: placed only on request, so it is left to ComfyUI. On the host: 2.25 GB pinned.\n"
        "vae: a VAE's transfers would sit on the visible decode path. On the host: none.\n"
    )


def test_a_policy_file_and_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.offload.yaml"
    file.write_text(
        "components: {text_encoder: layerwise, video_vae: resident, transformer: {device: gpu:1}}"
    )
    words = ["--flags", "--reserve-vram 2 --disable-async-offload", "--ram", "16GB", "--accelerators", "2"]
    code, out, _ = run(
        capsys, str(file), *words, "--components", "text_encoder=4GB:12, diffusion_model=6GB:0"
    )
    assert code == 0
    assert "started with --reserve-vram 2 --disable-async-offload" in out
    assert "2.80 GB for activations and --reserve-vram 2" in out
    assert "--disable-async-offload allows no look-ahead" in out
    assert "gpu:1 from" in out
    assert f"video_vae is not in this workflow, so placement resident from {file} had nothing to do." in out


def test_headroom_is_taken_off_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--vram", "24GB", "--flags", "--vram-headroom 8")
    assert "14.80 GB (the card's 24.00 GB less 9.20 GB for activations and --vram-headroom 8)" in out
    _, out, _ = run(capsys, "--vram", "24GB", "--flags", "--vram-headroom 8 --disable-dynamic-vram")
    assert "22.80 GB (the card's 24.00 GB less 1.20 GB for activations)" in out


@pytest.mark.parametrize("words", [("--vram", "0B"), ("--flags=--cpu",)])
def test_a_machine_without_an_accelerator(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert "computes on cpu" in out
    assert "layerwise" not in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nowhere.offload.yaml",), "nowhere.offload.yaml cannot be read: No such file or directory"),
        (("--vram", "12"), "--vram: “12” is not an amount of memory; did you mean 12GB?"),
        (("--reserve", "x"), "--reserve: “x”"),
        (("--components", "vae"), "“vae” is not NAME=SIZE"),
        (("--components", "vea=1GB"), "there is no component or group “vea”"),
        (("--components", "vae=1GB,VAE=2GB"), "vae is there twice"),
        (("--components", "vae=1GB:many"), "“many” layers"),
        (("--components", "vae=1GB:٢٤"), "“٢٤” layers"),
        (("--components", " , "), "names nothing"),
        (("--flags", "novram"), "--flags: “novram” is not a flag of ComfyUI; they start with --"),
        (
            ("--flags=--fp16-text-enc --fp32-text-enc",),
            "only one of --fp16-text-enc and --fp32-text-enc",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_an_exit_code(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (1, "")
    assert says in err
    assert err.count("\n") == 1


def test_a_strict_policy_that_cannot_be_had(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "strict.offload.yaml"
    file.write_text("strict: on\ncomponents: {text_encoder: resident}")
    code, out, err = run(capsys, str(file), "--vram", "8GB")
    assert (code, out) == (1, "")
    assert "cannot do all of it" in err


def test_the_command_needs_neither_torch_nor_comfyui() -> None:
    code = (
        "import sys; from offload_runtime.__main__ import main; main(['explain']);"
        "sys.exit(bool({'torch', 'comfy', 'safetensors', 'psutil'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "layerwise" in done.stdout


def test_the_schema_command_prints_the_committed_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert capsys.readouterr().out == (ROOT / "web" / "policy.schema.json").read_text(encoding="utf-8")


def test_the_report_shows_the_same_table() -> None:
    facts, policy = (T5, FLUX, VAE), Policy.from_widgets(NODE, placements={"vae": "cpu"})
    plan = resolve(policy, machine(12), facts)
    rows = tuple(PlacementRow.of(f, d) for f, d in zip(facts, plan, strict=True))
    assert decision_table(rows) in Report("the machine", rows).text()
    assert decision_table(rows) in explain(policy, machine(12), facts)


def test_a_value_for_a_component_that_is_not_there_is_told_once() -> None:
    policy = Policy.for_component(NODE, "audio_vae", placement="cpu", vram_budget="2GB")
    default = Policy.for_component(Source(SourceKind.USER_DEFAULT, "your default"), "vae", placement="cpu")
    unused = policy.extended(policy, default).unused({"text_encoder"})
    assert unused_notes(unused) == (
        "audio_vae is not in this workflow, so placement cpu, vram_budget 2GB from Placement Policy, node 1 had "
        "nothing to do.",
    )


def test_described_facts() -> None:
    facts = described_machine(vram="8GB", ram="16GB", reserve="500MB", flags=("--cpu-vae",))
    assert (facts.inference_reserve, facts.flag("--cpu-vae"), facts.flag("--cpu")) == (
        500 << 20,
        "--cpu-vae",
        None,
    )
    (component,) = described_components("Text-Encoder-2=1GB:0", facts)
    assert (component.name, component.layers, component.layer_bytes) == ("text_encoder_2", 0, 0)


ENCODERS = "text_encoder=1GB,image_encoder=1GB,diffusion_model=1GB,vae=0.3GB"


@pytest.mark.parametrize(
    ("words", "on_cpu"),
    [
        (("--flags=--novram",), {"text_encoder", "image_encoder"}),
        (("--flags=--lowvram",), {"text_encoder", "image_encoder"}),
        (("--flags=--lowvram", "--dynamic-vram"), set()),
        (("--flags=--novram --enable-dynamic-vram",), set()),
        (("--flags=--cpu-vae",), {"vae"}),
        (("--flags=--gpu-only",), set()),
        (("--shared-memory",), {"text_encoder", "image_encoder"}),
        ((), set()),
    ],
)
def test_what_comfyui_computes_on_the_cpu_is_not_shown_on_the_card(
    words: tuple[str, ...], on_cpu: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, *words, "--components", ENCODERS)
    assert code == 0
    names = {entry.split("=")[0] for entry in ENCODERS.split(",")}
    rows = {row[0]: row for row in map(str.split, out.splitlines()) if row and row[0] in names}
    assert set(rows) == names
    assert {name for name, row in rows.items() if row[4] == "cpu"} == on_cpu
    assert all(row[5:7] == ["0", "B"] for row in rows.values() if row[4] == "cpu")


def test_dynamic_vram_can_be_described(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--vram", "12GB", "--dynamic-vram")
    assert "computes on cuda:0 under ComfyUI's dynamic VRAM" in out
    row = next(line for line in out.splitlines() if line.startswith("text_encoder "))
    assert row.endswith("-")  # ComfyUI keeps the weights on the host, so there is no tier of ours


def test_memory_of_other_programs_can_be_described(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--vram", "12GB", "--vram-used", "3GB", "--ram-used", "8GB")
    assert "room for weights 7.80 GB (the card's 12.00 GB less 1.20 GB for activations less 3.00 GB" in out
    assert "memory 24.00 GB free of 32.00 GB" in out


def test_shared_memory_can_be_described(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--ram", "16GB", "--shared-memory")
    assert "computes on mps, which shares its memory with the CPU" in out
    assert "the card's 16.00 GB" in out
    assert "layerwise" not in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("--flags=--novrm",),
            "--flags: ComfyUI has no flag “--novrm” that bears on placements; did you mean --novram",
        ),
        (("--flags=--listen 0.0.0.0",), "no flag “--listen” that bears on placements; possible: --cpu,"),
        (("--flags=--novram 3",), "--flags: --novram takes no value, and “3” follows it"),
        (("--flags=--reserve-vram",), "--flags: --reserve-vram needs a number of GB"),
        (("--flags=--reserve-vram -1",), "--flags: --reserve-vram needs a number of GB, and “-1” follows it"),
        (
            ("--flags=--reserve-vram 2GB",),
            "--flags: --reserve-vram needs a number of GB, and “2GB” follows it",
        ),
        (("--flags=--async-offload x",), "--flags: --async-offload takes a whole number, and “x” follows it"),
        (("--flags=--cpu --novram",), "--flags: ComfyUI starts with only one of --cpu and --novram"),
        (("--flags=--cpu-vae --cpu-vae",), "--flags: --cpu-vae is there twice"),
        (("--accelerators", "-3"), "--accelerators: “-3” is not a number of accelerators; write 0 to 99"),
        (("--accelerators", "٣"), "--accelerators: “٣” is not a number"),
        (("--accelerators", "many"), "--accelerators: “many” is not a number"),
        (("--components", "vae=1GB:12345"), "“12345” layers"),
        (("--components", "vae=1GB:-3"), "“-3” layers"),
        (("--vram-used", "13GB"), "--vram-used: 13.00 GB are more than the 12.00 GB there are"),
        (("--ram-used", "33GB"), "--ram-used: 33.00 GB are more than the 32.00 GB there are"),
        (("--shared-memory", "--vram", "8GB"), "--vram: with --shared-memory, --ram says it"),
        (("--shared-memory", "--vram-used", "8GB"), "--vram-used: with --shared-memory, --ram-used says it"),
        (("--shared-memory", "--dynamic-vram"), "--dynamic-vram: ComfyUI has none where memory is shared"),
        (("--dynamic-vram", "--flags=--novram"), "--dynamic-vram: ComfyUI has none with --novram"),
        (("--dynamic-vram", "--vram=0B"), "--dynamic-vram: ComfyUI has none without an accelerator"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (1, "")
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("word", ["--accel=2", "--vra=8GB", "--novram", "--gpu=1"])
def test_an_option_is_not_guessed(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", word])
    assert ended.value.code == 2
    assert "unrecognized arguments" in capsys.readouterr().err


def test_no_accelerators_are_a_machine_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--accelerators", "0")
    assert "computes on cpu" in out
