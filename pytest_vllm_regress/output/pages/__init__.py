"""HTML: the page of a run, the same as a folder of pages, and the site of everything that is
recorded."""
