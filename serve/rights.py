"""Which right each route and method needs.

What is not listed needs the right to the repository, so that a new route is closed until somebody decides.
"""

from __future__ import annotations

from penstock.serve import page

INFER, REPOSITORY, SHARED_MEMORY, METRICS = "infer", "repository", "shared-memory", "metrics"
EVERY = (INFER, REPOSITORY, SHARED_MEMORY, METRICS)
STREAM = "ModelStreamInfer"
_SERVICE = "inference.GRPCInferenceService"
# Any one of them is enough; None is open to everybody.
Needed = tuple[str, ...] | None

# Orchestrators probe without keys, and a browser has none until the page has asked for it.
_OPEN = frozenset(("/v2/health/live", "/v2/health/ready", *page.PATHS))
_READS, _INFERS = (INFER, REPOSITORY), (INFER,)
_OPERATES, _SHARES = (REPOSITORY,), (SHARED_MEMORY,)
_PATHS = {
    "/v2": _READS,
    "/v2/repository/index": _READS,
    **dict.fromkeys(("/metrics", "/debug/shadow", "/debug/slow"), (METRICS,)),
    "/v2/routes": _OPERATES,
    # They tell the names and tensors of models, as their metadata does.
    **dict.fromkeys(("/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"), _INFERS),
    **dict.fromkeys((page.MODELS, page.FIGURES), _INFERS),
}
_METHODS: dict[str, Needed] = {
    **dict.fromkeys(("ServerLive", "ServerReady")),
    **dict.fromkeys(("ServerMetadata", "RepositoryIndex"), _READS),
    **dict.fromkeys(("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"), _INFERS),
    **dict.fromkeys(("ModelInfer", STREAM), _INFERS),
    **dict.fromkeys(("RepositoryModelLoad", "RepositoryModelUnload", "LogSettings", "TraceSetting"), _OPERATES),
    **{
        f"{kind}SharedMemory{what}": _SHARES
        for kind in ("System", "Cuda")
        for what in ("Status", "Register", "Unregister")
    },
}


def of_path(path: str) -> Needed:
    """What a request to a path needs, whatever its method; the path as the application reads it, decoded."""
    return None if path in _OPEN else _listed(path) or _OPERATES


def is_listed(path: str) -> bool:
    """Whether somebody decided what a path needs."""
    return path in _OPEN or _listed(path) is not None


def _listed(path: str) -> Needed:
    if (known := _PATHS.get(path)) is not None:
        return known
    # By what stands first, as it decides which routes there can be: an ending may hide behind a line's end.
    match path.split("/")[1:]:
        case ["predict", _]:
            return _INFERS
        case ["v2", "models", _, *rest]:
            return _OPERATES if "trace" in rest else _INFERS
        case ["v2", "repository" | "logging" | "trace", *_]:
            return _OPERATES
        case ["v2", "systemsharedmemory" | "cudasharedmemory", *_]:
            return _SHARES
    return None


def of_method(method: str) -> Needed:
    """What a gRPC call needs, by its full method name, `/inference.GRPCInferenceService/ModelInfer`."""
    service, _, name = method.strip("/").partition("/")
    if service == _SERVICE:
        return _METHODS.get(name, _OPERATES)
    if service == "grpc.health.v1.Health":
        return None
    # Reflection tells what the protocol is, which everybody knows who has any key.
    return EVERY if service.startswith("grpc.reflection.") else _OPERATES
