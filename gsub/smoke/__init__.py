"""Smoke: a job tried on one GPU for some minutes, so that a failure that would come anyway comes there and then."""
