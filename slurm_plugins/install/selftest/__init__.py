"""`gsub admin selftest`: what gsub promises, shown with a dozen small jobs on the site's own Slurm.

`table.SCENARIOS` are the promises, `runner.run` keeps them within their bounds, `report` says what was seen.
Nothing here changes an installation; the jobs are bounded (`bounds.Bounds`) and are gone afterwards.
"""
