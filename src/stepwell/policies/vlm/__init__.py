"""Vision-language models as policies: `VLMPolicy`, and the functions an engine needs.

`vision.py` encodes images and inserts their features among the token embeddings, `policy.py` is the policy,
`tiny.py` builds the built-in models.
"""
