"""A job of somebody else, watched: time stamps where it loads, computes and meets, and nothing changed."""
