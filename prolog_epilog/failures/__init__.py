"""Why a job failed: signatures as data, what its logs say by them, and the verdict that joins this with Slurm's word.

From the ground up: `taxonomy` (the reasons), `signature` (the data and its checks), `text` and `matcher` (bytes to
lines that count), `trace` (Python's structure), `choose` (one reason of many hits), `classify` (logs to a
finding), `judge` (finding, Slurm and nodes to a verdict). All of these are pure; `reading` opens files, and `child`
does it as the job's user.
"""
