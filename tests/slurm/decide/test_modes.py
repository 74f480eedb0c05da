"""How far gsub goes: by site, partition, account, share of users and the user's word; and what the user sees."""

from __future__ import annotations

import pwd
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from site_configs.devcluster import Cluster
from site_configs.devcluster.accounting import ACCOUNT
from site_configs.site_model import Mode
from tests.slurm.cli.test_parity import Record, differences
from tests.slurm.decide.conftest import policy, recorded, site_text, without_plugin
from tests.waiting import wait_until

ASKS = ("-G2",)
SET = re.compile(r"gsub set --nodes=1 ")
WOULD = re.compile(r"gsub would set --nodes=1 ")


def mode_in(text: str, table: str, mode: Mode, rollout: int = 100) -> str:
    """A site file with a mode for `[table]`, which it may have already."""
    keys = f'mode = "{mode}"\nrollout = {rollout}\n'
    if f"[{table}]\n" not in text:
        return f"{text}\n[{table}]\n{keys}"
    return re.sub(rf"(\[{table}\]\n)(mode = .*\n)?", lambda match: match[1] + keys, text)


@pytest.fixture(scope="module")
def bare(closed: Cluster, user: str | None) -> dict[str, list[Record]]:
    """The job without the plugin, by partition."""
    with without_plugin(closed):
        jobs = {name: submitted(closed, user, "-p", name)[0] for name in ("gpu", "debug")}
    known = recorded(closed)
    return {name: known[job] for name, job in jobs.items()}


def submitted(
    cluster: Cluster,
    user: str | None,
    *words: str,
    env: dict[str, str] | None = None,
    program: str = "sbatch",
) -> tuple[int, str]:
    """A job's number, and what was said about it."""
    line = [program, "--parsable", "--output=/dev/null", *ASKS, *words, "--wrap=:"]
    done = cluster.run(line, user=user, env=env)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.partition(";")[0]), done.stderr


def settles(
    cluster: Cluster, user: str | None, bare: list[Record], mode: Mode, *words: str, **more: Any
) -> None:
    """Submit, and see that mode. On a busy machine an answer may come after the shim's 50 ms: then once more."""

    def once() -> bool:
        seen = mode_seen(cluster, bare, *submitted(cluster, user, *words, **more))
        assert seen in (mode, "observe")
        return seen == mode

    wait_until(once)


def mode_seen(cluster: Cluster, bare: list[Record], job: int, said: str) -> Mode:
    """Which mode a job was submitted in, by what became of it and what its user saw; anything else fails."""
    record = recorded(cluster)[job]
    if differ := differences(bare, record):
        assert record[0].get("AdminComment", "").startswith("gsub:d-"), differ
        assert SET.search(said) and not WOULD.search(said), said
        return "enforce"
    if said:
        assert WOULD.search(said) and not SET.search(said), said
        return "advise"
    return "observe"


@pytest.fixture
def site(closed: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """The cluster under the site file of a test's parameter."""
    text = request.param(closed)
    with policy(closed, text):
        yield text


def of(mode: Mode, *tables: tuple[str, Mode], rollout: int = 100) -> Callable[[Cluster], str]:
    """A site of that mode, with modes for tables."""

    def text(cluster: Cluster) -> str:
        found = mode_in(site_text(cluster, mode), "policy", mode, rollout)
        for table, other in tables:
            found = mode_in(found, table, other)
        return found

    return text


LAB = f"accounts.{ACCOUNT}"


@pytest.mark.parametrize(
    ("site", "gpu", "debug"),
    [
        pytest.param(of("observe"), "observe", "observe", id="observe"),
        pytest.param(of("advise"), "advise", "advise", id="advise"),
        pytest.param(of("enforce"), "enforce", "enforce", id="enforce"),
        pytest.param(of("enforce", rollout=0), "observe", "observe", id="nobody yet"),
        pytest.param(
            of("observe", ("partitions.debug", "enforce")), "observe", "enforce", id="a partition first"
        ),
        pytest.param(
            of("enforce", ("partitions.debug", "advise")), "enforce", "advise", id="a partition last"
        ),
        pytest.param(of("observe", (LAB, "enforce")), "enforce", "enforce", id="an account first"),
        pytest.param(of("enforce", (LAB, "advise")), "advise", "advise", id="an account last"),
        pytest.param(
            of("observe", (LAB, "enforce"), ("partitions.debug", "advise")),
            "enforce",
            "advise",
            id="the more cautious",
        ),
        pytest.param(
            of("enforce", ("accounts.other", "observe")), "enforce", "enforce", id="another account"
        ),
    ],
    indirect=["site"],
)
def test_the_site_says_how_far(closed, user, bare, site, gpu, debug):
    for partition, mode in (("gpu", gpu), ("debug", debug)):
        settles(closed, user, bare[partition], mode, "-p", partition)


def test_each_decision_is_written_down_with_its_mode(closed, user, bare):
    for mode in ("observe", "advise", "enforce"):
        with policy(closed, site_text(closed, mode)):
            record = wait_until(partial(decision_on, closed, user, f"in-{mode}"))
            assert (record["mode"], record["enforced"]) == (mode, mode == "enforce")
            # decided all the same: this is how a site sees what would change before it does
            assert "min_nodes" in {change["field"] for change in record["changes"]}


def decision_on(cluster: Cluster, user: str | None, name: str) -> dict[str, Any] | None:
    """Submit a job of that name; what was written down about one."""
    submitted(cluster, user, "-J", name)
    found = [r for r in cluster.decisions() if r["kind"] == "decision" and r["asked"].get("name") == name]
    return found[-1] if found else None


@pytest.mark.root
def test_a_share_of_the_users(closed):
    """The same users each time; a larger share keeps them."""
    place = {name: zlib.crc32(b"gsub rollout %d" % pwd.getpwnam(name).pw_uid) % 100 for name in closed.users}
    shares = sorted({share for start in place.values() for share in (start, start + 1)})
    for share in shares:
        with policy(closed, of("enforce", rollout=share)(closed)):
            for name in closed.users:
                if share > place[name]:
                    wait_until(partial(covers, closed, name))
                else:
                    assert not covers(closed, name)


def covers(cluster: Cluster, user: str) -> bool:
    """Whether gsub changes a job of that user."""
    return bool(SET.search(submitted(cluster, user)[1]))


# Words and variables of a submission, and the mode that it is in.
THE_USERS_WORD: tuple[tuple[tuple[str, ...], dict[str, str], Mode], ...] = (
    (("--comment=gsub:off",), {}, "observe"),
    (("--comment=urgent, gsub:off; thanks",), {}, "observe"),
    (("--comment=gsub:offline",), {}, "enforce"),
    ((), {"GSUB": "off"}, "observe"),
    ((), {"GSUB": " OFF "}, "observe"),
    ((), {"GSUB": "on"}, "enforce"),
    ((), {"GSUBX": "off"}, "enforce"),
    (("--export=NONE",), {"GSUB": "off"}, "enforce"),  # the variable does not travel with the job
)


def test_the_user_says_no(closed, user, enforcing):
    with without_plugin(closed):
        bare = [submitted(closed, user, *words, env=env)[0] for words, env, _ in THE_USERS_WORD]
    known = recorded(closed)
    for (words, env, mode), job in zip(THE_USERS_WORD, bare, strict=True):
        settles(closed, user, known[job], mode, *words, env=env)


def test_gsub_says_what_sbatch_says(closed, user, enforcing):
    def once() -> bool:
        _, by_sbatch = submitted(closed, user)
        _, by_gsub = submitted(closed, user, program="gsub")
        return bool(SET.search(by_sbatch)) and by_gsub == by_sbatch.replace("sbatch: ", "")

    wait_until(once)


NEVER = {
    "more GPUs than a node has": ("--gpus-per-node=9", "-N1"),
    "two words for a node's GPUs": ("--gpus-per-node=8", "--gres=gpu:9"),
    "more GPUs than there are": ("--gpus=9999",),
    "more nodes than there are": ("--gpus-per-node=1", "-N100"),
    "another type": ("--gres=gpu:nosuch:1",),
    "more memory": ("--gpus=1", "--mem=9000G"),
    "more CPUs": ("--gpus=1", "-c9999"),
}
FAILED = re.compile(r"(?:Batch job submission failed|allocation failure): .*")


@pytest.mark.case("T1")
@pytest.mark.all_releases
@pytest.mark.parametrize("kind", NEVER)
def test_a_refusal_has_slurms_own_words(
    clean: Cluster, user: str | None, enforcing: Cluster, kind: str
) -> None:
    """Where Slurm itself would let the job wait for ever, the words are those of the first kind."""

    def asked(*words: str) -> tuple[str, str]:
        line = ["sbatch", "-t1", "--output=/dev/null", *NEVER[kind], *words, "--wrap=hostname"]
        done = clean.run(line, user=user)
        told = FAILED.search(done.stderr)
        return (told[0] if told else ""), done.stderr

    bare, before = asked("--comment=gsub:off")
    ours, said = asked()
    if "fatal:" in before:  # sbatch of 26.05 does not send it
        assert said == before
        return
    assert ours == (bare or "Batch job submission failed: Requested node configuration is not available"), (
        said
    )
    assert "Unspecified" not in said


def test_nothing_is_said_where_nothing_was_changed(closed, user, enforcing):
    done = closed.run(["sbatch", "-n4", "--output=/dev/null", "--wrap=:"], user=user)
    assert (done.returncode, done.stderr) == (0, "")
