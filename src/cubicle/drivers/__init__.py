"""Where a sandbox lives. Only app.py knows which driver is used; no driver imports another."""
