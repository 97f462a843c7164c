"""The gateway: agents call a chat API, and every call becomes an exact, trainable step."""
