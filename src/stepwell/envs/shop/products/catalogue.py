"""Catalogues by what they are made of, built once and kept in the cache.

A generated catalogue is named by a digest of its vocabulary, the generator's version, seed and size; one
of WebShop's files by their names, sizes and times of change.
"""

from __future__ import annotations

from pathlib import Path

from stepwell.core.errors import ConfigError
from stepwell.core.ids import hash_content
from stepwell.data.cache import open_cached
from stepwell.envs.shop.products import generator, webshop_files
from stepwell.envs.shop.products.store import FORMAT, Store, open_store, write_store
from stepwell.envs.shop.products.vocabulary import load_vocabulary


def open_generated_catalogue(words: str, seed: int, num_products: int, root: Path | None = None) -> Store:
    """`num_products` made up from a vocabulary ('full' or 'tiny')."""
    named = load_vocabulary(words)
    digest = hash_content([FORMAT, generator.VERSION, named.digest, seed, num_products])
    return open_cached(
        f"products/{words}-{num_products}-{digest[:16]}.db",
        lambda path: write_store(path, generator.generate_products(named, seed, num_products)),
        open_store,
        root,
    )


def open_webshop_catalogue(folder: Path, root: Path | None = None) -> Store:
    """The products and goals of WebShop's files in a folder."""
    files = webshop_files.find_files(folder)
    stamps = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files.all]
    digest = hash_content([FORMAT, webshop_files.VERSION, str(folder.resolve()), stamps])

    def build(path: Path) -> None:
        write_store(path, webshop_files.read_products(files), webshop_files.read_goals(files))

    store = open_cached(f"products/webshop-{digest[:16]}.db", build, open_store, root)
    if store.num_products == 0:
        raise ConfigError(f"webshop_files: {files.products} holds no product that can be sold")
    return store
