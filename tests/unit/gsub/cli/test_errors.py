"""What goes wrong is told once, clearly, with the right exit code; and nothing is half-done."""

from __future__ import annotations

import re

import pytest

from gsub.remedies import REMEDIES, explain

# ---- sbatch's words to ours (pure) ----------------------------------------------------------------------------

SAID = [
    ("sbatch: unrecognized option '--foo'\nTry \"sbatch --help\" for more information\n", "no such option: --foo", 2),
    ("sbatch: option requires an argument -- 'N'\nTry \"sbatch --help\" for more information\n", "-N needs a value", 2),
    ("sbatch: error: Unable to open file a b.sh\n", "cannot read the script a b.sh", 2),
    ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n",
     "out of reach", 1),
    ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n",
     "may have been accepted", 1),
    ("sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS"
     " policy (job submit limit, user's size and/or time limits)\n", "limit of your account", 1),
    ("sbatch: error: QOSMaxGRESPerUser\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy"
     "\n", "limit of your account", 1),
    ("sbatch: error: site says: no\nsbatch: error: Batch job submission failed: Unspecified error\n",
     "did not submit", 1),
    ("allocation failure: Requested node configuration is not available\n", "no set of nodes", 1),
    ("sbatch: error: --gpus-per-task or --tres-per-task used without either --gpus or -n/--ntasks is not allowed.\n",
     "did not submit", 2),
    ("", "did not submit", 1),
]  # fmt: skip


@pytest.mark.parametrize(("said", "what", "code"), SAID)
def test_explain(said, what, code):
    error = explain(said)
    assert what in error.what
    assert error.exit_code == code
    assert 1 < len(error.lines()) <= 3
    assert "sbatch: " not in error.why.removeprefix("sbatch says: ")


def test_a_message_cannot_steer_the_terminal():
    lines = explain("sbatch: error: \x1b[2Jbad\r\x07 thing\n").lines()
    assert not any(ord(char) < 32 for line in lines for char in line)


@pytest.mark.parametrize("remedy", REMEDIES, ids=lambda remedy: remedy.pattern[:30])
def test_every_remedy_is_a_sentence_of_its_own(remedy):
    assert re.compile(remedy.pattern)
    assert remedy.what and not remedy.what.endswith(".")
    if "{1}" in remedy.what + remedy.fix:
        assert re.compile(remedy.pattern).groups == 1


# ---- on a real Slurm ------------------------------------------------------------------------------------------


