"""`stepwell serve`: the services that agents and people talk to over HTTP, and the keys they need."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.command import add_command
from stepwell.cli.serve_worker import add_worker
from stepwell.cli.service_settings import (
    add_env_arguments,
    add_service_arguments,
    collect_env_settings,
    collect_service_settings,
    validate_settings,
)

if TYPE_CHECKING:
    from stepwell.config.gateway import GatewayConfig
    from stepwell.pool import Pool
    from stepwell.services.gateway.gateway import Gateway
    from stepwell.services.gateway.upstream import UpstreamGateway

_GATEWAY_EXAMPLES = (
    ("stepwell serve gateway --model tiny-1m --pool pool.db", "a built-in model, sampled in this process"),
    ("stepwell serve gateway --model DIR --backend http://gpu:8000", "sampled by vLLM, tokenized here"),
    ("stepwell serve gateway --upstream https://host/v1 --pool pool.db", "watch an agent; not trainable"),
    ("stepwell serve gateway --model DIR --host 0.0.0.0 --keys keys.json", "for other machines, with keys"),
)
_ENVS_EXAMPLES = (
    ("stepwell serve envs", "every built-in environment, for this machine"),
    ("stepwell serve envs --env sokoban --env maze:Maze", "these environments and no others"),
    ("stepwell serve envs --env shop --set shop.size=tiny", "with options that callers cannot change"),
    ("stepwell serve envs --host 0.0.0.0 --keys keys.json", "for other machines, with keys"),
    ("stepwell train CONFIG env.name=remote:http://HOST:8090#sokoban", "train in it"),
)
_SHOP_EXAMPLES = (
    ("stepwell serve shop", "50,000 products; open http://127.0.0.1:8095/shop/ in a browser"),
    ("stepwell serve shop --size tiny --port 0", "the small shop, on any free port"),
    ("stepwell train CONFIG env.name=remote:http://127.0.0.1:8095#shop", "train in the same shop"),
)
_KEY_EXAMPLES = (
    ("stepwell serve key alice --keys keys.json", "make a key; it is shown only once"),
    ("stepwell serve key alice --keys keys.json --revoke", "the key no longer works"),
    ("stepwell serve key alice", "print a key, and the hash to put into a configuration"),
)


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve the gateway to agents, environments and workers to trainers; make API keys",
        description="Serve agents, environments and workers over HTTP.",
    )
    services = parser.add_subparsers(title="services", metavar="SERVICE", required=True)
    _add_gateway(services)
    _add_envs(services)
    add_worker(services)
    _add_shop(services)
    _add_key(services)


def _add_gateway(services: Any) -> None:
    parser = add_command(
        services,
        "gateway",
        run_gateway,
        summary="serve a policy to agents as a chat API, and record every call",
        description="Point an agent's base_url at http://HOST:PORT/s/SESSION/v1 (OpenAI) or "
        "http://HOST:PORT/s/SESSION (Anthropic); every call becomes a step of that session in the pool.",
        examples=_GATEWAY_EXAMPLES,
        after_interrupt=lambda args: "Open sessions are in the pool; the same command continues them.",
    )
    parser.add_argument(
        "--model", metavar="DIR | NAME", help="a built-in model, a Hugging Face directory or a hub id"
    )
    parser.add_argument("--backend", metavar="URL", help="a token-in server (vLLM) that samples for --model")
    parser.add_argument("--backend-model", metavar="NAME", help="the model's name there; default: --model")
    parser.add_argument(
        "--upstream", metavar="URL", help="an OpenAI-compatible API; its calls are recorded, not trained on"
    )
    parser.add_argument(
        "--upstream-model", metavar="NAME", help="the model to ask for, instead of the one that agents name"
    )
    parser.add_argument("--pool", metavar="URL", default="pool.db", help="file or database; default pool.db")
    parser.add_argument(
        "--durable",
        choices=("process", "power"),
        default="process",
        help="process (default): recorded steps survive a killed process; power: also a power cut (slower)",
    )
    add_service_arguments(parser, 8080)
    parser.add_argument("--name", metavar="MODEL", help="the name that agents use for the model")
    parser.add_argument(
        "--history",
        choices=("exact", "template"),
        default="exact",
        help="how prompts of later turns are made (exact)",
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda, for the engine in this process")
    parser.add_argument("--dtype", default="float32", help="float32 or bfloat16")
    parser.add_argument(
        "--channel", choices=("train", "eval", "user"), help="channel in which sessions are stored (train)"
    )
    parser.add_argument(
        "--silent-timeout-s", type=float, metavar="SECONDS", help="silence that ends a session (900)"
    )
    parser.add_argument(
        "--on-silence",
        choices=("truncated", "agent_error"),
        help="status of a session that ends so (truncated)",
    )
    parser.add_argument("--rate", type=float, metavar="N", help="calls per second of one key")
    parser.add_argument("--max-concurrent", type=int, metavar="N", help="concurrent calls per key")
    parser.add_argument("--seed", type=int, help="seed from which calls without one get theirs")


def _add_envs(services: Any) -> None:
    parser = add_command(
        services,
        "envs",
        run_envs,
        summary="host environments for training runs on other machines",
        description="A run opens them as env.name = remote:URL[,URL...]#NAME; its key is read from "
        "STEPWELL_ENV_KEY.",
        examples=_ENVS_EXAMPLES,
        after_interrupt=lambda args: "Its environments are closed.",
    )
    add_env_arguments(parser, "host")
    add_service_arguments(parser, 8090)
    parser.add_argument("--threads", type=int, metavar="N", help="threads for environments; default 4")
    parser.add_argument("--max-sessions", type=int, metavar="N", help="open environments; default 1024")
    parser.add_argument(
        "--session-timeout-s", type=float, metavar="SECONDS", help="silence that ends a session (600)"
    )
    parser.add_argument("--rate", type=float, metavar="N", help="calls per second of one key")


def _add_shop(services: Any) -> None:
    parser = add_command(
        services,
        "shop",
        run_shop,
        summary="show the shop in a browser, at /shop/ of the address",
        description="On this machine (--host 127.0.0.1) it is also an environment service for `shop`. Other "
        "machines get only the pages, without keys; to train there use `stepwell serve envs --env shop`.",
        examples=_SHOP_EXAMPLES,
    )
    parser.add_argument("--size", choices=("full", "tiny"), default="full", help="size of the shop (full)")
    parser.add_argument("--num-products", type=int, metavar="N", help="generated products (50,000; tiny 300)")
    parser.add_argument(
        "--webshop-files", metavar="DIR", help="product files of WebShop, used instead of generated products"
    )
    parser.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1")
    parser.add_argument("--port", type=int, default=8095, help="default 8095; 0 for any free one")


def _add_key(services: Any) -> None:
    parser = add_command(
        services,
        "key",
        run_key,
        summary="make or revoke an API key",
        description="Only a hash of the key is stored.",
        examples=_KEY_EXAMPLES,
    )
    parser.add_argument("name", metavar="NAME", help="name of the key's owner: letters, digits and '-'")
    parser.add_argument("--keys", metavar="FILE", type=Path, help="the file that holds the hashes")
    parser.add_argument("--revoke", action="store_true", help="remove the key from the file")


def run_key(args: argparse.Namespace) -> int:
    from stepwell.core.errors import ConfigError
    from stepwell.services.keys import create_key, hash_key, read_keys, write_keys

    if args.revoke and args.keys is None:
        raise ConfigError("--revoke needs --keys FILE, the file that holds the key's hash")
    if args.keys is None:
        key = create_key(args.name)
        print(f"{key}\nkeys = {{ {args.name} = {hash_key(key)!r} }}")
        return 0
    hashes = read_keys(args.keys)
    if args.revoke:
        if hashes.pop(args.name, None) is None:
            raise ConfigError(
                f"{args.keys} holds no key {args.name!r}; it holds {', '.join(hashes) or 'none'}"
            )
        write_keys(args.keys, hashes)
        print(f"{args.name} is revoked")
        return 0
    if args.name in hashes:
        raise ConfigError(
            f"{args.keys} holds a key {args.name!r} already; revoke it first, or choose another name"
        )
    key = create_key(args.name)
    write_keys(args.keys, {**hashes, args.name: hash_key(key)})
    print(key)
    return 0


def run_envs(args: argparse.Namespace) -> int:
    from stepwell.config.env_service import EnvServiceConfig
    from stepwell.envs.registry import read_options
    from stepwell.services.http_server import serve

    given = {
        **collect_service_settings(args),
        **collect_env_settings(args),
        "num_threads": args.threads,
        "max_sessions": args.max_sessions,
        "session_timeout_s": args.session_timeout_s,
        "rate_per_s": args.rate,
    }
    config = validate_settings(EnvServiceConfig, args.config, given)
    for name in {*config.envs, *config.env_options}:
        read_options(name, config.env_options.get(name))  # refuse a misspelt name or option before serving
    from stepwell.services.envs.app import create_env_app

    serve(create_env_app(config), config.host, config.port, shutdown_timeout_s=config.shutdown_timeout_s)
    return 0


def run_shop(args: argparse.Namespace) -> int:
    from stepwell.config.env_service import EnvServiceConfig
    from stepwell.envs.shop.options import ShopOptions
    from stepwell.envs.shop.shop import open_shop
    from stepwell.services.http_server import serve

    given = {"size": args.size, "num_products": args.num_products, "webshop_files": args.webshop_files}
    options = validate_settings(ShopOptions, None, given)
    shop = open_shop(options)
    from starlette.applications import Starlette

    from stepwell.envs.shop.browser import create_browser_app
    from stepwell.services.envs.app import create_env_app

    app = Starlette()
    if EnvServiceConfig.model_construct(host=args.host).is_loopback:
        fixed = {"shop": options.model_dump(exclude_unset=True)}
        app = create_env_app(EnvServiceConfig(host=args.host, envs=("shop",), env_options=fixed))
    app.mount("/shop", create_browser_app(shop))
    serve(app, args.host, args.port)
    return 0


def run_gateway(args: argparse.Namespace) -> int:
    from stepwell.core.errors import ConfigError
    from stepwell.services.http_server import serve
    from stepwell.workers.placement import check_device

    if (args.model is None) == (args.upstream is None):
        raise ConfigError(
            "set --model (a policy that can be trained) or --upstream (another API, recorded only)"
        )
    config = _read_config(args)
    check_device("--device", args.device)
    from stepwell.services.gateway.app import create_app

    gateway, close = _open_gateway(args, config)
    try:
        app = create_app(gateway)
        serve(app, config.host, config.port, shutdown_timeout_s=config.shutdown_timeout_s)
    finally:
        close()
    return 0


def _read_config(args: argparse.Namespace) -> GatewayConfig:

    from stepwell.config.gateway import GatewayConfig

    name = args.name or (Path(args.model).name if args.model else args.upstream_model)
    given = {
        **collect_service_settings(args),
        "model_name": name,
        "seed": args.seed,
        "channel": args.channel,
        "silent_timeout_s": args.silent_timeout_s,
        "on_silence": args.on_silence,
        "rate_per_s": args.rate,
        "max_concurrent": args.max_concurrent,
    }
    return validate_settings(GatewayConfig, args.config, given)


def _open_gateway(args: argparse.Namespace, config: GatewayConfig) -> tuple[Gateway | UpstreamGateway, Any]:
    """The gateway, and the function that closes its parts."""
    from contextlib import ExitStack

    from stepwell.core.api_keys import read_key
    from stepwell.pool import open_pool

    stack = ExitStack()
    pool = stack.enter_context(open_pool(args.pool, durable=args.durable, require_write=True))
    if args.upstream is not None:
        from stepwell.services.gateway.upstream import UpstreamGateway

        key = read_key("STEPWELL_UPSTREAM_KEY")
        upstream = UpstreamGateway(args.upstream, pool, config, api_key=key, model=args.upstream_model)
        return upstream, stack.close
    from stepwell.rendering import Renderer
    from stepwell.services.gateway.gateway import Gateway

    engine, tokenizer, sight = _open_engine(args, stack, pool)
    renderer = Renderer(tokenizer, args.history, context_length=engine.max_length, **sight)
    return Gateway(engine, renderer, pool, config), stack.close


def _open_engine(args: argparse.Namespace, stack: Any, pool: Pool) -> tuple[Any, Any, dict[str, Any]]:
    """Engine and tokenizer, and the renderer's further arguments if the model takes images."""
    if args.backend is None:
        from stepwell.engines import EmbeddedEngine
        from stepwell.policies import accepts_images
        from stepwell.policies.numerics import set_numerics
        from stepwell.pool import PoolImageStore

        set_numerics()
        image_store = PoolImageStore(pool) if accepts_images(args.model) else None
        engine: Any = stack.enter_context(
            EmbeddedEngine.from_pretrained(
                args.model, dtype=args.dtype, device=args.device, image_store=image_store
            )
        )
        sight = (
            {} if image_store is None else {"image_format": engine.image_format, "image_store": image_store}
        )
        return engine, engine.tokenizer, sight
    from stepwell.engines.remote import RemoteEngine
    from stepwell.policies.model_resolver import resolve_model
    from stepwell.rendering import load_tokenizer

    tokenizer = load_tokenizer(resolve_model(args.model))
    return RemoteEngine(args.backend, args.backend_model or args.model, tokenizer=tokenizer), tokenizer, {}
