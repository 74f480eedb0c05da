"""A Slurm on a bare host, in the folders and as the users of its own packages: controller and node in one, two GPUs."""

from __future__ import annotations

from pathlib import Path

from site_configs.devcluster import nvml
from tests.packages.bare import NAME, BareHost

GPUS = 2
USER = "alice"
SLURM_CONF = f"""# A site's slurm.conf
ClusterName=bare
SlurmctldHost={NAME}(127.0.0.1)
SlurmUser=slurm
AuthType=auth/munge
# so long a requeued job waits, on 22.05 and since 24.05
AuthInfo=cred_expire=10
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
KillWait=5
SchedulerParameters=batch_sched_delay=0,bf_interval=2,requeue_delay=5
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
NodeName={NAME} NodeAddr=127.0.0.1 CPUs=8 Sockets=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=16000 Gres=gpu:{GPUS}
PartitionName=gpu Nodes={NAME} Default=YES State=UP MaxTime=60 DefMemPerCPU=1000
"""


def set_up(host: BareHost) -> None:
    """What the site's administrator did long before gsub came."""
    etc = host.root / "etc"
    (etc / "hosts").write_text(f"127.0.0.1 localhost {NAME}\n")
    (etc / "hostname").write_text(f"{NAME}\n")
    slurm = etc / "slurm"
    slurm.mkdir(exist_ok=True)
    (slurm / "slurm.conf").write_text(SLURM_CONF)
    (slurm / "gres.conf").write_text(f"NodeName={NAME} Name=gpu File=/dev/nvidia[0-{GPUS - 1}]\n")
    (slurm / "cgroup.conf").write_text("CgroupPlugin=disabled\n" if host.suite != "bookworm" else "")
    for number in range(GPUS):  # Slurm wants a device; what it is, it does not look at
        host.run(f"mknod -m 666 /dev/nvidia{number} c 1 3")
    host.run(f"useradd --create-home --shell /bin/sh {USER}")
    host.run(
        "install -d -o slurm -g slurm /var/lib/slurm /var/lib/slurm/slurmctld /var/lib/slurm/slurmd /var/log/slurm"
    )
    host.run("install -d -o munge -g munge -m 0755 /run/munge")
    host.run("test -s /etc/munge/munge.key || (umask 077; head -c 1024 /dev/urandom > /etc/munge/munge.key)")
    host.run("chown munge:munge /etc/munge/munge.key && chmod 400 /etc/munge/munge.key")


def start(host: BareHost) -> None:
    """Start munged, slurmctld and slurmd, and wait until the node is idle."""
    host.start("munged", ["/usr/sbin/munged", "--foreground"], user="munge")
    host.wait("munged", lambda: (host.root / "run/munge/munge.socket.2").is_socket())
    host.start("slurmctld", ["/usr/sbin/slurmctld", "-D"], user="slurm")
    host.start("slurmd", ["/usr/sbin/slurmd", "-D"])
    host.wait("the node", lambda: node_state(host) == "idle")


DRIVER = "/usr/local/lib/emulated-nvml"
EMULATED = {
    "LD_LIBRARY_PATH": DRIVER,
    "GSUB_EMU_GPUS": f"{DRIVER}/gpus",
    "GSUB_EMU_NODE": NAME,
}
"""What shows the emulated GPUs to the agent."""


def install_driver(host: BareHost) -> None:
    """An NVML as the GPUs' driver brings it, emulated."""
    folder = Path(f"{host.root}{DRIVER}")
    nvml.build(folder)
    nvml.EmulatedGpus(folder / "gpus").create([NAME], gpus=GPUS, cluster="bare")


def stop(host: BareHost) -> None:
    """End them, the last first."""
    for name in ("slurmd", "slurmctld", "munged"):
        host.stop(name)


def node_state(host: BareHost) -> str:
    """The node's state as sinfo tells it, empty when it does not answer."""
    return host.run("sinfo -h -o %t", check=False, timeout=20).stdout.strip()


def job_state(host: BareHost, job: str) -> str:
    """A job's state, by its id."""
    said = host.run(f"scontrol -o show job {job}", check=False).stdout
    return said.partition("JobState=")[2].split(" ")[0]


def run_job(host: BareHost) -> str:
    """A job with a GPU, waited for; its id."""
    line = "sbatch --parsable --output=/dev/null --gpus=1 --chdir=/tmp --wrap 'true'"
    job = host.run(line, user=USER, env={"HOME": f"/home/{USER}"}).stdout.strip()
    under_way = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
    host.wait(f"the end of job {job}", lambda: job_state(host, job) not in under_way)
    assert job_state(host, job) == "COMPLETED"
    return job
