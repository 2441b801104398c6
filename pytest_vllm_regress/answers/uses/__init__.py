"""What a project uses of vLLM, and which releases have all of it. Files are read, never run."""
