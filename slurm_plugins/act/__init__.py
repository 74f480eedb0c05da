"""gsub-act: the only process of gsub's that acts on Slurm, by a fixed table of verbs. See docs/gsub-act.md.

`wire` is what it is asked, `verbs` what it may do, `desk` where a request becomes an act or a refusal, `journal` where
all of it is written down before it is done.
"""
