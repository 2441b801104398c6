"""What tests use: engines, servers and probes, the devices they run on, and the session that owns
them."""
