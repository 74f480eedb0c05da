"""The shim's tables are those of the service: what one may answer, the other takes."""

from __future__ import annotations

from slurm_plugins.decide import edits, request, steps
from tests.unit.slurm_plugins.lua.lua import KINDS, MEMORY, NO_VAL, NO_VAL16, Shim

WISHES = {
    "GSUB",
    "GSUB_REPACK",
    "GSUB_RETUNE",
    "GSUB_SENSITIVITY",
    "GSUB_SMOKE",
    "GSUB_RUN_TIME",
    "GSUB_RESTART",
    "GSUB_DECISION",
    "GSUB_WORKLOAD",
}


def test_edits_are_those_of_the_service(shim: Shim) -> None:
    there = {
        name: [edit.kind, edit.low, edit.high, *([edit.characters] if edit.kind == "text" else [])]
        for name, edit in edits.EDITS.items()
    }
    assert shim.order("tables")["edits"] == there


def test_variables_are_those_of_the_service(shim: Shim) -> None:
    tables = shim.order("tables")
    assert set(tables["env_names"]) == steps.ENV_NAMES | WISHES
    for name in tables["env_names"]:
        if name != "GSUB":  # read only
            edits.check_env(name, "1")
    lowest, highest, _ = tables["env_value"]
    assert (lowest, highest) == (0, edits.MAX_ENV_VALUE)
    taken = {chr(code) for code in range(256) if _taken(shim, chr(code))}
    assert taken == {chr(code) for code in range(256) if _checks(chr(code))}


def _taken(shim: Shim, value: str) -> bool:
    line = b'{"v":1,"id":1,"mode":"enforce","edits":{},"say":[],"env":{"SLURM_NTASKS":"\\u%04x"}}' % ord(
        value
    )
    [reply] = shim.feed([line], {}, env={})
    assert "raised" not in reply
    return "dropped" not in reply


def _checks(value: str) -> bool:
    try:
        edits.check_env("SLURM_NTASKS", value)
    except edits.EditError:
        return False
    return True


def test_texts_take_the_same_characters_on_both_sides(shim: Shim) -> None:
    names = [name for name, edit in edits.EDITS.items() if edit.kind == "text"]
    cases = [(name, chr(code)) for name in names for code in range(1, 256)]
    lines = [
        b'{"v":1,"id":1,"mode":"enforce","edits":{"%s":"\\u%04x"},"say":[],"env":{}}'
        % (name.encode(), ord(char))
        for name, char in cases
    ]
    for (name, char), reply in zip(cases, shim.feed(lines, {}, env={}), strict=True):
        try:
            edits.check(name, char)
            allowed = True
        except edits.EditError:
            allowed = False
        assert ("dropped" not in reply) == allowed, (name, char)


def test_every_field_is_one_the_service_reads(shim: Shim) -> None:
    fields = shim.order("tables")["fields"]
    read = set(request.Job.__struct_fields__)
    # the directory service would be asked under slurmctld's locks; and Lua has no such field: ntasks_per_tres is it
    assert set(fields) == read - {"user_name", "ntasks_per_gpu"}
    widths = {NO_VAL16: 16, NO_VAL: 32, 0: "flag", "text": "text", "memory": 64}
    for name, kind in {**KINDS, **MEMORY}.items():
        if name in fields:
            assert fields[name] == widths[kind], name
