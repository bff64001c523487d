"""Images of several domains as uint8 arrays; splits; who holds which domain. Knows nothing of Flower."""

#: ``fedshift_app`` looks for this mark: Hugging Face's ``datasets`` has the same package name.
FEDSHIFT = True
