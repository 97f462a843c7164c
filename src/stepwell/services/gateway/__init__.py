"""The gateway: agents speak to a chat API, and every call becomes an exact, trainable step."""
