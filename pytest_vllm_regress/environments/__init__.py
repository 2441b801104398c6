"""Target environments: recipes, what uv resolves and builds of them, the cache, and what an
interpreter has installed."""
