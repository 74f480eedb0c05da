"""Policies over traces: what would this policy have done to last month?"""
