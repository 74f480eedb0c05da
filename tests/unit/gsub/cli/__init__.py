"""Tests of the gsub command."""
