"""Who samples fast: the embedded engine and the dynamic batcher every engine stands behind.

Import from the module that holds a name (`stepwell.engines.embedded.EmbeddedEngine`,
`stepwell.engines.batcher.DynamicBatcher`): the batcher works without torch.
"""
