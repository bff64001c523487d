"""Numbers of finished runs side by side: compare, claims."""
