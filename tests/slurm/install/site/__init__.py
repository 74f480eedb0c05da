"""A site that has never heard of gsub, its users' jobs, and who judges that none of them came to harm."""
