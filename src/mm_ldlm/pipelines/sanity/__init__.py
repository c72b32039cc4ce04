"""`sanity`: is a configuration wired as it says? A table in about a minute, and a failing exit code when it is not."""
