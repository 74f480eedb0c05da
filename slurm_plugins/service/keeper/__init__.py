"""The keeper: the child process of gsubd that collects what nodes tell, keeps it in the store, and answers for it.

A process of its own, so that neither a burst of records nor a slow database ever delays a submission. It alone writes
to the store. `app` is its door (who asks, how much, for how long), `questions` what may be asked, `routes` all that it
answers, `collect` takes records in, `enrich` has Slurm asked about jobs, `journal` brings gsubd's decisions over.
docs/api.md.
"""
