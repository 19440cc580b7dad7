"""What a script reads: mini-batches that the job deals out, those that a single process would read, and its own."""
