"""What a node is: its images, its client, what it remembers, what it adds noise to."""
