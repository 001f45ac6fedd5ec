"""What make-library.py is made of. It writes images with outside tools and keeps a record of what it asked them for."""
