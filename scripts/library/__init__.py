"""Modules of make-library.py, which writes images with outside tools and keeps a record of its requests."""
