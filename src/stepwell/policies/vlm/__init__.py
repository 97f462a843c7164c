"""Vision-language models as policies: `VLMPolicy`, and the parts an engine needs of one.

`vision.py` encodes images and puts their features among token embeddings, `policy.py` is the
policy, `tiny.py` makes the built-in models.
"""
