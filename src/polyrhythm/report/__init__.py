"""What runs came to, for people: the table, the page, timelines and Perfetto traces."""
