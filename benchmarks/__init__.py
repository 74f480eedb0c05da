"""Measurements that back the figures in the documents: one command each."""
