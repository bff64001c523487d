"""Reading images and keeping them: files, formats, tables, the image cache."""
