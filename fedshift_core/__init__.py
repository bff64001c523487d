"""The ground floor that server and node stand on: names on the wire, records, errors, seeding, bounds. No torch."""

__version__ = "0.1.0"
