"""A fixed workload for the engines, servers and parsers of one environment, whose answers are
compared with those of another one."""
