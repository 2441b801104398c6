"""Whether environments have what a project uses: imports, bindings and starts of servers."""
