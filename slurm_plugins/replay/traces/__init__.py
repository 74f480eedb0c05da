"""Traces of jobs: files of five kinds, known by their content, and a generator.

read.py       what a file is, and its jobs
sacct.py      exports of Slurm's accounting, 22.05 to 26.05
philly.py, itp.py, openb.py, synergy.py    what was published
generate.py   jobs drawn from a seed
"""

from slurm_plugins.replay.traces.files import Reading, TraceError
from slurm_plugins.replay.traces.generate import generate
from slurm_plugins.replay.traces.read import read

__all__ = ["Reading", "TraceError", "generate", "read"]
