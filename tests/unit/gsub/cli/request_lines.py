"""Command lines for jobs with GPUs, in all the ways that people ask for them: what the shim is told is compared.

One line each: variables, words of sbatch; the script is `plain.sh`. A second block has scripts of its own.
"""

from __future__ import annotations

import shlex

from tests.slurm.cli.drive import Case

LINES = """
-G 1
-G 16
-G a100:2
--gpus=a100:2,v100:1
-G 4 -n 4
-G 4 -N 1-2
-G 4 -N 2-4
-G 2 -N 1-8
-G 8 -N 2 -n 2
-G 8 -N 3 -n 2
-G 8 -N 2-4 -n 3
-N 2 -G 16 --ntasks-per-node=8
-G 8 --ntasks-per-node=2
-G 8 --ntasks-per-node=4 -n 8
-G 8 --ntasks-per-node=4 -n 6
-G 8 -N 2-4 --ntasks-per-node=2
-G 8 -N 0
-G 8 -N 0-2
-G 2 -c 3 -N 1-2
-G 2 -c 3 -N 2 -O
-G 2 --mincpus=2 -n 3
-G 2 --mincpus=8 -c 4
-G 4 -N 1k -w n1
-G 0
--gpus-per-node=0
--gres=gpu
--gres=gpu:2
--gres=gpu:2 -N 2
--gres=gpu:a100:4
--gres=gpu:a100:2,gpu:v100:1 -N2
--gres=gpu:0
--gres=none
--gres=gpu:1 -N 1 -c 8 --mem=32G -t 1-0
--gres=gpu:2 --gres=gpu:1
--gres=gpu:4 -G 8
--gpus-per-node=4 -N 2
--gpus-per-node=a100:4 -N 2 -n 8
--gpus-per-node=8 -N 2 --exclusive
--gpus-per-node=8 -N 2 --ntasks-per-node=8 -c 8
--gpus-per-node=4 -G 8
--gpus-per-node=4 -G 8 -N 1-3
--gpus-per-node=4 -G 12 -N 2
--gpus-per-node=3 -G 8
--gres=gpu:2 --gpus-per-node=4
--gpus-per-socket=2 --sockets-per-node=2
--gpus-per-socket=a100:2 --sockets-per-node=2 -N 2
--gpus-per-socket=4 --gpus-per-task=2 --sockets-per-node=2 -n 4
--gpus-per-socket=4
--gpus-per-task=1 -n 1
--gpus-per-task=2 -n 4
--gpus-per-task=a100:2 -n 4
--gpus-per-task=1 -n 16 -c 8 --mem-per-cpu=4G
--gpus-per-task=1 -N 2 --ntasks-per-node=4
--gpus-per-task=1 -N 2 --ntasks-per-node=4 -c 4
--gpus-per-task=2 -N 2
--gpus-per-task=2 -N 2 -c 4
--gpus-per-task=2 -N 2-3
--gpus-per-task=1
--gpus-per-task=1 -G 4
--gpus-per-task=2 -G 8 -n 4
--gpus-per-task=2 -G 8 -N 1-4
--gpus-per-task=2 -G 8 -c 4
--gpus-per-task=2 -G 8 -c 4 -O
--gpus-per-task=2 -G 8 -n 3
--gpus-per-task=1 --gpus-per-node=4 -N 2
--gpus-per-task=4 --gpus-per-node=8 -N 4 --cores-per-socket=4
--ntasks-per-gpu=1 -G 4
--ntasks-per-gpu=1 -G 8 -N 2
--ntasks-per-gpu=2 -G 4 -n 8
--ntasks-per-gpu=2 --gpus-per-node=4 -N 2
--ntasks-per-gpu=2 --gpus-per-node=4 -N 2-4
--ntasks-per-gpu=2 --gres=gpu:4
--ntasks-per-gpu=2 -n 8
--ntasks-per-gpu=2 -N 2
--ntasks-per-gpu=2 -n 8 -c 2
--ntasks-per-gpu=2 --gpus-per-task=1 -n 2
--ntasks-per-gpu=1 -G 8 -c 4
--ntasks-per-tres=2 -n 8 -G 4
--cpus-per-gpu=8 -G 2
--cpus-per-gpu=8 -G 2 -n 2
--cpus-per-gpu=8 -G 2 -c 3
--cpus-per-gpu=8 --gpus-per-node=2 -N 2
--cpus-per-gpu=4 --gres=gpu:a100:2 -N 2
--cpus-per-gpu=4 --gpus-per-task=2 -n 2
--cpus-per-gpu=4 --gpus-per-task=a100:2 -n 2
--cpus-per-gpu=4 -G a100:2,v100:2
--cpus-per-gpu=4 -G 4 -O
--cpus-per-gpu=4
--mem-per-gpu=16G -G 2
--mem-per-gpu=4G
--mem-per-gpu=1G --mem=2G -G 1
--gpus-per-node=2 --mem-per-gpu=8G --cpus-per-gpu=4 --ntasks-per-gpu=1 -N 2
-G 1 --mem=0
-G 1 --mem=1500K
-G 1 --mem=1T
-G 1 --mem=4GB
-G 1 --mem-per-cpu=500M -c 3
-G 1 --tmp=10G
--exclusive -G 8
--exclusive=user -G 8
--exclusive=mcs -G 8
-s -G 1
--contiguous -G 16 -N 2
--switches=1 -N 2 -G 16
--switches=1@5 -N 2 -G 16
--switches=1@30:30 -N 2 -G 16
--switches=1@1-0 -N 2 -G 16
--switches=2@0 -N 2 -G 16
-G 1 -t 0
-G 1 -t 30:30
-G 1 -t 1:30:01
-G 1 -t 2-12
-G 1 -t 2-1:30
-G 1 -t 2-1:30:20
-G 1 -t UNLIMITED
-G 1 --time-min=30 -t 1:00:00
-G 1 -C a100
-G 1 -C [leaf1|leaf2] -N 2
-G 1 -C a100&leaf1
-G 1 --prefer=leaf1
-G 1 -w n1
-G 2 -w n1,n2
-G 2 -w n2,n1,n1
-G 2 -w n1 -N 2
-G 2 -w n[1-2] -n 1
-G 2 -w n[1-2] -N 1-3 -n 1
-G 2 -w n1 --ntasks-per-node=2
-G 2 -x n2
-G 2 -x n2,n1
-G 2 -a 1-4%2
-G 2 -d singleton
-G 2 -L foo:2
-G 2 -A root --qos=normal
-G 2 --comment=gsub:explain
-G 2 --requeue
-G 2 --no-requeue
-G 2 -J named
-G 2 -B 2:4
-G 2 -B 2:4 -N 2
-G 2 --threads-per-core=1
-G 2 --sockets-per-node=2 -N 2
-G 2 --hint=nomultithread
-G 2 --hint=multithread -N 2
-G 2 --hint=memory_bound
-G 2 --hint=compute_bound --threads-per-core=2
-G 2 --hint=compute_bound -B 2
-G 2 --hint=multithread --cores-per-socket=4
-G 2 -c 4 --threads-per-core=2 -B 2
-c 8 -O --ntasks-per-node=4 -n 16 --gpus-per-task=1
-n 3 --ntasks-per-gpu=2
-N 1-4 --ntasks-per-gpu=2
-n 2 --gpus-per-task=a100
-G 2 -n 4 -m block:cyclic
-G 2 -n 4 -m plane=2
-G 2 -n 4 -m cyclic:*
-G 2 --ntasks-per-socket=2 -n 4
-G 2 --ntasks-per-core=1 -n 4
GSUB=explain GSUB_REPACK=yes -G 2
GSUB=explain -G 2 --export=NONE
GSUB=explain SLURM_NTASKS=7 -G 2 --export=NONE
GSUB=explain -G 2 --export=GSUB
GSUB=explain -G 2 --export=ALL,GSUB_REPACK=yes
-G 2 --export=GSUB_REPACK=yes
SLURM_NTASKS=7 SLURM_CPUS_PER_TASK=3 SLURM_GPUS=9 -G 2
SLURM_NTASKS=7 SLURM_CPUS_PER_TASK=3 SLURM_TRES_PER_TASK=cpu=9 -G 2 -n 2 -c 2
SBATCH_GPUS=3
SBATCH_GPUS_PER_NODE=2 -N 2
SBATCH_GRES=gpu:2 --gres=gpu:3
SBATCH_GPUS_PER_TASK=2 -n 2
SBATCH_CPUS_PER_GPU=3 -G 1
SBATCH_MEM_PER_GPU=2G -G 1
SBATCH_MEM_PER_CPU=3G -G 1 --mem=4G
SBATCH_EXCLUSIVE=user -G 1
SBATCH_EXCLUSIVE= -G 1
SBATCH_EXCLUSIVE=user -G 1 -s
SBATCH_REQ_SWITCH=2 SBATCH_WAIT4SWITCH=60 -G 16 -N 2
SBATCH_TIMELIMIT=1:0:0 -G 1
SBATCH_OVERCOMMIT=1 -n 4 -G 1
SBATCH_NO_REQUEUE=1 -G 1 --requeue
--tres-per-task=gres/gpu:2 -n 4
--tres-per-task=gres/gpu:2 -n 4 -c 2
--tres-per-task=gres/gpu:2,cpu=4 -n 4
--tres-per-task=cpu=4,gres/gpu:a100=1 -n 4
--tres-per-task=gres/gpu=1 --cpus-per-gpu=2 -n 4
--tres-per-task=gres/gpu=2 -N 2 --ntasks-per-node=2
--tres-per-task=gres/gpu=2 -N 2
--segment=1 -N 2 -G 16
--exclusive=topo -G 8
-G 2 --extra=x=1
-G 2 -N 1 : -G 4 -n 4
-c 4 : -G 2
-G 2 -t 10 --mem=1G -N 1 : -G 1 -n 2
-G 2 -w n1 : -G 1 -w n2
-G 2 --hint=nomultithread : -G 1 : -G 1 --qos=normal
GSUB=explain -G 2 -n 3 : -G 1
-n 2
--gres=craynetwork:1
--mem=x -G 1
-t x -G 1
-n 0 -G 1
-N 4-2 -G 1
-G 2 --exclusive=no
-G 2,a100:1
"""

SCRIPTS = {
    "#SBATCH -N1 --gres=gpu:2\n#SBATCH -t 10 --mem=4G\n": "",
    "#SBATCH --gpus=16 --time=1-0\n#SBATCH --ntasks-per-node=8 -c 4\n": "-N2",
    "#SBATCH --mem-per-gpu=2G -G1\n": "SBATCH_MEM_PER_NODE=3G",
    "#SBATCH --mem=2G -G1\n": "--mem-per-cpu=1G",
    "#SBATCH --exclusive -G1\n": "-s",
    "#SBATCH -s -G1\n": "SBATCH_EXCLUSIVE=user",
    "#SBATCH -G1 --qos=normal\n#SBATCH hetjob\n#SBATCH -G2 -c4\n": "-N1 -t 10 : -N2 -t 20",
    "#SBATCH --gpus-per-node=2 -N2 -J it\n#SBATCH --comment='gsub:explain, a \"b\"'\n": "",
    "# ein Kommentar: für ☃\n#SBATCH -G2\n": "",
}


def cases() -> list[Case]:
    """All of them."""
    found = [_case(f"{line} plain.sh") for line in LINES.strip().splitlines()]
    return found + [_case(line, f"#!/bin/sh\n{script}:\n") for script, line in SCRIPTS.items()]


def _case(line: str, script: str = "") -> Case:
    words = shlex.split(line)
    env = []
    while words and "=" in words[0] and words[0].partition("=")[0].isupper():
        name, _, value = words.pop(0).partition("=")
        env.append((name, value))
    return Case(tuple(words), tuple(env), stdin=script)
