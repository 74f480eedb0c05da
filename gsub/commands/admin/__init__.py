"""``gsub admin``: what a site's administrators do."""
