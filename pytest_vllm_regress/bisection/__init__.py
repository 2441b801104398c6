"""Between which releases a failure comes or goes."""
