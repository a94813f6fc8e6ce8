"""The live browser: Chromium in the sandbox, attached to over CDP, shown to people and driven by one of them."""
