"""Tests of gsub."""
