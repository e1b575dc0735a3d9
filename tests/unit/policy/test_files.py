"""Policy files: what they say, where they are wrong, and that nothing is lost on the way there and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import strategies as s
from hypothesis import given

from offload_runtime.errors import PolicyError
from offload_runtime.policy import Policy, Setting, Source, SourceKind
from offload_runtime.policy.files import as_json, dump_policy, parse_policy
from offload_runtime.policy.files.codec import HEADER
from offload_runtime.policy.files.legacy import WITHOUT_MEANING
from offload_runtime.policy.files.reader import MAX_BYTES
from offload_runtime.policy.files.schema import json_schema
from offload_runtime.policy.settings import spell_value

ROOT = Path(__file__).resolve().parents[3]
FIXTURES = Path(__file__).parent / "fixtures"
FILE = Source(SourceKind.FILE, "my.offload.yaml")


def parse(text: str | bytes) -> Policy:
    return parse_policy(text, FILE)


def said(policy: Policy) -> list[list[str]]:
    return [[str(a.setting), a.selector, spell_value(a.setting, a.value)] for a in policy.arguments]


@pytest.mark.parametrize(
    "file", sorted(f for f in FIXTURES.rglob("*.offload.*")), ids=lambda f: f"{f.parent.name}/{f.name}"
)
def test_files_of_every_released_version_keep_their_meaning(file: Path) -> None:
    expected = json.loads((file.parent / f"{file.name.split('.')[0]}.json").read_text())
    policy = parse(file.read_bytes())
    assert said(policy) == expected
    assert {a.source for a in policy.arguments} == {FILE}


@pytest.mark.parametrize("file", sorted((ROOT / "example_policies").iterdir()), ids=lambda f: f.name)
def test_the_example_policies_are_read_and_survive_the_round_trip(file: Path) -> None:
    policy = parse(file.read_bytes())
    assert policy.arguments
    assert parse(dump_policy(policy)) == policy.flattened(FILE)


@given(s.policies(strict=True))
def test_reading_what_was_written_gives_the_same_decisions(policy: Policy) -> None:
    text = dump_policy(policy)
    assert parse(text) == policy.flattened(FILE)
    as_json_too = as_json(text)
    json.loads(as_json_too)
    assert parse(as_json_too) == policy.flattened(FILE)


def test_a_written_file_says_who_asked() -> None:
    node = Source(SourceKind.NODE, "Placement Policy, node 12:5")
    last = Source(SourceKind.OVERRIDE, "Set Placement,\nnode 3")
    policy = Policy.from_widgets(
        node, mode="speed", strict="on", placements={"vae": "cpu"}, via={"mode": "node 7"}
    )
    policy = policy.extended(
        Policy.for_component(last, "text_encoder_2", placement="layerwise", vram_budget="1.5GB")
    )
    policy = policy.extended(Policy.for_component(last, "vae", device="1"))
    assert dump_policy(policy) == HEADER + (
        "version: 1\n"
        "mode: speed  # Placement Policy, node 12:5, linked from node 7\n"
        "strict: on  # Placement Policy, node 12:5\n"
        "components:\n"
        "  text_encoder_2:\n"
        "    placement: layerwise  # Set Placement, node 3\n"
        "    vram_budget: 1536MB  # Set Placement, node 3\n"
        "  vae:\n"
        "    placement: cpu  # Placement Policy, node 12:5\n"
        "    device: gpu:1  # Set Placement, node 3\n"
    )


def test_an_empty_policy_is_a_valid_file() -> None:
    assert parse(dump_policy(Policy())) == Policy()
    for text in ("", "# nothing\n", "version: 1\ncomponents:\n", "---\n"):
        assert parse(text) == Policy()


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("vae: cpu", 1, 1, "there is no key “vae”; possible: version, mode, strict, vram_budget, components"),
        ("version: 1\nmoed: speed", 2, 1, "there is no key “moed”; did you mean mode?"),
        ("text_encoder_cpu_ofload: true", 1, 1, "did you mean text_encoder_cpu_offload"),
        ("mode: fast", 1, 7, "mode: “fast” is not a mode"),
        ("mode: [auto]", 1, 7, "“mode” needs one word here"),
        ("vram_budget: 6", 1, 14, ": vram_budget: “6” is not a budget; did you mean 6GB?"),
        ("components:\n  vae: {vram_budget: 6}", 2, 22, ": vram_budget: “6” is not a budget"),
        ("components:\n  vae: {device: x}", 2, 17, ": device: “x” is not a device"),
        ("components:\n  vae: {placement: x}", 2, 20, ": placement: “x” is not a placement"),
        ("components:\n  clip: cpu", 2, 3, "did you mean text_encoder?"),
        ("components:\n  text_encoder_1: cpu", 2, 3, "the first one is text_encoder"),
        ("vram_budget: 6\u212aB", 1, 14, "is not a budget"),
        ("strict: maybe", 1, 9, "is not a switch"),
        ("version: 2", 1, 10, "this pack reads version 1"),
        ("version: {a: b}", 1, 10, "this pack reads version 1"),
        ("components:\n  tex_encoder: cpu", 2, 3, "did you mean text_encoder"),
        ("components:\n  vae, vea: cpu", 2, 3, "there is no component or group “vea”"),
        ("components:\n  vae: gpu", 2, 8, "“gpu” is not a placement; did you mean resident?"),
        ("components:\n  vae: [cpu]", 2, 8, "“vae” needs a placement or a mapping here"),
        ("components: [vae]", 1, 13, "“components” needs a mapping here"),
        (
            "components:\n  vae:\n    placment: cpu",
            3,
            5,
            "there is no setting “placment”; did you mean placement?",
        ),
        ("components:\n  vae:\n    host: [pinned]", 3, 11, "“host” needs one word here"),
        (
            "components:\n  vae: cpu\n  text_encoder, vae: cpu",
            3,
            3,
            "vae is named twice: here and under “vae”",
        ),
        ("components:\n  none, vae: cpu", 2, 3, "one or the other"),
        ("mode: auto\nmode: auto", 2, 1, "“mode” is there twice; it is on line 1 already"),
        ('{"mode": "auto",\n\t"mode": "auto"}', 2, 2, "is there twice"),
        ("- vae", 1, 1, "a policy file is a mapping"),
        ("[]", 1, 1, "a policy file is a mapping"),
        ("vae", 1, 1, "a policy file is a mapping"),
        ("a: &x cpu", 1, 4, "anchors and aliases are not allowed"),
        ("mode: *x", 1, 7, "anchors and aliases are not allowed"),
        ("a: &x [*x]", 1, 4, "anchors and aliases are not allowed"),
        ("<<: {mode: auto}", 1, 1, "there is no key “<<”"),
        ("mode: !!python/object/apply:os.system [ls]", 1, 7, "the tag"),
        ("!x {}", 1, 1, "the tag"),
        ("? [a]\n: b", 1, 3, "a key is a word"),
        ("mode: auto\n---\nmode: auto", 2, 1, "another document"),
        ("mode: 'auto", 1, 12, "unexpected end"),
        ("mode: auto\n\tstrict: on", 2, 1, "cannot start any token"),
        ("[" * 20, 1, 9, "nested at most 8 deep"),
        ("{" * 60_000, 1, 9, "nested at most 8 deep"),
        (
            "components:\n" + "".join(f"  text_encoder_{i}: cpu\n" for i in range(2, 2500)),
            2000,
            22,
            "at most 4000",
        ),
        ("mode: au\x00to", 1, 9, "U+0000 cannot be in a policy file"),
        ('{"mode": "\\ud83d"}', 1, 10, "half a character"),
        ("mode: auto\n" + "#" * MAX_BYTES, 1, 1, "a policy has at most 65536"),
        (b"mode: auto\nmode: \xff", 2, 7, "not UTF-8"),
        ("mode: auto".encode("utf-16"), 1, 1, "not UTF-8"),
        ("mode: \udcff", 1, 7, "not UTF-8"),
        ("cpu_offload_components: [vae, {a: b}]", 1, 25, "a word or a list of words is needed"),
        ("vae_cpu_offload: 3", 1, 18, "“3” is not a switch"),
        ("performance_mode: fast", 1, 19, "is not a mode"),
        ("mode: auto\ncomponent_residency: vae", 2, 22, "“vae” is not COMPONENT=MODE"),
        ("component_residency: {vae: residnt}", 1, 22, "did you mean resident"),
        ("component_residency: {vea: ~}", 1, 22, "there is no component or group “vea”"),
        (
            "dit_offload_prefetch_size: 2",
            1,
            1,
            "“dit_offload_prefetch_size” is SGLang's and has no meaning here: ",
        ),
        ("--layerwise-resident-layers: 4", 1, 1, "has no meaning here: vram_budget says"),
        ("mode: auto\nnum-gpus: 2", 2, 1, "“num-gpus” is SGLang's and has no meaning here"),
    ],
)
def test_every_mistake_is_one_sentence_with_its_place(
    text: str | bytes, line: int, column: int, says: str
) -> None:
    with pytest.raises(PolicyError) as error:
        parse(text)
    assert (error.value.line, error.value.column) == (line, column)
    assert str(error.value).startswith(f"my.offload.yaml, line {line}, column {column}: ")
    assert says in str(error.value)
    assert len(str(error.value)) < 400
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", sorted(WITHOUT_MEANING))
def test_a_key_of_sglang_s_is_no_unknown_key(key: str) -> None:
    for written in (key, f"--{key.replace('_', '-')}", key.upper()):
        with pytest.raises(PolicyError, match="is SGLang's and has no meaning here: ") as error:
            parse(f"{written}: x")
        assert len(str(error.value)) < 300


def test_yaml_words_stay_words() -> None:
    policy = parse("strict: yes\nmode: 'AUTO'\nvram_budget: 50%\ncomponents: {vae: ~}")
    assert said(policy) == [["strict", "all", "on"], ["total_budget", "all", "50%"]]


def test_json_characters_beyond_the_first_plane_are_whole() -> None:
    with pytest.raises(PolicyError, match="“😀”"):
        parse('{"mode": "\\ud83d\\ude00"}')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vae_cpu_offload: true", {"vae": "offload"}),
        ("vae_cpu_offload: false", {"vae": "resident"}),
        ("text_encoder_cpu_offload: null", {}),
        ("layerwise_offload_components: null", {}),
        ("layerwise_offload_components: none", {}),
        ("layerwise_offload_components: []", {}),
        ("layerwise_offload_components: []\ntext_encoder_cpu_offload: true", {"text_encoder": "offload"}),
        ("component_residency: []", {}),
        ("component_residency: {}", {}),
        ("layerwise_offload_components: [default]", {"default": "layerwise"}),
        ("layerwise-offload-modules: dit, all", {"all": "layerwise"}),
        ("dit_layerwise_offload: true\ndit_cpu_offload: true", {"dit": "layerwise"}),
        ("dit_layerwise_offload: false", {"dit": "resident"}),
        ("dit_layerwise_offload: false\ndit_cpu_offload: true", {"dit": "offload"}),
        ("dit_layerwise_offload: false\nlayerwise_offload_components: dit", {"dit": "layerwise"}),
        ("cpu_offload_components: [dit, vae]", {"dit": "offload", "vae": "offload"}),
        ("cpu_offload_components: none\nvae_cpu_offload: true", {"all": "resident"}),
        ("cpu_offload_components: []\nvae_cpu_offload: true", {"all": "resident"}),
        ("cpu_offload_components: vae\nlayerwise_offload_components: vae", {"vae": "layerwise"}),
        ("layerwise_offload_components: all\nvae_cpu_offload: true", {"all": "layerwise"}),
        ("text_encoder_cpu_offload: true\nlayerwise_offload_components: text_encoder_2",
         {"text_encoder": "offload", "text_encoder_2": "layerwise"}),
        ("component_residency:\n  vae: snapshot-offload\n  text_encoder: layerwise_offload\n  dit: auto",
         {"vae": "offload", "text_encoder": "layerwise"}),
        ("component_residency: [vae=resident, dit=component-offload]\nvae_cpu_offload: true",
         {"vae": "resident", "dit": "offload"}),
        ("vae_cpu_offload: true\ncomponents: {vae: cpu}", {"vae": "cpu"}),
        ("layerwise_offload_components: vae\ncomponents: {default: resident}", {"default": "resident"}),
    ],
)  # fmt: skip
def test_sglang_names_mean_what_they_mean_there(text: str, expected: dict[str, str]) -> None:
    policy = parse(text)
    assert {a.selector: str(a.value) for a in policy.arguments} == expected
    assert {a.setting for a in policy.arguments} <= {Setting.PLACEMENT}


@pytest.mark.parametrize(
    ("text", "tier"), [("pin_cpu_memory: true", "pinned"), ("pin_cpu_memory: off", "staged")]
)
def test_sglang_pinning(text: str, tier: str) -> None:
    assert said(parse(text)) == [["host", "all", tier]]


def test_sglang_modes_lose_to_our_own() -> None:
    assert said(parse("performance_mode: speed\nmode: memory")) == [["mode", "all", "memory"]]


def test_the_committed_schema_is_the_schema() -> None:
    committed = json.loads((ROOT / "web" / "policy.schema.json").read_text(encoding="utf-8"))
    assert committed == json_schema(), "run: python -m offload_runtime schema > web/policy.schema.json"


def test_the_schema_accepts_what_is_read_and_refuses_what_is_not() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    yaml = pytest.importorskip("yaml")
    validator = jsonschema.Draft202012Validator(json_schema())
    files = [*(ROOT / "example_policies").iterdir(), FIXTURES / "v1" / "no-version.offload.yaml"]
    for file in files:
        validator.validate(yaml.safe_load(file.read_text()))
    wish = Policy.for_component(FILE, "vae", placement="cpu", vram_budget="1GB", device="1", host="staged")
    policy = Policy.from_widgets(FILE, mode="speed", strict="on", vram_budget="50%").extended(wish)
    validator.validate(json.loads(as_json(dump_policy(policy))))
    for wrong in (
        {"vae": "cpu"},
        {"components": {"vea": "cpu"}},
        {"components": {"vae_1000": "cpu"}},
        {"mode": "fast"},
        {"vram_budget": 6},
        {"version": 2},
    ):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(wrong)
