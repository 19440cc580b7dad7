"""See long work while it goes on: a search, a study, a comparison.

`board` keeps how far it is, `bar` shows that in a terminal, `page` in a browser.
"""
