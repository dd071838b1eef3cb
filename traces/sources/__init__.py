"""What lies at a path or URL: files found, their form and format detected, read as items."""
