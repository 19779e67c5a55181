"""Conversations in one SQLite file: written as they happen, searched, exported, imported.

It knows SQL, files and `app.backend.conversations`' values. It refuses to know Qt and engines.
"""
