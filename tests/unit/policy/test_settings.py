"""The table of settings: for every row there is a place in files, in chains of nodes and in the schema for editors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import VALUES

from offload_runtime.policy import (
    COMPONENT_SETTINGS,
    SETTINGS,
    WORKFLOW_SETTINGS,
    Argument,
    Policy,
    Scope,
    Setting,
    SettingRow,
    Source,
    SourceKind,
    as_chain,
    parse_value,
    spell_value,
)
from offload_runtime.policy.files import dump_policy, parse_policy
from offload_runtime.policy.files.schema import json_schema
from offload_runtime.policy.hints import VALUE_WORDS

FILE = Source(SourceKind.FILE, "file")
rows = pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.setting.value)


def asked(row: SettingRow, value: Any) -> Policy:
    """Return a policy of one value."""
    selector = "all" if row.scope is Scope.WORKFLOW else "text_encoder_2"
    return Policy((Argument(row.setting, selector, value, FILE),))


def test_every_setting_has_one_row() -> None:
    assert sorted(row.setting for row in SETTINGS) == sorted(Setting)
    assert {*WORKFLOW_SETTINGS, *COMPONENT_SETTINGS} == set(Setting)
    assert len(WORKFLOW_SETTINGS) + len(COMPONENT_SETTINGS) == len(SETTINGS)


@pytest.mark.parametrize("scope", Scope)
def test_a_key_names_one_setting_of_a_scope(scope: Scope) -> None:
    keys = [row.key for row in SETTINGS if row.scope is scope]
    assert len(set(keys)) == len(keys)
    assert not {*keys} & {"version", "components", "component", "base"}


@rows
def test_a_row_says_what_it_is(row: SettingRow) -> None:
    assert row.setting.row is row
    assert row.tooltip.endswith(".")
    assert row.summary.endswith(".")
    assert not row.kind.choices or row.kind.choices[0] == "auto"
    assert all(word in row.tooltip for word in row.kind.choices), "the tooltip explains every choice"


@given(st.sampled_from(SETTINGS).flatmap(lambda row: st.tuples(st.just(row), VALUES[row.setting])))
def test_a_value_is_the_same_behind_text_file_and_chain(case: tuple[SettingRow, Any]) -> None:
    row, value = case
    text = spell_value(row.setting, value)
    assert parse_value(row.setting, text, "here") == value
    policy = asked(row, value)
    assert parse_policy(dump_policy(policy), FILE) == policy
    chain = as_chain(policy, ())
    said = chain.workflow if row.scope is Scope.WORKFLOW else chain.overrides[0]
    assert said[row.key] == text
    made = Policy.from_widgets(FILE, **chain.workflow).extended(
        *(Policy.for_component(FILE, **override) for override in chain.overrides)
    )
    assert made == policy


@rows
@pytest.mark.parametrize("written", [None, "auto", " AUTO ", ""])
def test_auto_sets_nothing_anywhere(row: SettingRow, written: str | None) -> None:
    entry = {row.key: written}
    file = entry if row.scope is Scope.WORKFLOW else {"components": {"vae": entry}}
    assert parse_policy(json.dumps(file), FILE) == Policy()
    made = (
        Policy.from_widgets(FILE, **entry)
        if row.scope is Scope.WORKFLOW
        else Policy.for_component(FILE, "vae", **entry)
    )
    assert made == Policy()


@rows
def test_an_editor_of_files_knows_it(row: SettingRow) -> None:
    schema = json_schema()
    top = schema["properties"]
    found = top[row.key] if row.scope is Scope.WORKFLOW else entry_of(schema)[row.key]
    assert found["description"] == row.summary
    assert {*row.kind.offered, None} == set(found["anyOf"][0]["enum"])


def test_an_editor_of_files_knows_no_other() -> None:
    schema = json_schema()
    assert entry_of(schema).keys() == {setting.key for setting in COMPONENT_SETTINGS}
    own = {name for name, found in schema["properties"].items() if not found.get("deprecated")}
    assert own == {"version", "components", *(setting.key for setting in WORKFLOW_SETTINGS)}


def entry_of(schema: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = schema["$defs"]["ComponentEntry"]["properties"]
    return properties


def test_other_people_s_words_are_those_of_a_kind_that_there_is() -> None:
    assert VALUE_WORDS.keys() <= {row.kind.what for row in SETTINGS}


@pytest.mark.parametrize(
    "made", [Policy.from_widgets, lambda by, **values: Policy.for_component(by, "vae", **values)]
)
def test_a_value_of_no_setting_is_a_mistake_of_the_program(made: Any) -> None:
    with pytest.raises(TypeError, match="no such setting: colour"):
        made(FILE, colour="red")


def test_a_device_says_that_it_moves_nothing_so_far() -> None:
    """Until components can be placed on several devices; the report says the same of every value."""
    row = Setting.DEVICE.row
    assert "So far" in row.summary
    assert "So far all components are placed on ComfyUI's own device" in row.tooltip
    assert "left alone" in row.tooltip
