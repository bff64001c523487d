"""Describes this machine and its problems, and checks the app for Flower Hub."""
