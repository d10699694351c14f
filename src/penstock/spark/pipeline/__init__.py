"""The pipeline: capture, normalise, derive, archive, audit; each step from DataFrames to DataFrames, and one runner.

Read commits.py first: an archive is its commits, and a commit is one document for all tables. runner.py has the whole
way in one place.
"""
