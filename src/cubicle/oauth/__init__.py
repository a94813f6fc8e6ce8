"""OAuth 2.1 resource server: tokens of the configured issuers are verified here, and none is ever issued."""
