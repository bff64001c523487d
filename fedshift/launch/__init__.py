"""What a person starts: runs, SuperLinks, demos, exports; credentials; how things stand."""
