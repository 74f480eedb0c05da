"""`gsub why` knows a site's own words, and goes on without them."""

from __future__ import annotations

import json

import pytest

from gsub.cli import main

SIGNATURE = """
[[signature]]
name = "site-license-denied"
reason = "environment_error"
tier = "explicit"
pattern = '''licd: checkout of \\S+ denied'''
weight = 8
test = ["licd: checkout of solver denied"]
"""


@pytest.mark.parametrize(
    ("signatures", "reason", "warned"),
    [(SIGNATURE, "environment_error", False), (SIGNATURE.replace("8", "10"), "no_signature", True)],
)
def test_a_sites_own_signatures(tmp_path, monkeypatch, capsys, signatures, reason, warned):
    (tmp_path / "ours.toml").write_text(signatures)
    (tmp_path / "site.toml").write_text('cluster = "c"\nfailures.signatures = ["ours.toml"]\n')
    monkeypatch.setenv("GSUB_SITE", str(tmp_path / "site.toml"))
    log = tmp_path / "run.log"
    log.write_text("step 10\nlicd: checkout of solver denied\n")
    assert main(["why", "--log", str(log), "--state", "FAILED", "--exit-code", "1", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["reason"] == reason
    assert ("site's own signatures are not used" in said.err) is warned
    assert ("is no weight" in said.err) is warned
