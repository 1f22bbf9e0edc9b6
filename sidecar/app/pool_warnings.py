"""What an operator should know of a pool's configuration that is valid all the same."""

from sidecar.config import Config


def pool_warnings(config: Config) -> list[str]:
    if config.connector == "nixl" and not config.instances:
        return [
            "connector: nixl and no `instances`: engines with NIXL do not register, so this pool "
            "stays empty; name each with its role and url"
        ]
    return []
