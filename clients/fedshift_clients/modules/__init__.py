"""Parts that sit in any network, whatever the method."""
